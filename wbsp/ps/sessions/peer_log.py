"""What peers cause, for the log: protocol errors are counted, and no peer floods it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from wbsp.limits import one_line
from wbsp.process.throttle import Throttle

_PERIOD = 1.0  # seconds between two lines
AT_ONCE = 32  # lines and events of one cause; more come one a second
_SUMMED = 10.0  # the same on what was left out


class ProtocolErrors:
    """Counter of protocol errors; at most one line a second is logged.

    `line` and `event` are the server's; `flush` must be called now and then.
    """

    def __init__(self, line: Callable[[str], None], event: Callable[..., None]):
        self._line, self._event = line, event
        self.total = 0
        self._unlogged, self._last = 0, ""
        self._lines = Throttle(_PERIOD)

    def count(self, reason: str, now: float, times: int = 1) -> None:
        self.total += times
        self._unlogged += times
        self._last = one_line(reason, 200)
        self.flush(now)

    def flush(self, now: float, at_once: bool = False) -> None:
        if self._unlogged and (self._lines.due(now) or at_once):
            self._line(f"rejected {self._unlogged} malformed messages or connections "
                       f"({self.total} in all); the last: {self._last}")
            self._event("malformed", count=self._unlogged, total=self.total,
                        reason=self._last)
            self._unlogged = 0


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


class PeerLog:
    """Lines and events that peers bring about: each in one line, and not without end.

    Each cause has a bucket of its own. What it leaves out is counted, and that is said now and
    then. Causes are few: a worker's index, the standby. `line` and `event` are the server's, and
    `clock` its own time; `flush` must be called now and then.
    """

    def __init__(self, line: Callable[[str], None], event: Callable[..., None],
                 clock: Callable[[], float]):
        self._line, self._event, self._clock = line, event, clock
        self._buckets: dict[str, TokenBucket] = {}
        self._left: Counter[str] = Counter()  # cause -> what was left out
        self._sums = Throttle(_SUMMED)

    def tell(self, cause: str, text: str = "", kind: str = "", **facts: Any) -> None:
        """Print a line and log an event, or one of these, on what `cause` names."""
        if self._buckets.setdefault(cause, TokenBucket(AT_ONCE)).may(self._clock()):
            if text:
                self._line(one_line(text))
            if kind:
                self._event(kind, **facts)
        else:
            self._left[cause] += 1

    def flush(self, at_once: bool = False) -> None:
        """Say how much was left out since the last time."""
        now = self._clock()
        if self._left and (self._sums.due(now) or at_once):
            left, self._left = self._left, Counter()
            for cause, count in left.items():
                self._line(f"{cause}: {count:,} more of such lines or events were left out")
                self._event("left_out", cause=cause, count=count)
