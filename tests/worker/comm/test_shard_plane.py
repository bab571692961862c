"""A worker and a shard prove themselves to each other before any other message is sent."""

import os
import time

import numpy as np
import pytest
import zmq
from jobs import free_port, until

from wbsp.process.host import HOST
from wbsp.process.signals import Interrupts
from wbsp.ps.sharding.process import ShardServer
from wbsp.sync.base import Push
from wbsp.wire.client import Shards
from wbsp.wire.liveness import SERVER, Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import Claim, attachment, key_of_shards
from wbsp.wire.queues import QueuedSocket
from wbsp.wire.rate import RateLimiter
from wbsp.wire.sockets import ServerSocket
from wbsp.worker.comm.shards import ShardPlane

SECRET = 1 << 61
NAME, KEY = attachment(SECRET)
RUN = bytes(32)  # its secret


class Member:
    """A worker's side of one shard: its sockets, and the state that decides on them."""

    def __init__(self, port, secret=SECRET):
        self.context, self.said = zmq.Context(), []
        limiters = RateLimiter(None), RateLimiter(None)
        server = QueuedSocket(self.context.socket(zmq.DEALER), *limiters)
        group = m.ShardGroup(secret, [("localhost", port)])
        self.plane = ShardPlane(server, Liveness(SERVER, 0.0), self.context, group, "localhost",
                                None, limiters, HOST)
        self.shards = Shards(group, "localhost", os.urandom, self.said.append, 60.0,
                             time.monotonic())
        self.poller = zmq.Poller()
        for monitor in self.plane.monitors:
            self.poller.register(monitor, zmq.POLLIN)

    def polls(self):
        """The messages that have arrived, after the monitor and the socket were read."""
        now, lines = time.monotonic(), self.plane.lines
        for line in lines:
            line.register(self.poller, now)
        found = dict(self.poller.poll(5))
        commands = [one for shard, connected in self.plane.changes(found)
                    for one in self.shards.changed(shard, connected, now)]
        received = self.plane.receive([line for line in lines if line.readable(found)])
        if received is not None:
            commands += self.shards.receive(0, received[0], now)
        if not self.shards.ready:
            commands += self.shards.due(now, alone=False)
        for command in commands:
            self.plane.introduce(command.shard, command.message)
        for line in lines:
            line.flush(now)
        return received and received[0]

    def close(self):
        self.plane.close()
        self.context.destroy(0)


class Server:
    """A process at a shard's port; `hears`: messages over the newest peer's connection."""

    def __init__(self):
        self.socket = ServerSocket("localhost", free_port(), None, 1)
        self.port, self.peer = self.socket.port, b""

    def hears(self):
        heard = []
        while self.socket.socket.poll(0):
            self.peer, *frames = self.socket.socket.recv_multipart()
            heard.append(m.decode(s.ToShard, frames[0]))
        return heard

    def says(self, *messages):
        for message in messages:
            self.socket.socket.send_multipart(
                [self.peer, m.encode(message),
                 *([bytes(20)] if isinstance(message, m.Model) else [])])

    def close(self):
        self.socket.close()


@pytest.fixture
def opened():
    """opened(one): closed after the test."""
    there = []
    yield lambda one: there.append(one) or one
    for one in reversed(there):
        one.close()


def test_the_shard_proves_itself_and_then_all_goes_over_the_connection(opened):
    shard = opened(Server())
    member = opened(Member(shard.port))

    def turn():
        received = member.polls()
        for message in shard.hears():
            if isinstance(message, s.Present):
                proven = shard.socket.challenges.proven(shard.peer, message, KEY)
                shard.says(s.Ready(NAME) if proven else shard.socket.challenges.challenge(
                    shard.peer, message.nonce, KEY))
            else:
                shard.says(m.Model(1, 1, 0, 5))
        return received
    until(lambda: turn() or member.shards.ready, "the shard", 20)
    member.plane.put(np.ones(5, np.float32), lambda offset: m.Update(
        Push(0, 0, 0, 1, 1, 1.0), offset, 5))
    assert until(lambda: isinstance(got := turn(), m.Model) and got, "a version", 20) == m.Model(
        1, 1, 0, 5)


def test_a_shard_takes_only_the_worker_that_proves_itself(opened):
    """Also not one that has read the name in transit."""
    shard = opened(Server())
    loop = ShardServer(shard.socket, None, Interrupts(), key=key_of_shards(RUN))
    server = opened(Peer(shard.port))
    claim = Claim(os.urandom, key_of_shards(RUN))
    asked = server.asks(loop, claim.sealed(s.Lead(m.PROTOCOL, "ab12", 1, 1)))
    assert claim.meets(asked)
    bond = claim.bond
    lead = s.Lead(m.PROTOCOL, "ab12", 1, 1, bond.hidden(key_of_shards(RUN)))
    assert server.asks(loop, claim.sealed(lead)) == s.Led(1)
    worker, thief = opened(Peer(shard.port)), opened(Peer(shard.port))
    early = Claim(os.urandom, KEY)
    worker.says(early.sealed(s.Present(NAME)))
    for _ in range(20):
        loop._receive()
        time.sleep(0.005)
    rule = '{"name": "identity", "options": {}, "wire": "float32", "statistics": []}'
    server.says(s.Begin(0, 5, 5, 0, rule, {}))
    server.says(s.Floats(0, 0), bytes(20))
    server.says(s.Admit(0, SECRET))
    assert early.meets(worker.hears(loop)), "it waited until the log spoke of it"
    assert worker.asks(loop, early.sealed(s.Present(NAME))) == s.Ready(NAME)

    false = Claim(os.urandom, b"what a stranger knows")
    assert false.meets(thief.asks(loop, false.sealed(s.Present(NAME)))) is False
    copied = early.sealed(s.Present(NAME))
    assert isinstance(thief.asks(loop, copied), s.Challenge), "a proof of another connection"
    assert loop._leader.shard.attached(NAME).identity == worker.identity


class Peer:
    """A process that sends to a shard, whose loop runs meanwhile."""

    def __init__(self, port):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.identity = self.socket.routing_id = os.urandom(16)
        self.socket.connect(f"tcp://127.0.0.1:{port}")

    def says(self, message, *frames):
        self.socket.send_multipart([m.encode(message), *frames])

    def hears(self, loop):
        def answered():
            loop._receive()
            loop._queues.flush(HOST.clock.monotonic())
            return self.socket.poll(0)
        until(answered, "an answer", 20)
        return m.decode(s.FromShard, self.socket.recv_multipart()[0])

    def asks(self, loop, message):
        self.says(message)
        return self.hears(loop)

    def close(self):
        self.context.destroy(0)
