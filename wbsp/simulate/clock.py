"""Virtual time: events happen in the order of their times, ties in the order they were planned.

The tie rule makes a run a pure function of its inputs: the same cluster gives the same events.
What is planned with `late` comes after everything else of its moment.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

_LATE = 1 << 62  # above every order number of what is not late


class Clock:
    """`now` in seconds, and what is still to happen. `events` counts what has happened."""

    def __init__(self):
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[..., object], tuple]] = []
        self._order = count()

    def at(self, time: float, act: Callable[..., object], *args: object) -> None:
        """Call act(*args) at `time` (seconds, not before `now`)."""
        heappush(self._queue, (time, next(self._order), act, args))

    def after(self, delay: float, act: Callable[..., object], *args: object) -> None:
        """Call act(*args) `delay` seconds from now."""
        heappush(self._queue, (self.now + delay, next(self._order), act, args))

    def late(self, delay: float, act: Callable[..., object], *args: object) -> None:
        """Call act(*args) `delay` seconds from now, when nothing else is left of that moment."""
        heappush(self._queue, (self.now + delay, _LATE + next(self._order), act, args))

    def run(self, until: float = float("inf")) -> bool:
        """Let everything up to and including `until` happen; True when nothing is left."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, act, args = heappop(queue)
            self.events += 1
            act(*args)
        if queue:
            self.now = until
        return not queue
