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
        self._due: float | None = None  # when the first is through; None: it is not on its way
        self.blocked = False  # the socket takes nothing at the moment

    def __len__(self) -> int:
        return len(self._queue)

    def post(self, *frames: bytes | memoryview, now: float, urgent: bool = False) -> None:
        """Send the message now if possible, else later; `urgent` goes before all that waits."""
        first = 0 if self._due is None else 1
        self._queue.insert(first if urgent else len(self._queue), frames)
        self.flush(now)

    def flush(self, now: float) -> None:
        """Send what may go. A message to a peer that is gone is dropped: its silence will tell."""
        self.blocked = False
        while self._queue:
            if self._due is None:
                self._due = self._pace.take(sum(map(len, self._queue[0])), now)
            if now < self._due:
                return
            try:
                self._socket.send_multipart(self._queue[0], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self.blocked = True
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
            self._queue.popleft()
            self._due = None

    def delay(self, now: float) -> float:
        """Seconds until `flush` can send something; infinite when there is nothing."""
        return max(0.0, (self._due or now) - now) if self._queue else math.inf
