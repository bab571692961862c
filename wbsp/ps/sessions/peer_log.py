"""Log of events that peers cause: protocol errors are counted, and rates are limited."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from wbsp import timeouts
from wbsp.limits import one_line
from wbsp.process.throttle import Throttle
from wbsp.ps.config import Reporter

_PERIOD = 1.0  # seconds between two lines on protocol errors
AT_ONCE = 32  # lines and events of one cause; more come one a second
_STRAYS = 64  # peers without a session that may still introduce themselves
_SUMMED = 10.0  # seconds between two lines on suppressed ones


class TokenBucket:
    """Token bucket of `at_once` tokens, refilled by one a second; it protects the disk."""

    def __init__(self, at_once: int = 8):
        self._at_once = at_once
        self._used, self._since = 0.0, 0.0

    def may(self, now: float) -> bool:
        """Take a token; return False if the bucket is empty."""
        self._used, self._since = max(0.0, self._used - (now - self._since)), now
        if self._used + 1 > self._at_once:
            return False
        self._used += 1
        return True


@dataclass
class _Stray:
    """The messages of a peer without a session; `since`: time of the first."""

    since: float
    messages: int = 0
    reason: str = ""

    def adds(self, reason: str) -> None:
        """Count a message."""
        self.messages += 1
        self.reason = reason


class PeerLog:
    """Lines and events that peers cause, at a limited rate.

    Protocol errors are counted, and their number is printed. Each other cause has its own bucket;
    the number of suppressed lines is printed, too. Causes are few: a worker's index, the standby.
    `flush` must be called regularly.

    A message without a session is an error, too, unless its sender introduces itself soon: a worker
    sends such messages to a restarted server until it notices the restart.
    """

    def __init__(self, reporter: Reporter):
        self._reporter = reporter
        self._errors = 0
        self._unlogged, self._last = 0, ""
        self._strays: dict[bytes, _Stray] = {}  # by the identity of the sender's socket
        self._lines = Throttle(_PERIOD)
        self._buckets: dict[str, TokenBucket] = {}
        self._left: Counter[str] = Counter()  # cause -> number of suppressed lines and events
        self._sums = Throttle(_SUMMED)

    def count(self, reason: str, times: int = 1) -> None:
        """Count a message or connection that no correct peer makes."""
        self._errors += times
        self._unlogged += times
        self._last = one_line(reason, 200)
        self._tell_errors(at_once=False)

    def stray(self, identity: bytes, reason: str) -> None:
        """Note a message from a peer that has no session."""
        now = self._reporter.clock.now()
        stray = self._strays.get(identity)
        if stray is None and len(self._strays) < _STRAYS:
            stray = self._strays[identity] = _Stray(now)
        if stray is None:
            self.count(reason)
        else:
            stray.adds(reason)

    def introduced(self, identity: bytes) -> None:
        """Forgive the messages of a peer that has introduced itself."""
        self._strays.pop(identity, None)

    def tell(self, cause: str, text: str = "", kind: str = "", **facts: Any) -> None:
        """Print a line, log an event, or both, at the limited rate of `cause`."""
        bucket = self._buckets.setdefault(cause, TokenBucket(AT_ONCE))
        if not bucket.may(self._reporter.clock.now()):
            self._left[cause] += 1
            return
        if text:
            self._reporter.say(one_line(text))
        if kind:
            self._reporter.event(kind, **facts)

    def flush(self, at_once: bool = False) -> None:
        """Print the numbers of counted and suppressed ones since the last call."""
        since = self._reporter.clock.now() - (-math.inf if at_once else timeouts.INTRODUCED)
        for identity in [who for who, stray in self._strays.items() if stray.since <= since]:
            stray = self._strays.pop(identity)
            self.count(stray.reason, stray.messages)
        self._tell_errors(at_once)
        if self._left and (self._sums.due(self._reporter.clock.now()) or at_once):
            left, self._left = self._left, Counter()
            for cause, count in left.items():
                self._reporter.say(f"{cause}: suppressed {count:,} more lines or events")
                self._reporter.event("left_out", cause=cause, count=count)

    def _tell_errors(self, at_once: bool) -> None:
        if self._unlogged and (self._lines.due(self._reporter.clock.now()) or at_once):
            self._reporter.say(f"rejected {self._unlogged} malformed messages or connections "
                               f"({self._errors} in all); the last: {self._last}")
            self._reporter.event("malformed", count=self._unlogged, total=self._errors,
                                 reason=self._last)
            self._unlogged = 0
