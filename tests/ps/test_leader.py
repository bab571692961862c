"""A standby's side of its connection, over real sockets."""

import json
import time

import numpy as np
import pytest
from jobs import free_port

from wbsp.layout import TensorSpec
from wbsp.ps.copies import messages
from wbsp.ps.leader import Leader
from wbsp.ps.store import Snapshot, Whole
from wbsp.wire import messages as m
from wbsp.wire.sockets import ServerSocket

COPY = Whole(Snapshot(7, np.arange(3, dtype=np.float32)), {})


class Server:
    """One that is followed, which says what the test wants."""

    def __init__(self):
        port = free_port()
        self._socket = ServerSocket("localhost", port, None, 1)
        self._own = ServerSocket("localhost", free_port(), None, 1)
        self.leader = Leader(self._own, "localhost", port, m.Follow(m.PROTOCOL, {}, 1, "", 0))

    def until(self, kind, check=lambda message: True):
        """The next message of the standby that is of this kind."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            self.leader.poll(time.monotonic())
            if not self._socket.socket.poll(10):
                continue
            self._identity, frame = self._socket.socket.recv_multipart()
            message = m.decode(m.FromWorker, frame)
            if isinstance(message, kind) and check(message):
                return message
        raise AssertionError(f"no {kind.__name__}")

    def say(self, message, *body):
        self._socket.socket.send_multipart([self._identity, m.encode(message), *body])

    def takes_it(self, epoch):
        self.say(m.Following(json.dumps({"id": "ab12", "epoch": epoch, "workers": 2})))

    def close(self):
        self.leader.close()
        self._own.close(0)
        self._socket.close(0)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def test_a_copy_counts_for_the_server_of_its_epoch_alone(server):
    """A server that went on alone has given up what this standby holds; it still holds it."""
    server.until(m.Follow)
    server.takes_it(epoch=1)
    assert server.until(m.Held).number == 0
    for frames in messages(1, [TensorSpec("x", (3,))], {"version": 7}, COPY):
        server._socket.socket.send_multipart([server._identity, *frames])
    assert server.until(m.Held, lambda held: held.number).number == 1
    server.say(m.Unknown())
    server.until(m.Follow)
    server.takes_it(epoch=1)
    assert server.until(m.Held).number == 1, "the connection alone was a new one"
    server.say(m.Unknown())
    server.until(m.Follow)
    server.takes_it(epoch=3)
    assert server.until(m.Held).number == 0
    assert server.leader.copy.saved.vector.tolist() == [0, 1, 2]
