"""Lines that are said once in so many seconds, however often there is reason for them."""

from __future__ import annotations

import math


class Throttle:
    """Says when it is time for the next line. The caller brings the time, of whatever clock it has.

    next: time from which on the next line may be said
    """

    def __init__(self, period: float, next_: float = -math.inf):
        """`period`: seconds between two lines."""
        self.period, self.next = period, next_

    def due(self, now: float) -> bool:
        """True once in a period: the line is to be said now."""
        if now < self.next:
            return False
        self.rest(now)
        return True

    def rest(self, now: float) -> None:
        """Let the next line be due a whole period after `now`."""
        self.next = now + self.period
