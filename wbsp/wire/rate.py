"""Shaping of a process's traffic to a given rate, as a slower line would."""

from __future__ import annotations

import zmq


class RateLimiter:
    """A line of `rate` bytes per second, on which messages follow one another; None: no limit."""

    def __init__(self, rate: float | None):
        if rate is not None and not rate > 0:
            raise ValueError(f"band_width_limit must be above 0 MB/s, not {rate / 1e6:g}")
        self.rate = rate
        self._free_at = 0.0

    def take(self, nbytes: int, now: float) -> float:
        """Put a message on the line; return the time at which it is through."""
        if self.rate is None:
            return now
        self._free_at = max(now, self._free_at) + nbytes / self.rate
        return self._free_at


class RateLimitedReceiver:
    """What comes in at a socket, each message when a line of this pace has brought it whole."""

    def __init__(self, socket: zmq.Socket, pace: RateLimiter):
        self._socket, self._pace = socket, pace
        self._frames: list[zmq.Frame] | None = None  # on the line
        self._due = 0.0

    def receive(self, now: float) -> list[zmq.Frame] | None:
        """The next message; None: there is none yet."""
        if self._frames is None:
            try:
                self._frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            self._due = self._pace.take(sum(map(len, self._frames)), now)
        if now < self._due:
            return None
        frames, self._frames = self._frames, None
        return frames

    def delay(self, now: float) -> float | None:
        """Seconds until the message on the line is through; None: there is none, read the socket.
        """
        return None if self._frames is None else max(0.0, self._due - now)
