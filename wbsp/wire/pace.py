"""Shaping of a process's traffic to a given rate."""

from __future__ import annotations


class Pace:
    """Lets bytes through at `rate` bytes per second on average; None means no limit.

    A message may pass when the time bought by those before it is over, so that n bytes take at
    least (n - last message) / rate seconds.
    """

    def __init__(self, rate: float | None):
        if rate is not None and not rate > 0:
            raise ValueError(f"band_width_limit must be above 0 MB/s, not {rate / 1e6:g}")
        self.rate = rate
        self._free_at = 0.0

    def spend(self, nbytes: int, now: float) -> None:
        if self.rate is not None:
            self._free_at = max(now, self._free_at) + nbytes / self.rate

    def delay(self, now: float) -> float:
        """Seconds until the next message may pass; 0 when it may now."""
        return max(0.0, self._free_at - now)
