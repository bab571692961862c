"""Servers and workers prove their identity: strangers change nothing, with the token or without."""

import json
import os
import stat

import pytest
import zmq
from fake_worker import FakeWorker, all_end
from hostile_peer import Peer
from integer_replica import IntegerReplica
from jobs import free_port, until

from wbsp.process.signals import Interrupts
from wbsp.ps.sharding.process import ShardServer
from wbsp.runlog.folder import SECRET, read_settings
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import Claim, key_of_shards
from wbsp.wire.sockets import ServerSocket, worker_socket

TOKEN = b"0123456789abcdef0123456789abcdef"
LAYOUT = IntegerReplica(0).layout
FAR = 1 << 40


class TokenPeer(Peer):
    """A stranger that has the run's token, as a worker has it."""

    def __init__(self, address, token):
        self._context = zmq.Context()
        host, _, port = address.rpartition(":")
        self._socket = worker_socket(self._context, [host], os.urandom(16), token)
        self._socket.connect(f"tcp://127.0.0.1:{port}")


@pytest.fixture(params=[False, True], ids=["no token", "token"])
def training(request, jobs):
    """A run of two workers that train; (server, members, the run's id, stranger())"""
    token, flags = None, []
    if request.param:
        token = TOKEN
        (jobs.folder / "token").write_bytes(token)
        flags = [f"--token_file={jobs.folder / 'token'}"]
    server = jobs.server(*flags, sync="asp").listens()
    members = [FakeWorker(server.address, worker, steps=100_000, seconds=0.002, token=token)
               for worker in range(2)]
    until(lambda: all(one.agent and one.agent.seq > 5 for one in members), "both to push")
    run = read_settings(server.folder)["id"]
    return server, members, run, lambda: (TokenPeer(server.address, token) if token
                                         else Peer(server.address))


def finish(server, members):
    for member in members:
        member.leave()
    all_end(members)
    server.ends_well()


def test_messages_of_a_stranger_change_nothing(training):
    server, members, run, stranger = training
    for claim in (m.Follow(m.PROTOCOL, {}, 1), m.Follow(m.PROTOCOL, {}, 1, run, 2 * FAR),
                  m.Follow(m.PROTOCOL, {}, 1, run, 3, "", bytes(32), bytes(32)),
                  m.Reattach(m.PROTOCOL, 0, run, FAR, LAYOUT, 0, 0, 0, 0, False, True, 1.0),
                  m.Reattach(m.PROTOCOL, 1, run, 1, LAYOUT, 0, 0, 0, 0, True, True, 1.0)):
        with stranger() as peer:
            peer.send(claim)
            assert isinstance(peer.hears(m.Challenge, m.Following, m.Reattached, m.Resend,
                                         m.Refused), m.Challenge)
            peer.send(m.Elected(3))
            peer.send(m.Held(1, 1))
            peer.hears(m.Unknown)
            peer.send(m.Ask(run))
            assert not Claim(os.urandom, bytes(32)).answers(peer.hears(m.Leading).proof,
                                                            "leading", 1)
    finish(server, members)
    assert not server.find("standby|taken over|later|was lost")


def test_the_name_of_a_worker_s_socket_opens_nothing(training):
    """As a fake server might have learned it: libzmq hands the name over to the newest."""
    server, members, _run, stranger = training
    identity = members[1]._transport._connection._socket.routing_id
    for said in (m.Leaving("stolen", False, None), m.Goodbye(), m.Elected(3),
                 m.Hello(m.PROTOCOL, 1, {}),
                 m.Reattach(m.PROTOCOL, 1, "another", 1, LAYOUT, 0, 0, 0, 0, False, True, 1.0)):
        with stranger() as peer:
            peer._socket.disconnect(peer._socket.get_string(zmq.LAST_ENDPOINT))
            peer._socket.routing_id = identity
            peer._socket.connect(f"tcp://127.0.0.1:{server.address.rpartition(':')[2]}")
            peer.send(said)
            peer.send(m.Leaving("stolen", False, None))
            peer.hears(m.Unknown, m.Refused)
        before = members[1].agent.seq
        until(lambda before=before: members[1].agent.seq > before + 3, "its own to continue")
    finish(server, members)
    assert not server.find("stolen")


def test_the_secret_is_in_no_hands_but_the_server_s(training):
    server, members, _, stranger = training
    path = server.folder / "run.json"
    secret = json.loads(path.read_text())[SECRET]
    assert len(bytes.fromhex(secret)) == 32 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SECRET not in read_settings(server.folder)
    with stranger() as peer:
        peer.send(m.Hello(m.PROTOCOL, 0, {}))  # its place is taken
        assert secret not in str(peer.hears(m.NotServing, m.Refused, m.Welcome))
    finish(server, members)
    for other in server.folder.iterdir():
        assert other == path or secret.encode() not in other.read_bytes(), other.name
        assert secret not in server.text


def test_a_run_of_a_release_without_a_secret_continues(jobs):
    server = jobs.server("--check_period=0.05", workers=1, sync="asp").listens()
    member = FakeWorker(server.address, 0, steps=100_000, seconds=0.002)
    until(lambda: len(server.events("checkpoint")) > 2, "a checkpoint")
    server.kill()
    member._transport.close(0.0)
    path = server.folder / "run.json"
    run = json.loads(path.read_text())
    del run[SECRET]
    path.write_text(json.dumps(run))
    path.chmod(0o644)
    again = jobs.server("--connect_timeout=1", "--resume=run-001", workers=1, sync="asp").listens()
    all_end([FakeWorker(again.address, 0, steps=2)])
    again.ends_well()
    told = json.loads(path.read_text())
    assert len(bytes.fromhex(told[SECRET])) == 32 and told["id"] == run["id"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


class Shard:
    """A shard that waits, in this process, and servers and strangers that speak to it."""

    def __init__(self):
        self.port = free_port()
        self.socket = ServerSocket("localhost", self.port)
        self.server = ShardServer(self.socket, None, Interrupts())
        self.context = zmq.Context()

    def dealer(self):
        one = self.context.socket(zmq.DEALER)
        one.connect(f"tcp://127.0.0.1:{self.port}")
        return one

    def says(self, one, message=None):
        """What the shard answers."""
        if message is not None:
            one.send(m.encode(message))
        while True:
            until(lambda: (self.server._receive(), self.server._queues.flush(0.0), one.poll(10))[2],
                  "an answer", 20)
            answer = m.decode(s.FromShard, one.recv())
            if not isinstance(answer, s.Beat):
                return answer

    def leads(self, one, epoch, *keys, run="ab12", secret=bytes(32)):
        claim = Claim(os.urandom, *keys)
        lead = s.Lead(m.PROTOCOL, run, epoch, 2)
        challenge = self.says(one, claim.sealed(lead))
        if not claim.meets(challenge):
            return challenge
        key = claim.bond.hidden(key_of_shards(secret))
        return self.says(one, claim.sealed(s.Lead(m.PROTOCOL, run, epoch, 2, key)))

    def close(self):
        self.context.destroy(0)
        self.socket.close()


@pytest.fixture
def shard():
    shard = Shard()
    yield shard
    shard.close()


def test_a_shard_follows_the_proven_next_server_of_the_run(shard):
    contact, run = shard.socket.contact, key_of_shards(bytes(32))
    stranger, first, other, later = (shard.dealer() for _ in range(4))
    assert isinstance(shard.leads(stranger, 1, b"no key"), m.Challenge)
    assert shard.leads(first, 1, run, contact) == s.Led(1)
    assert isinstance(shard.leads(stranger, FAR, b"no key"), m.Challenge)
    assert isinstance(shard.leads(other, FAR, contact), m.Challenge), "not of this run"
    assert isinstance(shard.leads(other, FAR, contact, run="cd34"), s.Denied)
    assert shard.leads(later, 2, run, contact) == s.Led(2)
    assert "epoch 2, has connected" in shard.says(first).reason, "who is replaced is told"
    assert isinstance(shard.leads(first, 1, run, contact), s.Denied)


def test_a_worker_adopts_nothing_of_a_stranger_in_its_server_s_place(training):
    """After any answer a member waits for the server that has admitted it."""
    server, members, _, _ = training
    server.kill()
    token = TOKEN if (server.cwd / "token").exists() else None
    fake = ServerSocket("localhost", int(server.address.rpartition(":")[2]), token, 2)
    heard = set()  # sockets of members that have introduced themselves here

    def lies():
        if not fake.socket.poll(50):
            return len(heard) == 2
        identity, frame = fake.socket.recv_multipart()[:2]
        message = m.decode(m.FromWorker, frame)
        if isinstance(message, m.Reattach):
            heard.add(identity)
            for lie in (fake.challenges.challenge(identity, message.nonce, b"no key"),
                        m.Leading(FAR), m.Resend(0), m.Reattached(FAR, True, 9, 9, None),
                        m.Stop("stop"), m.Elect(2, 1), m.Final(3)):
                fake.reaches(identity, m.encode(lie))
        elif identity in heard:  # before that come the messages in transit to the dead server
            assert not isinstance(message, m.Kept | m.Elected | m.Update | m.Fetch), message
        return False

    try:
        until(lies, "both to come", 60)
    finally:
        fake.close()
    for member in members:
        session = member._transport.client.session
        assert member.error is None and session.introduction.epoch == 1
        assert not member.agent.stopped and session.kept.first < 9
        member._transport.close(0.0)
