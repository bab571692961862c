"""Sets of positions of the run's work: see `wbsp.core.work_ledger`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter

from wbsp.core.messages import Span
from wbsp.limits import Count

Spans = list[tuple[Count, Count]]
_start = itemgetter(0)


class Positions:
    """A set of positions, as ranges that are apart and in order."""

    __slots__ = ("spans", "count")

    def __init__(self, spans: Iterable[Sequence[int]] = ()):
        """Make a set of spans.

        Raises:
            ValueError: a span is empty, or they overlap, touch or are out of order.
        """
        self.spans: list[Span] = [(start, stop) for start, stop in spans]
        for (_, stop), (start, _) in pairwise(self.spans):
            if start <= stop:
                raise ValueError(f"positions up to {stop - 1} and from {start} on are not apart")
        if any(start >= stop for start, stop in self.spans):
            raise ValueError("a range of positions is empty")
        self.count = sum(stop - start for start, stop in self.spans)

    def within(self, start: int, stop: int) -> list[Span]:
        """Return the parts of start ... stop - 1 that are in the set."""
        spans = self.spans
        index = max(0, bisect_right(spans, start, key=_start) - 1)
        parts = []
        while index < len(spans) and spans[index][0] < stop:
            part = max(spans[index][0], start), min(spans[index][1], stop)
            if part[0] < part[1]:
                parts.append(part)
            index += 1
        return parts

    def holds(self, start: int, stop: int) -> bool:
        """Return whether all of start ... stop - 1 is in the set."""
        return self.within(start, stop) == [(start, stop)]

    def add(self, start: int, stop: int) -> None:
        """Add start ... stop - 1, none of which is in the set."""
        spans = self.spans
        self.count += stop - start
        index = bisect_right(spans, start, key=_start)
        if index < len(spans) and spans[index][0] == stop:
            stop = spans.pop(index)[1]
        if index and spans[index - 1][1] == start:
            index -= 1
            start = spans.pop(index)[0]
        spans.insert(index, (start, stop))

    def without(self, others: Iterable[Span]) -> Positions:
        """Return this set without the positions in `others`."""
        rest = Positions(self.spans)
        for span in others:
            rest.remove(*span)
        return rest

    def with_all(self, others: Iterable[Span]) -> Positions:
        """Return this set with the positions in `others`, which may be in it, and overlap."""
        whole = Positions(self.spans)
        for span in others:
            whole.remove(*span)
            whole.add(*span)
        return whole

    def remove(self, start: int, stop: int) -> None:
        """Remove the parts of start ... stop - 1 that are in the set."""
        spans = self.spans
        for a, b in self.within(start, stop):
            index = bisect_right(spans, a, key=_start) - 1
            left, right = spans[index]
            spans[index:index + 1] = [part for part in ((left, a), (b, right)) if part[0] < part[1]]
            self.count -= b - a
