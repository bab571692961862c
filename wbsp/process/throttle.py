"""Limit the rate of repeated console lines."""

from __future__ import annotations

import math


class Throttle:
    """A limit of one line in a period. The caller passes the time, of any clock.

    Attributes:
        next: earliest time of the next line.
    """

    def __init__(self, period: float, next_: float = -math.inf):
        """Start; `period`: seconds between two lines."""
        self.period, self.next = period, next_

    def due(self, now: float) -> bool:
        """Return whether to print the line now: True once in a period."""
        if now < self.next:
            return False
        self.rest(now)
        return True

    def rest(self, now: float, seconds: float = math.inf) -> None:
        """Have the next line a whole period after `now`, or `seconds` if that is less."""
        self.next = now + min(self.period, seconds)

    def woke(self, seconds: float) -> None:
        """Do not count the seconds of a suspension."""
        self.next += seconds
