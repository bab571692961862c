"""What is on its way to a socket, sent as fast as the pace and the socket allow."""

from __future__ import annotations

import math
from collections import deque

import zmq

from wbsp.wire.pace import Pace


class Outbox:
    """A first-in, first-out row of messages; used by one thread."""

    def __init__(self, socket: zmq.Socket, pace: Pace):
        self._socket, self._pace = socket, pace
        self._queue: deque[tuple[bytes | memoryview, ...]] = deque()
        self.blocked = False  # the socket takes nothing at the moment

    def __len__(self) -> int:
        return len(self._queue)

    def post(self, *frames: bytes | memoryview, now: float, urgent: bool = False) -> None:
        """Send the message now if possible, else later; `urgent` goes before all that waits."""
        (self._queue.appendleft if urgent else self._queue.append)(frames)
        self.flush(now)

    def flush(self, now: float) -> None:
        """Send what may go. A message to a peer that is gone is dropped: its silence will tell."""
        self.blocked = False
        while self._queue and not self._pace.delay(now):
            try:
                self._socket.send_multipart(self._queue[0], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self.blocked = True
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
            self._pace.spend(sum(map(len, self._queue.popleft())), now)

    def delay(self, now: float) -> float:
        """Seconds until `flush` can send something; infinite when there is nothing."""
        return self._pace.delay(now) if self._queue else math.inf
