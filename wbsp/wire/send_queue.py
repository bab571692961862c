"""A worker's outgoing messages, sent as fast as the rate limit and the socket allow."""

from __future__ import annotations

import math
from collections import deque

import zmq

from wbsp.wire.rate import Frames, Line, RateLimiter
from wbsp.wire.shm.link import Link


class SendQueue:
    """First-in, first-out queue of messages to a server; used by one thread.

    One urgent message, the newest, goes ahead of all that wait.
    """

    def __init__(self, socket: zmq.Socket | Link, limiter: RateLimiter):
        self._socket = socket
        self._line: Line[Frames] = Line(limiter)
        self._waiting: deque[Frames] = deque()
        self._urgent: Frames | None = None  # waits, too
        self._urgent_on_line = False
        self.blocked = False  # the socket accepts nothing at the moment
        self.sent = 0  # messages; the urgent ones do not count

    def __len__(self) -> int:
        """Number of messages that have not been sent."""
        return len(self._waiting) + (self._urgent is not None) + (
            self._line.message is not None)

    def post(self, *frames: bytes | memoryview, now: float, urgent: bool = False) -> None:
        """Send the message now if possible, else later; an urgent one replaces an older one."""
        if urgent:
            self._urgent = frames
        else:
            self._waiting.append(frames)
        self.flush(now)

    def clear(self) -> None:
        """Forget all messages that have not been sent."""
        self._waiting.clear()
        self._urgent = None
        self._line.message = None
        self.blocked = False

    def flush(self, now: float) -> None:
        """Send all messages that the line has carried, until the socket accepts no more."""
        self.blocked = False
        while self._line.message is not None or self._put_next_on_line(now):
            frames = self._line.take(now)
            if frames is None:
                return
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._line.put(frames, 0, now)
                self.blocked = True
                return
            self.sent += not self._urgent_on_line

    def delay(self, now: float) -> float:
        """Seconds until `flush` can send a message; infinite when the queue is empty, or blocked
        until the socket can be written to."""
        delay = None if self.blocked else self._line.delay(now)
        return math.inf if delay is None else delay

    def _put_next_on_line(self, now: float) -> bool:
        """Put the message that is next on the line; False if there is none."""
        self._urgent_on_line = self._urgent is not None
        if self._urgent is not None:
            frames, self._urgent = self._urgent, None
        elif self._waiting:
            frames = self._waiting.popleft()
        else:
            return False
        self._line.put(frames, sum(map(len, frames)), now)
        return True
