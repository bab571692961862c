"""Counts what no correct peer sends, and says so without flooding the log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

_PERIOD = 1.0  # seconds between two lines


class Rejections:
    """`count` every rejection, `flush` now and then; at most one line a second is logged."""

    def __init__(self, line: Callable[[str], None], event: Callable[..., None]):
        self._line, self._event = line, event
        self.reasons: Counter[str] = Counter()
        self._unlogged, self._logged_at, self._last = 0, -math.inf, ""

    @property
    def total(self) -> int:
        return sum(self.reasons.values())

    def count(self, reason: str, now: float, times: int = 1) -> None:
        self.reasons[reason.partition(":")[0][:60]] += times
        self._unlogged += times
        self._last = reason[:200]
        self.flush(now)

    def flush(self, now: float) -> None:
        if self._unlogged and now - self._logged_at >= _PERIOD:
            self._line(f"rejected {self._unlogged} malformed messages ({self.total} in all); "
                       f"the last: {self._last}")
            self._event(now, "malformed", count=self._unlogged, total=self.total,
                        reason=self._last)
            self._unlogged, self._logged_at = 0, now
