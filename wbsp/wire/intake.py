"""What comes over a server's own connection to another process, proven or not.

libzmq takes all that a peer sends, also what was not asked for: so it is read in bounded turns, and
the connection of a peer that has proven nothing, and sends more than is read, is cut. libzmq makes
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import zmq

from wbsp.wire.guard import ConnectionGuard
from wbsp.wire.messages.codec import MAX_MODEL
from wbsp.wire.sockets import ServerSocket

TURN = 64  # messages that are read in one go
TOO_MUCH = "it sends more than it was asked for; its connection is ended each time"


class Intake:
    """Reads a DEALER of a server's own; used by one thread.

    events: of the socket that are for `event`, as a mask
    """

    events = int(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)

    def __init__(self, server: ServerSocket, dealer: zmq.Socket, proven: Callable[[], bool]):
        """`proven`: whether the peer is known to be of this run; it may send models then."""
        self._server, self._dealer, self._proven = server, dealer, proven
        self._guard = ConnectionGuard(1, server.on.network)
        self._guard.allow(4 * MAX_MODEL)

    def event(self, event: dict[str, Any]) -> None:
        """Take note of what the socket's monitor says."""
        if event["event"] == zmq.EVENT_CONNECTED:
            self._guard.accepted(event["value"])
        elif event["event"] == zmq.EVENT_DISCONNECTED:
            self._guard.closed(event["value"])

    def read(self) -> Iterator[list[zmq.Frame]]:
        """The messages that have come, at most `TURN` of them."""
        self._guard.behind = True
        for _ in range(TURN):
            if not self._dealer.poll(0):  # an exception takes longer
                self._guard.behind = False
                return
            frames = self._dealer.recv_multipart(zmq.NOBLOCK, copy=False)
            self._server.note(self._guard, frames, self._proven())
            yield frames

    def check(self) -> bool:
        """True if the connection was cut, since its peer sends more than is read."""
        return bool(self._guard.check())

    def close(self) -> None:
        """Count nothing any more, before the socket is closed."""
        self._guard.close()
