"""Virtual time: events happen in the order of their times, ties in the order of their planning.

The tie rule makes a run a pure function of its inputs: equal clusters give equal events.
An event that is planned with `late` comes after all other events of its moment.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

_LATE = 1 << 62  # above the order number of every event that is not late


class Clock:
    """The virtual time `now` in seconds, and a queue of events to come; `events` counts past ones.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._order = count()

    def at(self, time: float, act: Callable[..., object], *args: object) -> None:
        """Call act(*args) at `time` (seconds, not before `now`)."""
        heappush(self._queue, (time, next(self._order), act, args))

    def after(self, delay: float, act: Callable[..., object], *args: object) -> None:
        """Call act(*args) `delay` seconds from now."""
        heappush(self._queue, (self.now + delay, next(self._order), act, args))

    def late(self, delay: float, act: Callable[..., object], *args: object) -> None:
        """Call act(*args) `delay` seconds from now, after all other events of that moment."""
        heappush(self._queue, (self.now + delay, _LATE + next(self._order), act, args))

    def run(self, until: float = float("inf")) -> bool:
        """Let all events up to and including `until` happen; True when the queue is empty."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, act, args = heappop(queue)
            self.events += 1
            act(*args)
        if queue:
            self.now = until
        return not queue


class Turns:
    """The messages of one process, which handles one after the other."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._free_at = 0.0  # when all messages that have arrived are dealt with

    def take(self, cost: float, act: Callable[..., object], *args: object) -> None:
        """Call act(*args) at once, or after the messages before; `cost`: its seconds."""
        now = self._clock.now
        if cost or self._free_at > now:
            self._free_at = max(self._free_at, now) + cost
            self._clock.at(self._free_at, act, *args)
        else:
            act(*args)
