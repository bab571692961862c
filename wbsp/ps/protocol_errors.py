"""Protocol errors of peers: counted, and logged without flooding the log."""

from __future__ import annotations

import math
from collections.abc import Callable

_PERIOD = 1.0  # seconds between two lines


class ProtocolErrors:
    """Counter of protocol errors; at most one line a second is logged.

    `line` and `event` are the server's; `flush` must be called now and then.
    """

    def __init__(self, line: Callable[[str], None], event: Callable[..., None]):
        self._line, self._event = line, event
        self.total = 0
        self._unlogged, self._logged_at, self._last = 0, -math.inf, ""

    def count(self, reason: str, now: float, times: int = 1) -> None:
        self.total += times
        self._unlogged += times
        self._last = reason[:200]
        self.flush(now)

    def flush(self, now: float, at_once: bool = False) -> None:
        if self._unlogged and (at_once or now - self._logged_at >= _PERIOD):
            self._line(f"rejected {self._unlogged} malformed messages or connections "
                       f"({self.total} in all); the last: {self._last}")
            self._event("malformed", count=self._unlogged, total=self.total,
                        reason=self._last)
            self._unlogged, self._logged_at = 0, now


class TokenBucket:
    """Token bucket of `at_once` tokens, refilled by one a second: strangers must not fill the disk.
    """

    def __init__(self, at_once: int = 8):
        self._at_once = at_once
        self._used, self._since = 0.0, 0.0

    def may(self, now: float) -> bool:
        """Take a token; False if there is none."""
        self._used, self._since = max(0.0, self._used - (now - self._since)), now
        if self._used + 1 > self._at_once:
            return False
        self._used += 1
        return True
