"""The ledger of a run's shared data: the push that trains each example. No I/O, clocks or tensors.

The run's work is one stream of epochs * n positions. Position g is example g % n in the order of
epoch g // n (`wbsp.core.permutation`); workers compute it, and the server has no data. Each worker
has a *sequence*: the ranges that it was given, one behind the other, counted in examples (`at`). A
push carries its end in the worker's sequence (`to`). A site's push ends nowhere in its sequence,
because the site's workers train in any order: it carries its positions. Every position is in one
state:

    free   not given; or returned, because its worker was lost or its push was rejected
    held   in a worker's sequence, and not answered
    done   in an accepted push, and so in the model; or given up

Positions move free -> held (`give`), held -> done or free (`settle`), held -> free (`lost`), and
stay done. Positions that are free or held are *undone*.

The state is saved together with a version, and its done positions are those of the version. A
server that resumes from it takes all others as free. Before it hands out work, its workers report
what an earlier server had accepted since (`resent`) and what they hold (`claim`). An accepted
position takes precedence over one that another worker only holds: the push of that worker contains
positions that it does not own (`owns`), and is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from wbsp.core.messages import Range, SharedData, Span
from wbsp.core.permutation import examples_at
from wbsp.core.rules import RuleBroken
from wbsp.core.work.positions import Positions, Spans
from wbsp.core.work.strikes import Strikes, StruckState
from wbsp.limits import SPANS, Offset, Position, Worker

# Limits of the search for common examples of two pushes, in positions and epochs of each: the
# search must stay cheap, and this part of a push is enough.
_COMPARED, _EPOCHS = 1 << 17, 64
NOWHERE = Offset(-1)  # of a range that answers no request
NOT_OWN = "its examples were given to others"  # the reason of a rejection


class _Held(NamedTuple):
    """A range in a worker's sequence.

    own=False: its positions belong to another worker, or are done; a push with any of them is
    rejected.
    """

    at: Offset
    start: Position
    stop: Position
    own: bool = True

    @property
    def range(self) -> Range:
        return Range(self.at, self.start, self.stop)

    def part(self, start: Position, stop: Position, own: bool) -> _Held:
        return _Held(Offset(self.at + start - self.start), start, stop, own)

    def parted(self, own: Positions) -> Iterator[_Held]:
        """Split this range; its holder owns the parts in `own`."""
        place = self.start
        for start, stop in own.within(self.start, self.stop):
            if place < start:
                yield self.part(place, start, False)
            yield self.part(start, stop, True)
            place = stop
        if place < self.stop:
            yield self.part(place, self.stop, False)


@dataclass(slots=True)
class _Holder:
    """One worker: its sequence is answered up to `done`; `held` is the rest, up to `end`.

    For a site, `held` contains only its own ranges and may have gaps; `done` is unused. A part of
    the site's newest range may be settled although the site lacks the message that gives it: the
    site may have had that part before.
    """

    done: Offset = Offset(0)
    end: Offset = Offset(0)
    held: list[_Held] = field(default_factory=list)
    newest: Range | None = None  # the newest given range, if this is a site

    def begin(self) -> Offset:
        """Begin a sequence behind the last one; return its start."""
        self.done = self.end
        return self.end

    def give(self, start: Position, stop: Position) -> Range:
        """Add positions to the sequence; return their range."""
        given = Range(self.end, start, stop)
        self.held.append(_Held(*given))
        self.end = given.end
        self.newest = self.newest and given
        return given

    def settle(self, to: Offset) -> None:
        """Keep the part of the sequence after `to`."""
        self.held, self.done = [*_behind(self.held, to)], to

    def settle_all(self, pushed: Positions) -> list[Span]:
        """Keep the positions that are not in a site's push; return the held ones that are."""
        if self.newest is None and self.held:
            self.newest = self.held[-1].range
        own: list[Span] = []
        held: list[_Held] = []
        for r in self.held:
            for part in r.parted(pushed) if r.own else (r,):  # own: it is in the push
                if part.own:
                    own.append((part.start, part.stop))
                else:
                    held.append(part._replace(own=r.own))
        self.held = held
        return own

    def own_only(self, own: Positions) -> None:
        """Disown held positions that are not in `own`."""
        if any(r.own and not own.holds(r.start, r.stop) for r in self.held):
            self.held = [part for r in self.held for part in (r.parted(own) if r.own else [r])]

    def release(self) -> None:
        """Hold nothing."""
        self.held = []

    def claim(self, answered: Offset, held: Iterable[_Held], free: Positions) -> Iterator[Range]:
        """Hold these ranges after `answered`, and own their free parts; yield the ranges."""
        self.done = self.end = max(self.done, answered)
        for r in _behind(held, self.done):
            self.held += r.parted(free)
            self.end = r.range.end
            yield r.range

    def claim_all(self, end: Offset, spans: Iterable[Span], epoch: int) -> None:
        """Hold these positions of a site.

        Args:
            end: end of the site's sequence.
            spans: the positions.
            epoch: examples of an epoch.
        """
        for start, stop in spans:
            edges = [start, *map(Position, range(start // epoch * epoch + epoch, stop, epoch)),
                     stop]
            self.held += [_Held(NOWHERE, a, b) for a, b in pairwise(edges)]
        self.done = self.end = end
        self.newest = Range(NOWHERE, Position(0), Position(0))


@dataclass
class WorkState:
    """The state to resume from, together with the version of the same moment.

    Attributes:
        sequences: worker -> end of the answered part of its sequence, and its end.
        given_up: positions in too many pushes that were not finite.
        struck: worker -> positions in its pushes that were not finite.
        strikes: the same in files of an earlier release, which recorded no worker; the positions of
            the last entry were given up.
    """

    data: SharedData
    undone: Spans
    sequences: dict[Worker, tuple[Offset, Offset]]
    given_up: Spans = field(default_factory=list)
    struck: dict[Worker, StruckState] = field(default_factory=dict)
    strikes: list[Spans] = field(default_factory=list)


class WorkLedger:
    """The ledger that the head of this file describes; used by one thread.

    Attributes:
        pardoned: workers with a push that was not finite because of what the newest call of
            `settle` or `settle_all` has given up.
    """

    def __init__(self, data: SharedData, state: WorkState | None = None):
        """Start, or resume from a `state` of the same data.

        Raises:
            ValueError: the state is invalid.
        """
        self.data = data
        total = data.epochs * data.n
        self.undone = Positions([(Position(0), Position(total))] if state is None else state.undone)
        self.free = Positions(self.undone.spans)
        self._given_up, self._strikes = Positions(), Strikes()
        self.pardoned: list[int] = []
        self._present: set[int] = set()  # workers that train
        self._holders: dict[int, _Holder] = {}
        if state is not None:
            self._given_up = Positions(state.strikes[-1] if state.strikes else state.given_up)
            self._strikes = Strikes(state.struck)
            self._holders = {worker: _Holder(*ends) for worker, ends in state.sequences.items()}
        if (self.undone.spans and self.undone.spans[-1][1] > total) or any(
                holder.done > holder.end for holder in self._holders.values()):
            raise ValueError(f"its work is not that of {data.epochs} epochs of {data.n} examples")

    @property
    def epoch(self) -> int:
        """Number of complete epochs: those before the first undone position."""
        return self.undone.spans[0][0] // self.data.n if self.undone.spans else self.data.epochs

    @property
    def begun(self) -> int:
        """Number of epochs of which any position was given, or may be: those that the run has."""
        total, spans = self.data.epochs * self.data.n, self.free.spans
        rest = spans[-1][0] if spans and spans[-1][1] == total else total
        return -(-rest // self.data.n)

    @property
    def over(self) -> bool:
        return not self.undone.spans

    @property
    def done(self) -> int:
        """Number of positions of the run that are done."""
        return self.data.epochs * self.data.n - self.undone.count

    @property
    def given_up(self) -> int:
        """Examples that were in too many pushes that were not finite, counted once an epoch."""
        return self._given_up.count

    @property
    def hopeless(self) -> bool:
        """Whether all examples were given up."""
        return self._given_up.count == self.data.epochs * self.data.n

    @property
    def gives(self) -> bool:
        """Whether there is something to give now: it is free and, where epochs do not overlap, of
        the first one that is not complete."""
        spans = self.free.spans
        return bool(spans) and (self.data.validate == "newest"
                                or spans[0][0] // self.data.n == self.epoch)

    def left(self) -> int:
        """Positions that are free in the epoch of the first free one."""
        if not self.free.spans:
            return 0
        epoch = self.free.spans[0][0] // self.data.n
        return sum(b - a for a, b in self.free.within(*self._span_of(epoch)))

    def rest(self) -> int:
        """Positions that are undone; where epochs do not overlap, of the first incomplete one."""
        if self.data.validate == "newest":
            return self.undone.count
        return sum(b - a for a, b in self.undone.within(*self._span_of(self.epoch)))

    def extend(self, epochs: int) -> None:
        """Raise the run's number of epochs.

        Raises:
            ValueError: the run has more; one line.
        """
        n, before = self.data.n, self.data.epochs
        if epochs == before:
            return
        if epochs < before:
            raise ValueError(f"--epochs={epochs}: the run to resume has {before}; give "
                             "as many, or more")
        self.data = self.data._replace(epochs=epochs)
        for positions in (self.free, self.undone):
            positions.add(Position(before * n), Position(epochs * n))

    def _span_of(self, epoch: int) -> Span:
        return Position(epoch * self.data.n), Position((epoch + 1) * self.data.n)

    def open(self, worker: int) -> Offset:
        """Admit a process as `worker`; return the start of its sequence."""
        self.withdraw(worker)
        self._present.add(worker)
        self._strikes.forgive(worker)
        return self._holders[worker].begin()

    def held(self, worker: int) -> int:
        """Return the number of examples that this worker holds."""
        return sum(r.stop - r.start for r in self._holders[worker].held)

    def owns_some(self, worker: int) -> bool:
        """Return whether this worker holds examples that no other has been given since."""
        return worker in self._holders and any(r.own for r in self._holders[worker].held)

    def steps(self, worker: int, batch: int) -> int:
        """Return the steps of `batch` examples in which this worker trains what it holds."""
        return sum(-(-(r.stop - r.start) // batch) for r in self._holders[worker].held)

    def known(self, worker: int, have: Offset) -> Range | None:
        """Return the range behind offset `have` that this worker was given before, if any.

        It answers a repeated request. None: the range was answered, too.

        Raises:
            ValueError: no worker can be at `have`.
        """
        holder = self._holders[worker]
        if have > holder.end:
            raise ValueError(f"worker {worker} has work up to {have}, and was given {holder.end}")
        if holder.newest is not None and holder.newest.at == have:
            return holder.newest
        return next((r.range for r in holder.held if r.at == have), None)

    def gives_from(self, worker: int, have: Offset) -> bool:
        """Return whether this worker's sequence ends at `have`, so that it can be extended."""
        return self._holders[worker].end == have

    def give(self, worker: int, size: int, across: bool = False, others: Iterable[int] = ()
             ) -> Range | None:
        """Give a worker up to `size` positions; None: none can be given to it now.

        They are of one epoch, unless `across`: to a site, where epochs overlap.

        Args:
            worker: index of the worker.
            size: number of positions, at most.
            across: see above.
            others: workers that may train, too: what was not finite on this one is for them.
        """
        found = self._first(worker, others) if self.gives else None
        if found is None:
            return None
        n = self.data.n
        start, stop = found
        if not (across and self.data.validate == "newest"):
            stop = min(stop, Position(start // n * n + n))
        given = self._holders[worker].give(start, min(stop, Position(start + max(1, size))))
        self.free.remove(given.start, given.stop)
        return given

    def _first(self, worker: int, others: Iterable[int]) -> Span | None:
        """Return the free positions that this worker trains first, if any.

        Those that were not finite on it come last in their epoch, and only if no other worker can
        try them.
        """
        struck = self._strikes.of(worker)
        if struck is None:
            return self.free.spans[0]
        n = self.data.n
        end = self.free.spans[0][0] // n * n + n
        tried: list[Span] = []
        later: Span | None = None
        for span in self.free.spans:
            tried += [part for part in struck.within(*span) if part[0] < end]
            for part in Positions([span]).without(struck.within(*span)).spans:
                if part[0] < end:
                    return part
                later = later or part
        rest = [other for other in others if other != worker]
        for part in tried:
            if all((known := self._strikes.of(other)) is not None and known.holds(*part)
                   for other in rest):
                return part
        return later if self.data.validate == "newest" else None

    def owns(self, worker: int, to: Offset) -> bool:
        """Return whether a push up to `to` may be accepted.

        Raises:
            ValueError: no worker can have come so far.
        """
        holder = self._holders[worker]
        if not holder.done <= to <= holder.end:
            raise ValueError(f"worker {worker} came to {to} in its work, but has {holder.done} to "
                             f"{holder.end}")
        return all(r.own for r in holder.held if r.at < to)

    def examples(self, worker: int, dropped: Offset | None, to: Offset) -> int:
        """Return the number of examples in a push up to `to`; `dropped`: as in `Push`."""
        return to - max(self._holders[worker].done, dropped or 0)

    def pushed(self, worker: int, to: Offset) -> list[Span]:
        """Return the positions that a worker owns in its push up to `to`."""
        return [(r.start, min(r.stop, r.range.position(to))) for r in self._holders[worker].held
                if r.own and r.at < to]

    def settle(self, worker: int, to: Offset, accepted: bool, finite: bool | None = None
               ) -> list[Span]:
        """Settle the push up to `to`; return the positions that are given up now.

        Args:
            worker: index of the worker.
            to: end of the push in its sequence.
            accepted: the decision.
            finite: its values were finite; None: not known, or without meaning for the worker.
        """
        spans = self.pushed(worker, to)
        self._holders[worker].settle(to)
        return self._answered(worker, spans, accepted, finite)

    def _answered(self, worker: int, spans: list[Span], accepted: bool, finite: bool | None
                  ) -> list[Span]:
        """Note an answered push of these positions; return those that are given up now.

        Raises:
            RuleBroken: some of them are not held: they are free, or done.
        """
        for start, stop in spans:
            if not self.undone.holds(start, stop) or self.free.within(start, stop):
                raise RuleBroken(f"a push of worker {worker} settles positions {start} ... "
                                 f"{stop - 1}, which are free or done: only held ones are settled")
        self.pardoned = []
        if accepted:
            self.undone.remove_all(spans)
        else:
            self.free.add_all(spans)
        strikes, suspects = self._strikes, list(spans)
        if finite is False:
            strikes.count(worker, spans)
        elif finite:
            suspects += strikes.sound(worker)
        if not strikes:
            return []
        if accepted:
            strikes.clear(spans)
        given_up = self.free.common(strikes.guilty(suspects, self._present))
        self.free.remove_all(given_up)
        self.undone.remove_all(given_up)
        self._given_up.add_all(given_up)
        self.pardoned = strikes.doubting(given_up)
        strikes.clear(given_up)
        return given_up

    def doubts(self, worker: int, spans: Sequence[Span]) -> bool:
        """Return whether a push of this worker with one of these examples, in any epoch, was not
        finite, and none of its pushes since then was finite."""
        doubted = self._strikes.doubted(worker)
        if not doubted or not spans:
            return False
        if any(self._is_epoch(*span) for span in (*doubted, *spans)):
            return True
        return bool(np.isin(self._examples(spans), self._examples(doubted)).any())

    def _is_epoch(self, start: int, stop: int) -> bool:
        """Return whether a span has all examples, of one epoch or the other."""
        return stop - start >= self.data.n

    def _examples(self, spans: Iterable[Span]) -> np.ndarray:
        """Return the first examples in these spans, none of which is longer than an epoch."""
        n, left = self.data.n, _COMPARED
        places: dict[int, list[np.ndarray]] = {}
        for start, stop in spans:
            for epoch in range(start // n, (stop - 1) // n + 1):
                first, last = max(start - epoch * n, 0), min(stop - epoch * n, n)
                last = min(last, first + left)
                places.setdefault(epoch, []).append(np.arange(first, last, dtype=np.uint64))
                left -= last - first
            if left <= 0 or len(places) >= _EPOCHS:
                break
        return np.concatenate([examples_at(np.concatenate(parts), epoch, n, self.data.seed)
                               for epoch, parts in places.items()])

    def forgive(self, worker: int) -> None:
        """Forget the pushes of a sick worker: its examples are not at fault."""
        self._strikes.forgive(worker)

    def owns_all(self, worker: int, spans: Sequence[Span]) -> bool:
        """Return whether a site's push of these positions may be accepted.

        Raises:
            ValueError: no site can have made the push.
        """
        self._check(worker, spans)
        mine = Positions().with_all((r.start, r.stop) for r in self._holders[worker].held if r.own)
        rest = mine.without(spans)
        if len(rest.spans) > SPANS:
            raise ValueError(f"the push of site {worker} leaves it with more than {SPANS:,} ranges "
                             "of examples")
        return mine.count - rest.count == sum(stop - start for start, stop in spans)

    def settle_all(self, worker: int, spans: Sequence[Span], accepted: bool,
                   finite: bool | None = None) -> list[Span]:
        """Settle a site's push of these positions; as `settle`."""
        own = self._holders[worker].settle_all(Positions().with_all(spans))
        return self._answered(worker, own, accepted, finite)

    def claim_all(self, worker: int, end: Offset, spans: Sequence[Span]) -> list[Span]:
        """Readmit a site; return the positions that it holds now.

        Args:
            worker: index of the site.
            end: of its sequence.
            spans: positions that it was given, and whose pushes are not answered.

        Raises:
            ValueError: no site can hold these positions.
        """
        self._check(worker, spans)
        self.withdraw(worker)
        self._present.add(worker)
        own = self.free.common(spans)
        self.free.remove_all(own)
        self._holders[worker].claim_all(end, own, self.data.n)
        return own

    def _check(self, worker: int, spans: Sequence[Span]) -> None:
        """Raise ValueError for positions that cannot be."""
        end = 0
        for start, stop in spans:
            if not end <= start < stop <= self.data.epochs * self.data.n:
                raise ValueError(f"site {worker} names positions {start} ... {stop - 1}, which "
                                 f"cannot be: there are {self.data.epochs * self.data.n}, each "
                                 "once")
            end = stop

    def lost(self, worker: int) -> None:
        """Free what a worker holds that is lost or leaves."""
        self._present.discard(worker)
        self.withdraw(worker)

    def withdraw(self, worker: int) -> None:
        """Free what a worker holds."""
        holder = self._holders.setdefault(worker, _Holder())
        self._free_held(holder)
        holder.release()

    def take_back(self, worker: int) -> None:
        """Free what a worker holds, and will train too late; its push is then rejected."""
        holder = self._holders[worker]
        self._free_held(holder)
        holder.own_only(Positions())

    def end(self, worker: int) -> Offset:
        """Return the end of a worker's sequence."""
        return self._holders[worker].end

    def _free_held(self, holder: _Holder) -> None:
        self.free.add_all((r.start, r.stop) for r in holder.held if r.own)

    def resent(self, accepted: Iterable[Sequence[int]]) -> bool:
        """Handle the positions of a resent sum, which an earlier server had accepted.

        Returns:
            False if the sum is void because other workers have done a part of it: it must not be
            added, and its other positions are free.

        Raises:
            ValueError: no server can have accepted these positions.
        """
        news = sorted((Position(start), Position(stop)) for start, stop in accepted)
        end = 0
        for start, stop in news:
            if not end <= start < stop <= self.data.epochs * self.data.n:
                raise ValueError(f"positions {start} ... {stop - 1} cannot be: there are "
                                 f"{self.data.epochs * self.data.n}, each once")
            end = stop
        if not all(self.undone.holds(*span) for span in news):
            return False
        self.free.remove_all(news)
        self.undone.remove_all(news)
        self._own_undone()
        return True

    def _own_undone(self) -> None:
        """Disown done positions at all workers."""
        for holder in self._holders.values():
            holder.own_only(self.undone)

    def claim(self, worker: int, answered: Offset, held: Iterable[Range]) -> None:
        """Readmit a worker whose server was restarted or had dropped it.

        Args:
            worker: index of the worker.
            answered: end of the answered part of its sequence.
            held: the ranges behind that.

        Raises:
            ValueError: no worker can hold these ranges.
        """
        mine = [_Held(*r) for r in held]  # a position twice if it returned to this worker
        place, n = answered, self.data.n
        for r in mine:
            if not (r.at == place and r.start < r.stop <= self.data.epochs * n
                    and r.start // n == (r.stop - 1) // n):
                raise ValueError(f"worker {worker} holds {r.start} ... {r.stop - 1} at {r.at}, "
                                 f"which cannot be, where {place} is due")
            place = r.range.end
        self.withdraw(worker)
        self._present.add(worker)
        for claimed in self._holders[worker].claim(answered, mine, self.free):
            self.free.remove(claimed.start, claimed.stop)

    def state(self) -> WorkState:
        """Return the state to resume from, to be saved with the version of the same moment."""
        return WorkState(self.data, list(self.undone.spans),
                         {worker: (h.done, h.end) for worker, h in self._holders.items()},
                         list(self._given_up.spans), self._strikes.state())


def _behind(ranges: Iterable[_Held], at: Offset) -> Iterator[_Held]:
    """Yield the part of a sequence behind `at`."""
    for r in ranges:
        start = max(r.start, r.range.position(at))
        if start < r.stop:
            yield r.part(start, r.stop, r.own)
