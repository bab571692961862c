"""Traffic shaping: a process's messages take the time that a line of a given rate needs."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import zmq

Frames = tuple[bytes | memoryview, ...]  # of one message
Carried = TypeVar("Carried")


class RateLimiter:
    """Schedule of a line of `rate` bytes per second, on which messages follow one another.

    An idle line saves no bandwidth for later.
    """

    def __init__(self, rate: float | None):
        """`rate`: None for a line without a limit. Raises ValueError unless it is above 0."""
        if rate is not None and not rate > 0:
            raise ValueError(f"band_width_limit must be above 0 MB/s, not {rate / 1e6:g}")
        self.rate = rate
        self._free_at = 0.0

    def take(self, nbytes: int, now: float) -> float:
        """Put a message on the line; return the time at which the line has carried it."""
        if self.rate is None:
            return now
        self._free_at = max(now, self._free_at) + nbytes / self.rate
        return self._free_at


class Line(Generic[Carried]):
    """A rate-limited line that carries one message at a time, out or in; used by one thread.

    Attributes:
        message: on the line; None if the line is free.
    """

    def __init__(self, limiter: RateLimiter):
        self._limiter = limiter
        self.message: Carried | None = None
        self._arrives_at = 0.0

    def put(self, message: Carried, nbytes: int, now: float) -> None:
        """Put a message on the line, which must be free; 0 bytes if it was on the line before."""
        self.message = message
        self._arrives_at = self._limiter.take(nbytes, now)

    def take(self, now: float) -> Carried | None:
        """Remove and return the message once the line has carried it; else return None."""
        if now < self._arrives_at:
            return None
        message, self.message = self.message, None
        return message

    def clear(self) -> None:
        """Drop the message."""
        self.message = None

    def delay(self, now: float) -> float | None:
        """Return the seconds until the message can be taken; None if the line is free."""
        return None if self.message is None else max(0.0, self._arrives_at - now)


class RateLimitedReceiver(Line[list[zmq.Frame]]):
    """Receiving end of a socket: a message arrives once the line has carried all of it.

    While the line is free, `receive` reads the next message as soon as the socket has one.
    """

    def __init__(self, socket: Any, limiter: RateLimiter):
        super().__init__(limiter)
        self._socket = socket

    def receive(self, now: float) -> list[zmq.Frame] | None:
        """Return the next message; None if none has arrived."""
        if self.message is None:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            self.put(frames, sum(map(len, frames)), now)
        return self.take(now)
