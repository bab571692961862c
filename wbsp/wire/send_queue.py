"""What is on its way to a server, sent as fast as the pace and the socket allow."""

from __future__ import annotations

import math
from collections import deque

import zmq

from wbsp.wire.rate import RateLimiter


class SendQueue:
    """A first-in, first-out row of messages; used by one thread.

    One message, the newest urgent one, goes before all that waits.
    """

    def __init__(self, socket: zmq.Socket, pace: RateLimiter):
        self._socket, self._pace = socket, pace
        self._queue: deque[tuple[bytes | memoryview, ...]] = deque()
        self._urgent: tuple[bytes | memoryview, ...] | None = None
        self._next: tuple[bytes | memoryview, ...] | None = None  # is on its way
        self._is_urgent = False  # that one
        self._due = 0.0  # when it is through
        self.blocked = False  # the socket takes nothing at the moment
        self.sent = 0  # messages; the urgent ones do not count

    def __len__(self) -> int:
        return len(self._queue) + (self._urgent is not None) + (self._next is not None)

    def post(self, *frames: bytes | memoryview, now: float, urgent: bool = False) -> None:
        """Send the message now if possible, else later; an urgent one replaces an older one."""
        if urgent:
            self._urgent = frames
        else:
            self._queue.append(frames)
        self.flush(now)

    def clear(self) -> None:
        """Forget what has not been sent."""
        self._queue.clear()
        self._urgent = self._next = None
        self.blocked = False

    def flush(self, now: float) -> None:
        """Send what may go."""
        self.blocked = False
        while self._take(now):
            if now < self._due:
                return
            try:
                self._socket.send_multipart(self._next, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self.blocked = True
                return
            self._next = None
            self.sent += not self._is_urgent

    def delay(self, now: float) -> float:
        """Seconds until `flush` can send something; infinite when there is nothing."""
        if self._next is not None:
            return max(0.0, self._due - now)
        return 0.0 if self else math.inf

    def _take(self, now: float) -> bool:
        """Put the next message on its way; False if there is none."""
        if self._next is not None:
            return True
        self._is_urgent = self._urgent is not None
        if self._is_urgent:
            self._next, self._urgent = self._urgent, None
        elif self._queue:
            self._next = self._queue.popleft()
        else:
            return False
        self._due = self._pace.take(sum(map(len, self._next)), now)
        return True
