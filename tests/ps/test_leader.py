"""A standby's side of its connection, over real sockets."""

import json
import resource
import time

import numpy as np
import pytest
from jobs import free_port

from wbsp.layout import TensorSpec
from wbsp.ps.candidacy import State
from wbsp.ps.contest import SERVER_STEP, SILENT
from wbsp.ps.copies import messages
from wbsp.ps.interrupt import Interrupts
from wbsp.ps.leader import Leader
from wbsp.ps.lending import Lending
from wbsp.ps.standby import Standby
from wbsp.ps.store import Snapshot, Whole
from wbsp.wire import messages as m
from wbsp.wire.segments import available
from wbsp.wire.sockets import ServerSocket

SECRET = bytes(32)
OWN = State("ab12", 1, frozenset({(0, "a"), (1, "b")}), SERVER_STEP, secret=SECRET)
LAYOUT = [TensorSpec("x", (3,))]
COPY = Whole(Snapshot(7, np.arange(3, dtype=np.float32)), {})
needs_memory = pytest.mark.skipif(not available(), reason="no shared memory on this system")


class Server:
    """One that is followed, which says what the test wants."""

    def __init__(self):
        self.port = port = free_port()
        self._socket = ServerSocket("localhost", port, None, 1)
        self._own = ServerSocket("localhost", free_port(), None, 1)
        self.leader = Leader(self._own, "localhost", port, m.Follow(m.PROTOCOL, {}, 1, "", 0))
        self.lending = Lending(None)
        self.keys = [SECRET, self._socket.contact]  # that this server knows

    def until(self, kind, check=lambda message: True):
        """The next message of the standby that is of this kind."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            self.leader.poll(time.monotonic())
            if not self._socket.socket.poll(10):
                continue
            self._identity, frame = self._socket.socket.recv_multipart()
            message = m.decode(m.FromWorker, frame)
            if isinstance(message, m.Follow) and not message.proof:
                self.say(self._socket.challenges.challenge(self._identity, message.nonce,
                                                           *self.keys))
                continue
            if isinstance(message, kind) and check(message):
                return message
        raise AssertionError(f"no {kind.__name__}")

    def say(self, message, *body):
        self._socket.socket.send_multipart([self._identity, m.encode(message), *body])

    def takes_it(self, epoch):
        self.say(m.Following(json.dumps({"id": "ab12", "epoch": epoch, "workers": 2,
                                         "secret": SECRET.hex()})))

    def sends(self, number, whole, segment=0):
        state = {"version": whole.snapshot.version, "elapsed": 1.0, "next_seq": {},
                 "totals": [0, 0]}
        for frames in messages(number, LAYOUT, state, whole, segment):
            self._socket.socket.send_multipart([self._identity, *frames])

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
        self._socket.close(0)
        end = time.monotonic() + 20
        while not self.leader.refused:
            assert time.monotonic() < end
            self.leader.poll(time.monotonic())
            time.sleep(0.01)

    def close(self):
        self.leader.close()
        self._own.close(0)
        if not self._socket.socket.closed:
            self._socket.close(0)
        self.lending.close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def test_a_copy_counts_for_the_server_of_its_epoch_alone(server):
    """A server that went on alone has given up what this standby holds, and may write to it."""
    server.until(m.Follow)
    server.takes_it(epoch=1)
    assert server.until(m.Held).number == 0
    server.sends(1, COPY)
    assert server.until(m.Held, lambda held: held.number).number == 1
    server.say(m.Unknown())
    server.until(m.Follow)
    server.takes_it(epoch=1)
    assert server.until(m.Held).number == 1, "the connection alone was a new one"
    assert server.leader.copy.saved.vector.tolist() == [0, 1, 2]
    server.say(m.Unknown())
    server.until(m.Follow)
    server.takes_it(epoch=3)
    assert server.until(m.Held).number == 0
    assert server.leader.copy is None


@pytest.mark.parametrize(("epoch", "own", "later", "verdict"), [
    (1, None, 0, "its process has ended"),
    (3, None, 0, None),
    (3, OWN, 0, None),
    (3, OWN, SILENT + 1, None)])
def test_a_server_that_went_on_alone_is_not_replaced_from_a_state_before(server, epoch, own, later,
                                                                         verdict):
    """It dies before the standby has a copy of what it did alone."""
    standby = Standby(server._own, f"localhost:{server.port}", {}, None, Interrupts(), own)
    server.leader.close()
    server.leader = standby._leader
    server.until(m.Follow, lambda follow: follow.port == server._own.port)
    server.takes_it(epoch=1)
    server.until(m.Held)
    server.sends(1, COPY)
    server.until(m.Held, lambda held: held.number)
    server.say(m.Unknown())
    server.until(m.Follow)
    server.takes_it(epoch)
    server.until(m.Held)
    server.dies()
    assert standby._verdict(time.monotonic() + later) == verdict


@needs_memory
def test_a_version_in_shared_memory_is_held_there_and_outlives_the_server(server):
    follow = server.until(m.Follow)
    assert server.lending.follow(follow.socket) == "shared memory"
    server.takes_it(epoch=1)
    server.until(m.Held)
    for number in (1, 2, 3):  # the third in the memory of the first, say
        lent = server.lends(number, 7 * number, {"velocity": np.full(3, number, np.float32)})
        server.until(m.Held, lambda held, number=number: held.number == number)
    server.lending.close()
    saved = server.leader.copy.saved
    assert saved.vector.tolist() == [21, 21, 21] and saved.outer["velocity"].tolist() == [3, 3, 3]
    lent[:] = 5
    assert saved.vector.tolist() == [5, 5, 5], "nothing was copied"
    with pytest.raises(ValueError, match="read-only"):
        saved.vector[0] = 1


@needs_memory
def test_a_standby_that_cannot_have_the_memory_is_sent_its_copies(server):
    assert server.lending.follow(server.until(m.Follow).socket) == "shared memory"
    server.takes_it(epoch=1)
    server.until(m.Held)
    server.lends(1, 7)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        server.leader.poll(time.monotonic())
        follow = server.until(m.Follow)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert server.lending.follow(follow.socket) == "TCP (the standby shares no memory)"
    assert server.lending.copy(COPY.snapshot.vector) == (None, 0)
    server.takes_it(epoch=1)
    server.sends(2, COPY)
    assert server.until(m.Held, lambda held: held.number).number == 2
    assert server.leader.copy.saved.vector.tolist() == [0, 1, 2]
