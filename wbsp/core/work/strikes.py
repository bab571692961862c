"""Whose fault a push is that was not finite: its examples', or its worker's. No I/O, no clocks.

A worker whose optimizer holds NaN spoils every push, whatever its examples; an example that makes
NaN spoils every push that it is in, whoever trains it. So a push that was not finite is *doubted*
until its worker has pushed something finite since, which shows that the worker is sound. An example
is given up only if it was in such pushes of two workers, none of them doubted, or in three of one
worker and in some of every other. A worker gets such an example again only while no other can try
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from msgspec import Meta

from wbsp.core.messages import Span
from wbsp.core.work.positions import Positions, Spans
from wbsp.limits import Count, Worker

STRIKES = 3  # pushes of one worker that were not finite


@dataclass
class StruckState:
    """Positions that were in pushes of one worker that were not finite: see `Strikes`.

    Attributes:
        times: in one or more; in two or more; in three or more.
        doubted: in one since its newest finite push.
    """

    times: Annotated[list[Spans], Meta(min_length=STRIKES, max_length=STRIKES)]
    doubted: Spans = field(default_factory=list)


class _Struck:
    def __init__(self, state: StruckState | None = None):
        """Start, or resume. Raises ValueError: no pushes can have had these positions."""
        self.times = [Positions(spans) for spans in state.times] if state else [
            Positions() for _ in range(STRIKES)]
        self.doubted = Positions(state.doubted if state else ())
        for more, fewer in (*pairwise(self.times), (self.once, self.doubted)):
            if fewer.without(more.spans).count:
                raise ValueError("positions were in several pushes that were not finite, or in "
                                 "doubted ones, and in none")

    @property
    def once(self) -> Positions:
        return self.times[0]

    def count(self, spans: Sequence[Span]) -> None:
        """Count a push that was not finite."""
        self.doubted = self.doubted.with_all(spans)
        for level in self.times:
            again = level.common(spans)
            level.add_all(spans)
            spans = again

    def sound(self) -> list[Span]:
        """Clear the doubted positions, and return them."""
        spans, self.doubted = self.doubted.spans, Positions()
        return spans

    def forgive(self) -> None:
        """Forget the doubted pushes."""
        for level in self.times:
            level.remove_all(self.doubted.spans)
        self.doubted = Positions()

    def sure(self, spans: Sequence[Span]) -> list[Span]:
        """Return the parts that were in pushes that are not doubted."""
        return Positions(self.once.common(spans)).without(self.doubted.common(spans)).spans


class Strikes:
    """Which examples were in pushes that were not finite, and on which workers."""

    def __init__(self, state: dict[int, StruckState] | None = None):
        """Start, or resume.

        Raises:
            ValueError: the state is invalid.
        """
        self._of = {worker: _Struck(one) for worker, one in (state or {}).items()}

    def __bool__(self) -> bool:
        return bool(self._of)

    def of(self, worker: int) -> Positions | None:
        """Return the positions in this worker's pushes that were not finite; None: no such push."""
        mine = self._of.get(worker)
        return None if mine is None else mine.once

    def doubted(self, worker: int) -> list[Span]:
        """Return the positions in doubted pushes of this worker."""
        mine = self._of.get(worker)
        return [] if mine is None else mine.doubted.spans

    def doubting(self, spans: Iterable[Span]) -> list[int]:
        """Return the workers that have doubted pushes with any of these positions."""
        return [worker for worker, mine in self._of.items()
                if any(mine.doubted.within(*span) for span in spans)]

    def count(self, worker: int, spans: Iterable[Span]) -> None:
        """Count a push that was not finite."""
        self._of.setdefault(worker, _Struck()).count(list(spans))

    def sound(self, worker: int) -> list[Span]:
        """Note a finite push; return the positions that are doubted no longer."""
        mine = self._of.get(worker)
        return [] if mine is None else mine.sound()

    def forgive(self, worker: int) -> None:
        """Forget a worker's doubted pushes: the worker was at fault, or has a new process."""
        if mine := self._of.get(worker):
            mine.forgive()
            self._tidy()

    def guilty(self, suspects: Iterable[Span], present: Iterable[int]) -> list[Span]:
        """Return the parts to give up; `present`: the workers that can train them."""
        spans = Positions().with_all(suspects).spans
        met, found, often = Positions(), Positions(), Positions()
        for mine in self._of.values():
            sure = mine.sure(spans)
            found.add_all(met.common(sure))
            met.add_all(sure)
            often.add_all(mine.times[-1].common(spans))
        for worker in present if often.count else ():
            known = self.of(worker)
            often = Positions(() if known is None else known.common(often.spans))
        return found.with_all(often.spans).spans

    def clear(self, spans: Sequence[Span]) -> None:
        """Forget positions that are done."""
        for mine in self._of.values():
            for positions in (*mine.times, mine.doubted):
                positions.remove_all(spans)
        self._tidy()

    def state(self) -> dict[int, StruckState]:
        """Return the state to resume from."""
        return {worker: StruckState([list(level.spans) for level in mine.times],
                                    list(mine.doubted.spans))
                for worker, mine in self._of.items()}

    def _tidy(self) -> None:
        self._of = {worker: mine for worker, mine in self._of.items() if mine.once.count}


@dataclass
class Doubt:
    """A worker whose newest pushes were not finite.

    Attributes:
        renewed: pushes of disjoint examples, each made from a sound model.
        stuck: pushes from a model that was not, while no newer version existed to replace it.
        base: version that the newest of `renewed` was made from.
        alone: no other worker has pushed anything finite since the first.
    """

    renewed: Count = 0
    stuck: Count = 0
    base: Count = 0
    alone: bool = True

    def another_is_sound(self) -> None:
        self.alone = False

    def count(self, base: int, fresh: bool, new: bool, newest: int) -> None:
        """Count a push; arguments as for `Health.unfit`."""
        if fresh:
            self.renewed += new
            self.base = base
        elif base >= newest:
            self.stuck += 1

    def pardon(self) -> None:
        """Count a push no longer."""
        self.renewed = max(0, self.renewed - 1)


_STUCK = 10  # pushes of a worker that no version can renew, until they count


class Health:
    """Which workers are sick: their newest pushes were not finite, whatever their examples.

    A model that is not finite stays so until a version replaces it. So only a push that was made
    from another version than the one before is a sign, of the worker or of its examples.
    """

    def __init__(self, state: dict[Worker, Doubt] | None = None):
        self.doubts: dict[int, Doubt] = dict(state or {})

    def finite(self, worker: int) -> None:
        """Note a finite push."""
        self.doubts.pop(worker, None)
        for doubt in self.doubts.values():
            doubt.another_is_sound()

    def fresh(self, worker: int, base: int, returns: bool) -> bool:
        """Return whether a push that was not finite was made from a sound model.

        Args:
            worker: index of the worker.
            base: version that it was made from.
            returns: the worker's model is replaced after each push.
        """
        doubt = self.doubts.get(worker)
        return doubt is None or returns or base > doubt.base

    def stuck(self, worker: int) -> bool:
        """Return whether no version renews this worker's model for too long."""
        doubt = self.doubts.get(worker)
        return doubt is not None and doubt.stuck >= _STUCK

    def unfit(self, worker: int, base: int, fresh: bool, new: bool, newest: int) -> None:
        """Note a push that was not finite.

        Args:
            worker: index of the worker.
            base: version that it was made from.
            fresh: the answer of `fresh`: it was made from a sound model.
            new: since the worker's newest finite push, none with these examples was not finite.
            newest: version when it came.
        """
        self.doubts.setdefault(worker, Doubt()).count(base, fresh, new, newest)

    def pardon(self, worker: int) -> None:
        """Note that the examples of a push of this worker were at fault."""
        if doubt := self.doubts.get(worker):
            doubt.pardon()

    def left(self, worker: int) -> None:
        """Forget a worker that has left, or is another process now."""
        self.doubts.pop(worker, None)

    def sick(self, here: Iterable[int]) -> list[int]:
        """Return the sick workers: those that were sick while another was sound, or else all of the
        present workers if every one is sick."""
        if not self.doubts:
            return []
        sick = [worker for worker, doubt in self.doubts.items() if doubt.renewed >= STRIKES]
        away = [worker for worker in sick if not self.doubts[worker].alone]
        if away:
            return sorted(away)
        hopeless = {*sick, *(worker for worker, doubt in self.doubts.items()
                             if doubt.renewed + doubt.stuck >= _STUCK)}
        here = [*here]
        return sorted(here) if here and hopeless.issuperset(here) else []
