"""Sets of positions of the run's work: see `wbsp.core.work_ledger`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter

from wbsp.core.messages import Span
from wbsp.core.rules import RuleBroken
from wbsp.limits import Position

Spans = list[Span]
_start = itemgetter(0)
_FEW = 16  # ranges that are looked up one by one; a merge costs as much as the set is long


class Positions:
    """A set of positions, as ranges that are apart and in order."""

    __slots__ = ("spans", "count")

    def __init__(self, spans: Iterable[Sequence[int]] = ()):
        """Make a set of spans.

        Raises:
            ValueError: a span is empty, or they overlap, touch or are out of order.
        """
        self.spans: list[Span] = [(Position(start), Position(stop)) for start, stop in spans]
        for (_, stop), (start, _) in pairwise(self.spans):
            if start <= stop:
                raise ValueError(f"positions up to {stop - 1} and from {start} on are not apart")
        if any(start >= stop for start, stop in self.spans):
            raise ValueError("a range of positions is empty")
        self.count = sum(stop - start for start, stop in self.spans)

    def within(self, start: Position, stop: Position) -> list[Span]:
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

    def holds(self, start: Position, stop: Position) -> bool:
        """Return whether all of start ... stop - 1 is in the set."""
        return self.within(start, stop) == [(start, stop)]

    def add(self, start: Position, stop: Position) -> None:
        """Add start ... stop - 1, none of which is in the set.

        Raises:
            RuleBroken: some are in it, or the range is empty.
        """
        spans = self.spans
        index = bisect_right(spans, start, key=_start)
        if start >= stop or (index and spans[index - 1][1] > start) or (
                index < len(spans) and spans[index][0] < stop):
            raise RuleBroken(f"positions {start} ... {stop - 1} are added to a set that has some "
                             "of them")
        self.count += stop - start
        if index < len(spans) and spans[index][0] == stop:
            stop = spans.pop(index)[1]
        if index and spans[index - 1][1] == start:
            index -= 1
            start = spans.pop(index)[0]
        spans.insert(index, (start, stop))

    def common(self, spans: Iterable[Span]) -> list[Span]:
        """Return the parts of these spans that are in the set."""
        return [part for span in spans for part in self.within(*span)]

    def add_all(self, others: Iterable[Span]) -> None:
        """Add the positions in `others`, which may be in the set, and overlap."""
        others = list(others)
        if len(others) < _FEW:
            for start, stop in others:
                if start < stop:
                    self.remove(start, stop)
                    self.add(start, stop)
            return
        self.spans = _merged([*self.spans, *others])
        self.count = sum(stop - start for start, stop in self.spans)

    def remove_all(self, others: Iterable[Span]) -> None:
        """Remove the positions in `others`, which may be outside the set, and overlap."""
        others = list(others)
        if len(others) < _FEW:
            for span in others:
                self.remove(*span)
            return
        gone, place = _merged(others), 0
        spans: list[Span] = []
        for start, stop in self.spans:
            while place < len(gone) and gone[place][1] <= start:
                place += 1
            at = place
            while at < len(gone) and gone[at][0] < stop:
                if start < gone[at][0]:
                    spans.append((start, gone[at][0]))
                start = gone[at][1]
                at += 1
            if start < stop:
                spans.append((start, stop))
            place = max(place, at - 1)
        self.spans = spans
        self.count = sum(stop - start for start, stop in spans)

    def without(self, others: Iterable[Span]) -> Positions:
        """Return this set without the positions in `others`, which may overlap."""
        rest = self._copy()
        rest.remove_all(others)
        return rest

    def with_all(self, others: Iterable[Span]) -> Positions:
        """Return this set with the positions in `others`, which may be in it, and overlap."""
        whole = self._copy()
        whole.add_all(others)
        return whole

    def _copy(self) -> Positions:
        """Return an equal set."""
        other = Positions()
        other.spans, other.count = [*self.spans], self.count
        return other

    def remove(self, start: Position, stop: Position) -> None:
        """Remove the parts of start ... stop - 1 that are in the set."""
        spans = self.spans
        first = bisect_right(spans, start, key=_start)
        if first and spans[first - 1][1] > start:
            first -= 1
        last = bisect_left(spans, stop, first, key=_start)
        met = spans[first:last]
        if met:
            self.count -= sum(min(b, stop) - max(a, start) for a, b in met)
            spans[first:last] = [part for part in ((met[0][0], start), (stop, met[-1][1]))
                                 if part[0] < part[1]]


def _merged(spans: list[Span]) -> list[Span]:
    """Return spans, which may overlap, as ranges that are apart and in order."""
    spans.sort()  # of two sorted lists, one behind the other, a merge
    merged: list[Span] = []
    for start, stop in spans:
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            start, last = merged.pop()
            stop = max(stop, last)
        merged.append((start, stop))
    return merged
