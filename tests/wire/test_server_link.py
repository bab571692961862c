"""What a server reads of another process, which may be anybody's; real sockets."""

import contextlib
import sys

import pytest
import zmq
from jobs import until

from wbsp.process.host import HOST
from wbsp.ps.replication.election import Inquiry
from wbsp.ps.replication.standby import PrimaryLink
from wbsp.ps.sharding.coordinator import ShardLink
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.server_link import TURN, ServerLink
from wbsp.wire.sockets import ServerSocket

KEY = bytes(32)
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes for us")


class Stranger:
    """Listens where a server is looked for, and sends what it likes; `own`: who looks for it."""

    def __init__(self):
        self.own = ServerSocket("localhost", 0)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")

    def meets(self, poll):
        """Wait for a question, while who asks does `poll`."""
        def asked():
            poll()
            with contextlib.suppress(zmq.Again):
                self._identity = self._socket.recv_multipart(zmq.NOBLOCK)[0]
                return True
        until(asked, "the question")

    def sends(self, count, message=bytes(1 << 20)):
        for _ in range(count):
            self._socket.send_multipart([self._identity, message])

    def close(self):
        self._context.destroy(0)
        self.own.close()


@pytest.fixture
def stranger():
    stranger = Stranger()
    yield stranger
    stranger.close()


def primary(stranger):
    one = PrimaryLink(stranger.own, "localhost", stranger.port, m.Follow(m.PROTOCOL, {}, 1, "", 0))
    return one, lambda: one.poll(HOST.clock.monotonic()), lambda: one.why, one.close


def shard(stranger):
    lead = s.Lead(m.PROTOCOL, "ab12", 1, 1)
    one = ShardLink(stranger.own, "localhost", stranger.port, None, lead, KEY)

    def poll():
        assert not list(one.receive(HOST.clock.monotonic()))
        one.keep_up(HOST.clock.monotonic())
    return one, poll, lambda: one.why or "", lambda: one.close(0)


def inquiry(stranger):
    one = Inquiry(stranger.own, "localhost", stranger.port, "ab12", KEY)

    def poll():
        one.refused(HOST.clock.monotonic())
        assert one.epoch(HOST.clock.monotonic()) is None
    return one, poll, lambda: one.why, one.close


@linux
@pytest.mark.parametrize("kind", [primary, shard, inquiry])
def test_a_process_that_has_proven_nothing_and_sends_more_than_is_read_is_cut_off(stranger, kind):
    _, poll, why, close = kind(stranger)
    stranger.meets(poll)

    def cut():
        stranger.sends(TURN + 16)  # more than is read in one go
        poll()
        return "more than was requested" in (why() or "")
    until(cut, "the connection to be cut")
    stranger.meets(poll)  # there is another one
    close()


def test_received_messages_are_read_in_bounded_turns(stranger):
    link = ServerLink(stranger.own, "localhost", stranger.port)
    link.socket.send(b"")
    stranger.meets(lambda: None)
    stranger.sends(TURN + 3, b"x")
    stranger.sends(1, b"last")
    found = []

    def read():
        found.append([frames[0].bytes for frames in link.read()])
        return found[-1][-1:] == [b"last"]
    until(read, "all")
    assert max(map(len, found)) <= TURN and sum(map(len, found)) == TURN + 4
    link.close()


def test_messages_of_an_unproven_shard_are_ignored(stranger):
    """Nor does it end the server: another process may listen at the shard's address."""
    link, poll, why, close = shard(stranger)
    stranger.meets(poll)
    stranger.sends(1, m.encode(s.Misuse(1, "a forged line")))
    stranger.sends(1, b"junk")

    def said():
        poll()
        return "it sends" in why()
    until(said, "the line")
    assert not link.led
    close()
