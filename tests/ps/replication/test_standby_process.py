"""A standby's side of its connection, over real sockets."""

import errno
import json
import os
import resource
import signal
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import zmq
from jobs import free_port, until

from wbsp import timeouts
from wbsp.core.store import Snapshot, Whole
from wbsp.process.host import HOST
from wbsp.process.signals import Interrupts
from wbsp.ps.checkpoint.format import Checkpoint
from wbsp.ps.checkpoint.state import IndexOwner, RunState
from wbsp.ps.replication.election import Standing, rank_of
from wbsp.ps.replication.snapshot import RunCopy, messages
from wbsp.ps.replication.standby import PrimaryLink, Standby
from wbsp.ps.series import SERVER_STEP, STANDBY_STEP, run_id
from wbsp.ps.sessions.handlers import Peer
from wbsp.tensors.frozen import NOTHING
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.sharding import FromShard, Lead
from wbsp.wire.proof import Claim, answer, key_of_process, ticket
from wbsp.wire.shm.lender import Lending
from wbsp.wire.shm.link import TRIES
from wbsp.wire.sockets import ServerSocket

SECRET = bytes(32)
OWN = Standing("ab12", 1, frozenset({(0, "a"), (1, "b")}), SERVER_STEP, secret=SECRET)
LAYOUT = [TensorSpec("x", (3,))]
COPY = Whole(Snapshot(7, np.arange(3, dtype=np.float32)), {})
needs_memory = pytest.mark.skipif(not HOST.memory.available(),
                                  reason="no shared memory on this system")


class Server:
    """A followed server, which sends what the test wants."""

    def __init__(self):
        self.port = port = free_port()
        self.there = ServerSocket("localhost", port, None, 1)
        self.own = ServerSocket("localhost", free_port(), None, 1)
        self.primary = PrimaryLink(self.own, "localhost", port, m.Follow(m.PROTOCOL, {}, 1, "", 0))
        self.lending = Lending(None)
        self.keys = [SECRET, self.there.contact]  # that this server knows

    def followed_by(self, own=None, address="", serve=None, interrupts=None, **more):
        """A standby that follows this server."""
        standby = Standby(self.own, address or f"localhost:{self.port}", {}, serve,
                          interrupts or Interrupts(), own, **more)
        self.primary.close()
        self.primary = standby.primary
        return standby

    def until(self, kind, check=lambda message: True):
        """The next message of the standby that is of this kind."""
        end = HOST.clock.monotonic() + 20
        while HOST.clock.monotonic() < end:
            self.primary.poll(HOST.clock.monotonic())
            if not self.there.socket.poll(10):
                continue
            self._identity, frame = self.there.socket.recv_multipart()
            message = m.decode(m.FromWorker, frame)
            if isinstance(message, m.Follow) and not message.proof:
                self.say(self.there.challenges.challenge(self._identity, message.nonce,
                                                           *self.keys))
                continue
            if isinstance(message, kind) and check(message):
                return message
        raise AssertionError(f"no {kind.__name__}")

    def claims(self):
        """What the standby says until it does not believe this server: it is challenged each time.
        """
        end = HOST.clock.monotonic() + 20
        while self.primary.doubt is None:
            assert HOST.clock.monotonic() < end
            self.primary.poll(HOST.clock.monotonic())
            if self.there.socket.poll(10):
                self._identity, frame = self.there.socket.recv_multipart()
                follow = m.decode(m.FromWorker, frame)
                yield follow
                self.say(self.there.challenges.challenge(self._identity, follow.nonce,
                                                           *self.keys))

    def say(self, message, *body):
        self.there.socket.send_multipart([self._identity, m.encode(message), *body])

    def takes_it(self, epoch):
        self.say(m.Following(json.dumps({"id": "ab12", "epoch": epoch, "workers": 2,
                                         "secret": SECRET.hex()})))

    def sends(self, number, whole, segment=0):
        state = RunState(version=whole.snapshot.version, elapsed=1.0, next_seq={}, totals=(0, 0))
        for frames in messages(number, LAYOUT, state, whole, segment):
            self.there.socket.send_multipart([self._identity, *frames])

    def lends(self, number, version, outer=None):
        """Send a copy of which the version lies in shared memory; return that."""
        vector = self.lending.pool.take(3)
        vector[:] = version
        lent, segment = self.lending.copy(vector)
        assert lent is vector and segment
        self.sends(number, Whole(Snapshot(version, vector), outer or {}), segment)
        return vector

    def dies(self):
        """Its machine refuses connections from here on, and the standby has seen that."""
        self.there.close(0)
        end = HOST.clock.monotonic() + 20
        while not self.primary.refuses:
            assert HOST.clock.monotonic() < end
            self.primary.poll(HOST.clock.monotonic())
            time.sleep(0.01)

    def close(self):
        self.primary.close()
        for socket in (self.own, self.there):
            if not socket.socket.closed:
                socket.close(0)
        self.lending.close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def test_a_snapshot_counts_only_for_the_server_of_its_epoch(server):
    """A server that continued alone has released what this standby holds, and may write to it."""
    server.until(m.Follow)
    server.takes_it(epoch=1)
    assert server.until(m.Held).number == 0
    server.sends(1, COPY)
    assert server.until(m.Held, lambda held: held.number).number == 1
    server.say(m.Unknown())
    server.until(m.Follow)
    server.takes_it(epoch=1)
    assert server.until(m.Held).number == 1, "the connection alone was a new one"
    assert server.primary.copy.saved.vector.tolist() == [0, 1, 2]
    server.say(m.Unknown())
    server.until(m.Follow)
    server.takes_it(epoch=3)
    assert server.until(m.Held).number == 0
    assert server.primary.copy is None


@pytest.mark.parametrize(("epoch", "own", "later", "verdict"), [
    (1, None, 0, "its process has ended"),
    (3, None, 0, None),
    (3, OWN, 0, None),
    (3, OWN, timeouts.ELECTION + 1, None)])
def test_a_server_that_continued_alone_is_not_replaced_by_an_older_state(server, epoch, own, later,
                                                                         verdict):
    """It dies before the standby has a copy of what it did alone."""
    standby = server.followed_by(own)
    server.until(m.Follow, lambda follow: follow.port == server.own.port)
    server.takes_it(epoch=1)
    server.until(m.Held)
    server.sends(1, COPY)
    server.until(m.Held, lambda held: held.number)
    server.say(m.Unknown())
    server.until(m.Follow)
    server.takes_it(epoch)
    server.until(m.Held)
    server.dies()
    assert standby.verdict(HOST.clock.monotonic() + later) == verdict


def taken(server):
    """A standby that holds nothing, and that the server has taken."""
    standby = server.followed_by()
    server.until(m.Follow, lambda follow: follow.port == server.own.port)
    server.takes_it(epoch=1)
    return standby


@pytest.fixture
def standby(server):
    """It holds a copy of a server that has just died."""
    standby = taken(server)
    server.until(m.Held)
    server.sends(1, COPY)
    held = server.until(m.Held, lambda held: held.number)
    server.say(m.Alive(held.beat))
    server.until(m.Held, lambda later: later.answered == held.beat)
    server.dies()
    return standby


def test_a_message_from_before_a_suspension_proves_nothing(server, standby):
    """The server's process has ended, but it may have gone on alone in that time."""
    now = HOST.clock.monotonic()
    assert standby.verdict(now) == "its process has ended"
    assert standby.verdict(now + 100) is None, "too long ago"
    standby._nap.over(now)
    standby.woke(now)
    server.primary.refuses = True
    assert standby.verdict(now) is None


def test_a_process_that_was_suspended_restarts_the_workers_timeouts(server):
    """A server that was started again, whose standby has ended: workers may know of a later one."""
    standby = server.followed_by(OWN)
    now = HOST.clock.monotonic()
    ended(standby)
    come(standby, server, 0, "a", 1)
    come(standby, server, 1, "b", 1)
    assert standby.verdict(now + timeouts.ELECTION + 1) == "its process has ended"
    standby.woke(now + timeouts.ELECTION + 1)
    ended(standby)
    come(standby, server, 0, "a", 1)
    come(standby, server, 1, "b", 1)
    assert standby.verdict(now + timeouts.ELECTION + 2) is None
    assert standby.verdict(now + 2 * timeouts.ELECTION + 2) == "its process has ended"


def test_a_standby_makes_the_last_files_when_all_have_the_final_version(server):
    """Whenever the server dies: nothing is decided any more. Workers, who could elect it, have
    ended."""
    standby = taken(server)
    server.until(m.Held)
    server.sends(1, COPY)
    server.until(m.Held, lambda held: held.number and held.chunks)
    server.say(m.AllHave(2))
    server.say(m.AllHave(1))
    until(lambda: server.primary.poll(HOST.clock.monotonic())
          or server.primary.copy.saved.state.over, "a word")
    server.dies()
    assert standby.verdict(HOST.clock.monotonic() + 60) == (
        "its process has ended, and all workers have the final version")


@pytest.mark.parametrize("living", [[], [0, 1]], ids=["none comes again", "they come again"])
def test_a_fit_has_ended_last_if_the_standby_was_in_touch_or_no_worker_comes_again(server, living):
    """It slept through the next fit, and served the end of the one before again."""
    standby = server.followed_by()
    server.until(m.Follow, lambda follow: follow.port == server.own.port)
    server.say(m.Following(json.dumps(SERIES | {"living": living})))
    server.until(m.Held)
    server.sends(1, COPY)
    held = server.until(m.Held, lambda held: held.number)
    server.say(m.AllHave(1))
    server.say(m.Alive(held.beat))
    server.until(m.Held, lambda later: later.answered == held.beat)
    server.dies()
    now = HOST.clock.monotonic()
    why = "its process has ended, and all workers have the final version"
    assert standby.verdict(now) == why
    assert standby.verdict(now + 60) == (None if living else why)


@needs_memory
def test_a_version_in_shared_memory_is_held_there_and_outlives_the_server(server):
    follow = server.until(m.Follow)
    assert server.lending.follow(follow.socket) == "shared memory"
    server.takes_it(epoch=1)
    server.until(m.Held)
    for number in (1, 2, 3):  # the third in the memory of the first, for example
        lent = server.lends(number, 7 * number, {"velocity": np.full(3, number, np.float32)})
        server.until(m.Held, lambda held, number=number: held.number == number)
    server.lending.close()
    saved = server.primary.copy.saved
    assert saved.vector.tolist() == [21, 21, 21] and saved.outer["velocity"].tolist() == [3, 3, 3]
    lent[:] = 5
    assert saved.vector.tolist() == [5, 5, 5], "nothing was copied"
    with pytest.raises(ValueError, match="read-only"):
        saved.vector[0] = 1


@needs_memory
def test_a_standby_that_cannot_have_the_memory_is_sent_its_copies(server):
    follow = server.until(m.Follow)
    for _ in range(TRIES):
        assert server.lending.follow(follow.socket) == "shared memory"
        server.takes_it(epoch=1)
        server.until(m.Held)
        server.lends(1, 7)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            server.primary.poll(HOST.clock.monotonic())
            follow = server.until(m.Follow)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "segment 1 did not arrive" in server.primary.trouble.replace(
        server.primary.trouble.split()[1], "1")
    assert server.lending.follow(follow.socket) == "TCP (the standby shares no memory)"
    assert server.lending.copy(COPY.snapshot.vector) == (None, 0)
    server.takes_it(epoch=1)
    server.sends(2, COPY)
    assert server.until(m.Held, lambda held: held.number).number == 2
    assert server.primary.copy.saved.vector.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("error", "reason"), [
    (MemoryError(), "not enough memory"),
    (m.WireError("a copy of 3 floats for 5"), "a copy of 3 floats for 5")])
def test_an_unreceivable_snapshot_is_reported_and_requested_again(
        server, monkeypatch, caplog, error, reason):
    standby = server.followed_by()

    def fails(head):
        raise error
    server.until(m.Follow)
    server.takes_it(epoch=1)
    server.until(m.Held)
    with monkeypatch.context() as patched:
        patched.setattr(server.primary._copies, "begin", fails)
        for _ in range(2):
            server.sends(1, COPY)
            server.until(m.Follow)
            assert standby.verdict(HOST.clock.monotonic()) is None
            server.takes_it(epoch=1)
            server.until(m.Held)
    server.sends(2, COPY)
    assert server.until(m.Held, lambda held: held.number).number == 2
    lines = [line for line in caplog.messages if "cannot receive a snapshot" in line]
    assert len(lines) == 1 and f"{reason}; requesting another" in lines[0]


def test_a_standby_ignores_a_stranger_at_the_servers_address(server):
    """No end of the run, no refusal, no copy, and no sign of life."""
    own = Standing("ab12", 1, frozenset({(0, "a"), (1, "b")}), SERVER_STEP, secret=SECRET)
    standby = server.followed_by(own)
    server.keys = [b"none of its keys"]
    heard = server.primary.liveness.heard
    for follow in server.claims():
        for lie in (m.Following(json.dumps({"id": "ab12", "epoch": 9, "workers": 2,
                                            "secret": SECRET.hex()})),
                    m.Over("no"), m.Refused("no"), m.NotServing("no", rank=1), m.Vacant(),
                    m.Vacant(answer(b"no key", follow.nonce, "vacant")), m.Alive(9)):
            server.say(lie)
    for _ in range(20):
        server.primary.poll(HOST.clock.monotonic())
        time.sleep(0.01)
    primary = server.primary
    assert primary.over is None and primary.refusal is None and not primary.vacant
    assert primary.rank == 0 and primary.liveness.heard == heard and not primary.follows
    assert standby.verdict(heard) is None


def test_a_standby_without_a_state_ends_where_it_is_not_of_the_same_user(server, capfd):
    standby = server.followed_by()
    server.keys = [b"another user's"]
    assert list(server.claims())
    assert standby.verdict(HOST.clock.monotonic()) == 1
    assert "as the same user, or both with the same --token_file" in server.primary.doubt


@pytest.mark.parametrize(("rank", "verdict"), [
    (rank_of(1, True), "it was restarted, and has an older state"), (0, None),
    (rank_of(2, True, True), None),
    (rank_of(9, False), "it was restarted, and has an older state")],
    ids=["older", "unknown", "later", "without a version"])
def test_only_the_process_in_the_servers_place_prints_that_it_waits(server, rank, verdict):
    """A process of lower rank that follows this standby reveals nothing about the server."""
    own = Standing("ab12", 1, frozenset({(0, "a"), (1, "b")}), STANDBY_STEP, secret=SECRET)
    standby = server.followed_by(own)
    server.until(m.Follow)
    claim = Claim(os.urandom, SECRET)
    told(standby, server, b"other", m.Follow(m.PROTOCOL, {}, 1, "ab12", 1))
    for _ in range(2):
        follow = claim.sealed(m.Follow(m.PROTOCOL, {}, 1, "ab12", 1))
        told(standby, server, b"other", follow)
        claim.meets(server.own.challenges.challenge(b"other", follow.nonce, SECRET))
    assert standby.verdict(HOST.clock.monotonic()) is None
    server.say(m.NotServing("waits, too", rank=rank))
    end = HOST.clock.monotonic() + (20 if rank else 0.3)
    while not server.primary.rank and HOST.clock.monotonic() < end:
        server.primary.poll(HOST.clock.monotonic())
    assert standby.verdict(HOST.clock.monotonic()) == verdict
    if rank == rank_of(1, True):
        server.takes_it(epoch=3)
        server.until(m.Held)
        assert standby.verdict(HOST.clock.monotonic()) is None, "it serves by now"


def told(standby, server, identity, message):
    """What a peer is answered to a message."""
    said = []
    with mock.patch.object(server.own, "reaches", lambda to, data: said.append(
            m.decode(m.FromServer, data))):
        standby.handle(identity, [zmq.Frame(m.encode(message))])
    return said


def come(standby, server, worker, place, epoch, key=SECRET, all_of_it=False):
    """A worker comes, and proves itself by `key`; what the standby has it do, or says to it."""
    claim, said = Claim(os.urandom, ticket(key, worker, place, epoch)), []
    for _ in range(2):
        said += told(standby, server, bytes([worker + 1]) * 5, claim.sealed(m.Reattach(
            m.PROTOCOL, worker, "ab12", epoch, LAYOUT, 0, 0, 0, 0, False, False, 1.0, "", place)))
        if not (said and isinstance(said[-1], m.Challenge) and claim.meets(said[-1])):
            break
    return said if all_of_it else said[-1] if said else None


def begins(standby, server, worker, fit, key=SECRET):
    """A worker of the series begins a fit, or waits for one; what the standby says to it."""
    own = bytes([worker + 1]) * 32
    claim = Claim(os.urandom, key_of_process(key, worker, own))
    for _ in range(2):
        said = told(standby, server, own[:5], claim.sealed(
            m.Hello(m.PROTOCOL, worker, {}, own=own, series="ab12", fit=fit)))
        if not (isinstance(said[-1], m.Challenge) and claim.meets(said[-1])):
            break
    return said[-1]


def ended(standby):
    """The process that it follows has ended."""
    standby.primary.refuses, standby.primary.gone_since = True, HOST.clock.monotonic()


def proven(standby, now):
    """True if it serves because it knows that the other process has ended, and none came since."""
    return standby.verdict(now) == "its process has ended"


def test_processes_that_the_state_names_vote_and_no_others(server):
    own = Standing("ab12", 1, frozenset({(0, "a"), (1, "b")}), STANDBY_STEP, secret=SECRET)
    standby = server.followed_by(own)
    standby.verdict(HOST.clock.monotonic() + timeouts.ELECTION + 1)
    candidate = standby.candidate
    for worker, place, key, answered in (
            (0, "a", bytes([1]) * 32, m.Challenge), (0, "later", SECRET, m.NotServing),
            (1, "a", SECRET, m.NotServing), (7, "a", SECRET, m.NotServing)):
        assert isinstance(come(standby, server, worker, place, 1, key), answered)
        candidate.promised(Peer(bytes([worker + 1]) * 5, None), m.Elected(2))
    assert not candidate.came and not candidate.votes.promised
    for worker, place in ((0, "a"), (1, "b")):
        come(standby, server, worker, place, 1)
        candidate.promised(Peer(bytes([worker + 1]) * 5, "another line"), m.Elected(2))
        assert not candidate.votes.won
        candidate.promised(Peer(bytes([worker + 1]) * 5, None), m.Elected(2))
    assert candidate.votes.won


@pytest.mark.parametrize("step", [SERVER_STEP, STANDBY_STEP])
def test_a_restarted_server_waits_for_a_newer_state_that_a_worker_knows(server, step):
    """Half of the workers are enough, and would lose what the others know to be durable."""
    workers = [(0, "a"), (1, "b"), (2, "c")]
    own = Standing("ab12", 1, frozenset(workers), step, secret=SECRET)
    standby = server.followed_by(own)
    now = HOST.clock.monotonic() + timeouts.ELECTION + 1
    standby.verdict(now)
    for worker, place in workers:
        come(standby, server, worker, place, 1)
    assert standby.verdict(now + 2) is None
    for worker in (0, 1):
        standby.candidate.promised(Peer(bytes([worker + 1]) * 5, None), m.Elected(1 + step))
    assert (standby.verdict(now + 3) is not None) == (step == STANDBY_STEP)
    assert standby.verdict(now + 70) == "2 of 3 workers voted for this standby"  # no more withheld


def test_votes_from_before_a_full_disk_elect_no_server(server, monkeypatch):
    """The voters may be back at the other server by the time at which this disk has room."""
    monkeypatch.setattr("wbsp.timeouts.SERVE_AGAIN", 0.05)
    own = Standing("ab12", 1, frozenset({(0, "a")}), STANDBY_STEP, secret=SECRET)
    interrupts, asked = Interrupts(), []

    def full(held, above, elected):
        asked.append((elected, standby.candidate.votes.promised.copy()))
        raise OSError(errno.ENOSPC, "No space left on device")
    standby = server.followed_by(own, serve=full, interrupts=interrupts)
    standby.verdict(HOST.clock.monotonic() + timeouts.ELECTION + 1)
    come(standby, server, 0, "a", 1)
    standby.candidate.votes.promised.add((0, "a"))
    verdicts = iter(["1 of 1 workers voted for this standby", None, None])

    def verdict(now):
        found = next(verdicts, "over")
        interrupts.first = signal.SIGTERM if found == "over" else None
        return None if found == "over" else found
    monkeypatch.setattr(standby, "verdict", verdict)
    assert standby.run() == 128 + signal.SIGTERM
    server.primary = SimpleNamespace(close=lambda: None)  # it has closed its own
    assert asked == [(True, {(0, "a")})] and not standby.candidate.votes.promised


def test_workers_asked_to_vote_are_refused_once_the_other_process_answers(server):
    """A process without a copy, which does not serve, counts workers that connect and reconnect."""
    own = Standing("ab12", 1, frozenset({(0, "a"), (1, "b")}), SERVER_STEP, secret=SECRET)
    standby = server.followed_by(own)
    now = HOST.clock.monotonic() + timeouts.ELECTION + 1
    standby.verdict(now)
    for worker, place in ((0, "a"), (1, "b")):
        said = come(standby, server, worker, place, 1)
        assert isinstance(said, m.Challenge), "and no answer: it waits"
    assert len(standby.candidate.came) == 2
    standby.primary.vacant, standby.primary.gone_since = True, HOST.clock.monotonic()
    standby.primary.liveness.hear(now)
    assert standby.verdict(now) is None and standby.candidate is None
    for worker, place in ((0, "a"), (1, "b")):
        assert isinstance(come(standby, server, worker, place, 1), m.NotServing)
    assert standby.verdict(now) == "its process has ended"


def test_a_worker_of_a_later_server_proves_it_and_is_waited_for(server):
    standby = server.followed_by(OWN)
    now = HOST.clock.monotonic() + timeouts.ELECTION + 1
    ended(standby)
    come(standby, server, 0, "a", 1)
    come(standby, server, 1, "b", 1)
    assert isinstance(come(standby, server, 0, "a", 1 << 40, bytes([1]) * 32), m.Challenge)
    assert proven(standby, now)
    come(standby, server, 0, "another process", 3)
    come(standby, server, 0, "another process", 3)
    assert not proven(standby, now)
    assert proven(standby, now + 60), "it has not connected again"


def test_a_worker_that_begins_the_fit_after_next_proves_a_later_server(server):
    """The standby counted it for itself, took over at the end of a fit before, and refused it."""
    standby = server.followed_by(OWN)
    now = HOST.clock.monotonic() + timeouts.ELECTION + 1
    ended(standby)
    for worker in (0, 1):
        assert isinstance(begins(standby, server, worker, 2), m.NotServing)
    assert isinstance(begins(standby, server, 0, 3, bytes([1]) * 32), m.Challenge)
    assert proven(standby, now), "fit 1 is the newest that has ended, as far as they prove"
    assert isinstance(begins(standby, server, 0, 3), m.NotServing)
    assert not proven(standby, now)
    assert proven(standby, now + 60), "it has not connected again"


def test_a_standby_that_took_over_prints_that_it_waits_for_shards(server):
    """So that the other one, which was started again, hears of it, and no worker elects that."""
    own = Standing("ab12", 1, frozenset({(0, "a"), (1, "b")}), STANDBY_STEP, secret=SECRET)
    standby = server.followed_by(own)
    standby.primary.close()
    server.primary = SimpleNamespace(close=lambda: None)
    standby._epoch = 2
    standby._attend("the server is waiting for the shard at x:1")
    said = come(standby, server, 0, "a", 1, all_of_it=True)[-2:]
    assert said == [m.Leading(2, ticket(SECRET, 0, "a", 2)),
                    m.NotServing("the server is waiting for the shard at x:1")]
    assert come(standby, server, 0, "a", 2, all_of_it=True)[-2:] == said, "it knows by now"
    assert not standby._later
    assert isinstance(come(standby, server, 1, "b", 1, bytes([1]) * 32), m.Challenge), "a stranger"
    claim = Claim(os.urandom, SECRET)
    follow = m.Follow(m.PROTOCOL, {}, 1, "ab12", 2)
    told(standby, server, b"other", follow)
    assert claim.meets(told(standby, server, b"other", claim.sealed(follow))[-1])
    assert told(standby, server, b"other", claim.sealed(follow))[-1].rank == rank_of(2, True), (
        "as a server's of epoch 2: more than a standby's of epoch 1")


@pytest.mark.parametrize("fit", [1, 2, 7])
def test_a_waiting_process_gives_way_to_one_with_a_later_fit_of_its_series(server, fit):
    """However many fits it has missed; both would wait for each other otherwise."""
    standby = server.followed_by(OWN)
    standby.primary.liveness.heard = 0.0
    for key in (server.own.contact, SECRET):
        claim, follow = Claim(os.urandom, key), m.Follow(
            m.PROTOCOL, {}, 1, run_id(SECRET.hex(), fit), 5, fit=fit)
        for _ in range(2):
            said = told(standby, server, b"other", claim.sealed(follow))
            if isinstance(said[-1], m.Challenge):
                claim.meets(said[-1])
        later = key == SECRET and fit > 1
        assert said[-1].rank == (1 if later else 0)
        assert (standby.primary.liveness.heard > 0) == later, "the other one serves"


@pytest.mark.parametrize("new", [False, True], ids=["the process that it was", "a new process"])
def test_a_run_that_may_have_ended_without_a_worker_does_not_continue_with_it(server, new):
    """From the checkpoint of a server that was started again: the other one has ended, and those
    that have its final version do not reconnect."""
    standby = server.followed_by(OWN)
    now = HOST.clock.monotonic() + timeouts.ELECTION + 1
    come(standby, server, 0, "a", 1)
    come(standby, server, 1, "b", 1)  # while the other one may serve it yet
    ended(standby)
    assert not proven(standby, now)
    come(standby, server, 0, "a", 1)
    assert not proven(standby, now)
    if new:
        told(standby, server, b"new", m.Hello(m.PROTOCOL, 1, {}))
    else:
        come(standby, server, 1, "b", 1)
    assert proven(standby, now)


def test_the_standby_keeps_the_time_since_the_server_refuses_connections(server):
    server.until(m.Follow)
    primary, times = server.primary, iter([True, True, True, False])
    primary._probe.refused = lambda now, failed: next(times)
    primary.poll(10.0)
    primary.poll(14.0)
    assert primary.gone_since == 10.0
    primary.poll(30.0)
    assert primary.gone_since == 30.0, "another one may have been there between"
    primary._probe.refused = lambda now, failed: False
    server.there.close(0)
    server.there = ServerSocket("localhost", server.port, None, 1)
    made = primary.made
    until(lambda: primary.poll(HOST.clock.monotonic()) or primary.made > made, "a connection")
    assert primary.gone_since is None, "a process is there"


def test_a_standby_serves_for_most_workers_once_their_server_has_ended_too_late_for_a_proof(server):
    """As after a machine with the server and a worker was restarted: some voters are no more."""
    own = Standing("ab12", 1, frozenset({(0, "a"), (1, "b")}), STANDBY_STEP, secret=SECRET)
    standby = server.followed_by(own)
    now = HOST.clock.monotonic()
    places = {0: IndexOwner("a", None), 1: IndexOwner("b", None)}
    standby.primary._copies.newest = RunCopy(
        1, {"id": "ab12", "epoch": 1, "workers": 2, "secret": SECRET.hex()},
        Checkpoint(np.zeros(3, np.float32), LAYOUT, RunState(
            version=7, elapsed=1.0, next_seq={}, totals=(0, 0), places=places), {}, NOTHING))
    ended(standby)
    later = now + timeouts.ELECTION + 1
    come(standby, server, 0, "a", 1)
    assert not proven(standby, later), "half of the workers"
    standby.handle(b"new", [zmq.Frame(m.encode(m.Hello(m.PROTOCOL, 1, {})))])
    assert not proven(standby, now + 1), "others may know more"
    assert proven(standby, later)
    come(standby, server, 1, "b", 3)
    assert not proven(standby, later), "that server continued alone"


# Between two fits.


SERIES = {"id": "ab12", "epoch": 4, "workers": 2, "secret": SECRET.hex(), "series": "ab12",
          "fit": 1, "living": [0, 1]}


def ends_a_fit(server):
    """A standby whose server has ended fit 1, after which both workers call `fit` again."""
    kept = []
    standby = server.followed_by(keep=kept.append)
    server.until(m.Follow, lambda follow: follow.port == server.own.port)
    server.say(m.Following(json.dumps(SERIES | {"living": []})))
    server.until(m.Held)
    server.sends(1, COPY)
    held = server.until(m.Held, lambda held: held.number)
    server.say(m.Recorded(json.dumps(SERIES)))
    server.say(m.Alive(held.beat))
    server.until(m.Held, lambda later: later.answered == held.beat)
    server.say(m.Over("the epoch is trained", True))
    until(lambda: server.primary.poll(HOST.clock.monotonic()) or server.primary.over, "the end")
    assert standby.verdict(HOST.clock.monotonic()) is None and len(kept) == 1
    assert server.primary.copy is None
    return standby


def test_a_standby_begins_the_next_fit_when_its_server_has_ended(server):
    standby = ends_a_fit(server)
    follow = server.until(m.Follow)
    run = server.primary.note.run
    assert follow.run == run["id"] == run_id(SECRET.hex(), 2)
    assert (run["fit"], run["epoch"]) == (2, SERIES["epoch"] + SERVER_STEP)
    server.dies()
    assert standby.verdict(HOST.clock.monotonic()) == "its process has ended"


def test_a_standby_proves_the_series_to_the_server_that_it_first_met_without_one(server):
    """A server that is still at the end of its fit refused a first contact with a later state."""
    ends_a_fit(server)
    server.until(m.Follow)
    assert server.primary.claim.bond.key == SECRET


def test_a_refusal_before_the_server_took_the_standby_ends_nothing(server, capfd):
    """It ended the standby without a line, as its reason had been printed once."""
    standby, now = ends_a_fit(server), HOST.clock.monotonic()
    server.until(m.Follow)
    server.primary.claim.keys = b"later", *server.primary.claim.keys  # not of the run it knows
    server.say(m.Refused("it holds a state of another run"))
    until(lambda: server.primary.poll(HOST.clock.monotonic()) or server.primary.doubt, "a refusal")
    assert standby.verdict(now) is None, "it has a state, and waits"
    server.say(m.Following(json.dumps(server.primary.note.run)))
    server.until(m.Held)
    assert server.primary.state is None, "the server has begun the fit"
    assert standby.verdict(now) is None and server.primary.why is None


def test_a_silent_server_between_two_fits_is_awaited(server):
    """No worker votes there."""
    standby, now = ends_a_fit(server), HOST.clock.monotonic()
    assert standby.verdict(now + 60) is None
    for worker in (0, 1):
        standby.handle(b"new", [zmq.Frame(m.encode(m.Hello(m.PROTOCOL, worker, {})))])
    assert standby.verdict(now + 120) is None


def test_a_fit_that_has_begun_is_not_begun_once_more(server):
    standby = ends_a_fit(server)
    server.until(m.Follow)
    run = server.primary.note.run
    server.say(m.Following(json.dumps(run), True))
    server.until(m.Held)
    assert server.primary.note is not None
    server.say(m.Recorded(json.dumps(run)))
    until(lambda: server.primary.poll(HOST.clock.monotonic()) or server.primary.note is None,
          "the begin")
    server.dies()
    assert standby.verdict(HOST.clock.monotonic()) is None


@pytest.mark.parametrize("text", [
    "{", "[]", "{}", "[" * 100_000, json.dumps(SERIES | {"epoch": -1}),
    json.dumps(SERIES | {"secret": "a"}), json.dumps(SERIES | {"fit": "two"})],
    ids=lambda text: text[:12] + text[-12:])
def test_settings_that_no_server_has_written_are_not_taken(server, text):
    server.until(m.Follow)
    server.say(m.Following(text))
    until(lambda: server.primary.poll(HOST.clock.monotonic()) or server.primary.trouble, "a line")
    assert not server.primary.follows


# Lines while the standby waits for a server.


@pytest.fixture
def follows(server):
    """A standby without a state: of a server that waits, or of another address."""
    def follows(token=None, address="", **more):
        if token is not None:
            server.there.close(0)
            server.there = ServerSocket("localhost", server.port, token, 1)
        return server.followed_by(address=address, **more)
    return follows


def has_why(server):
    until(lambda: server.primary.poll(HOST.clock.monotonic()) or server.primary.why, "a reason")


def test_a_wrong_token_is_reported_at_once_and_at_the_end(server, follows, caplog):
    caplog.set_level("INFO")
    standby = follows(token=b"a token of the test, long enough")
    has_why(server)
    now = HOST.clock.monotonic()
    assert standby.verdict(now) is None and standby.verdict(now) is None
    [line] = caplog.messages
    assert line.startswith(f"no server at localhost:{server.port} yet; this process holds no ")
    assert "it has another token" in line
    assert standby.verdict(now + 601) == 1
    assert "it has another token" in caplog.messages[-1]


def test_a_peers_reason_is_printed_in_one_line(server, follows, caplog):
    caplog.set_level("INFO")
    standby = follows()
    server.until(m.Follow)
    server.say(m.NotServing("the process at port 1 is a shard,\n\x1b[2Jand no server"))
    has_why(server)
    assert standby.verdict(HOST.clock.monotonic()) is None
    assert caplog.messages[-1].endswith(
        "its reason: the process at port 1 is a shard,??[2Jand no server")
    server.takes_it(epoch=1)
    server.until(m.Held)
    assert server.primary.why is None, "it follows"


def test_a_standby_of_itself_ends(server, follows, caplog):
    caplog.set_level("INFO")
    standby = follows(address=f"localhost:{server.own.port}")
    until(lambda: (server.primary.poll(HOST.clock.monotonic()), standby.receive(),
                   standby.verdict(HOST.clock.monotonic()))[-1] == 1, "its end")
    assert "is the address of this process itself" in caplog.messages[-1]


@pytest.mark.parametrize(("message", "kind", "said"), [
    (Lead(m.PROTOCOL, "ab12", 1, 1), FromShard, "and no shard"),
    (m.Ask("ab12"), m.FromServer, "is a standby of the server at")])
def test_a_standby_answers_that_it_is_a_standby(server, follows, message, kind, said):
    asks = server.own.context.socket(zmq.DEALER)
    asks.connect(f"tcp://127.0.0.1:{server.own.port}")
    asks.send(m.encode(message))
    standby = follows()
    until(lambda: standby.receive() or asks.poll(0), "an answer")
    assert said in m.decode(kind, asks.recv()).reason
    asks.close(0)


@pytest.mark.parametrize(("own", "epoch", "ends"), [(None, 0, 5), (OWN, 0, 600), (None, 1, 600)])
def test_a_missing_server_is_awaited_as_long_as_missing_workers(server, follows, caplog,
                                                                own, epoch, ends):
    """Not one that was, or of whose run there is a state."""
    caplog.set_level("INFO")
    standby = follows(own=own, first=5.0)
    if epoch:
        server.until(m.Follow)
        server.takes_it(epoch)
        server.until(m.Held)
    now = HOST.clock.monotonic()
    server.primary.liveness.heard = standby._silent_since = now
    server.primary.follows = False
    assert standby.verdict(now + ends - 1) is None
    assert standby.verdict(now + ends + 1) == 1
    assert f"for {ends} s, and " in caplog.messages[-1]
