"""What a worker keeps for a server that may die: cuts that were decided, and are not durable yet.

No threads, sockets or clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wbsp.core.messages import Span
from wbsp.core.stats import AnsweredWork
from wbsp.core.work_ledger import NOT_OWN
from wbsp.sync.base import Push
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.ops import add_weighted


@dataclass
class _Sum:
    """Pushes that were decided under one mark, or under several that no checkpoint divides."""

    mark: int
    work: AnsweredWork
    total: np.ndarray | None  # sum of weight * update, float32 [size]; None: all were rejected

    def add_weighted(self, update: np.ndarray, weight: float, pool: BufferPool) -> None:
        """Another update; its memory may become the sum's, or the pool's does."""
        if self.total is None:
            self.total = update if update.flags.writeable else pool.take(update.size)
            np.multiply(update, np.float32(weight), out=self.total)
        else:
            add_weighted(self.total, update, weight)

    def add(self, mark: int, work: AnsweredWork, total: np.ndarray | None) -> None:
        """The next pushes of the same worker; `total` is this object's from here on."""
        self.mark = mark
        self.work = self.work.then(work)
        if self.total is None:
            self.total = total
        elif total is not None:
            self.total += total


class _Answered(NamedTuple):
    """A push as `ResendBuffer.add` takes it."""

    push: Push
    update: np.ndarray
    weight: float
    mark: int
    reason: str | None
    spans: tuple[Span, ...]


class ResendBuffer:
    """The weighted sum of a worker's cuts that the server has decided on and not saved yet.

    A server that is restarted begins from a checkpoint. All decisions under one mark are in it, or
    none is; so one sum a mark is enough. Between the newest checkpoint that is written and the one
    that is being written no other can come to be: so there are two sums at most.

    answered:  number behind the newest push that was answered
    unsettled: the newest was not added yet, which takes a while, and best another time: `settle`
    """

    def __init__(self, first: int = 0):
        """`first`: number of this process's first push."""
        self.answered = self._begin = first
        self._sums: list[_Sum] = []
        self._unsettled: _Answered | None = None
        self._pool = BufferPool()  # of sums: with a standby, each version begins one

    @property
    def unsettled(self) -> bool:
        return self._unsettled is not None

    @property
    def vectors(self) -> int:
        """Number of vectors that are kept."""
        self.settle()
        return sum(one.total is not None for one in self._sums)

    @property
    def first(self) -> int:
        """Number of the first push that is kept; all before are durable, or of another process."""
        self.settle()
        return self._sums[0].work.first if self._sums else self.answered

    @property
    def durable(self) -> int:
        """The pushes below this number were durable, as this process was told; 0: of none."""
        return self.first if self.first > self._begin else 0

    def add(self, push: Push, update: np.ndarray, weight: float, mark: int, durable: int,
            reason: str | None = None, spans: Iterable[Span] = ()) -> None:
        """A push was answered: accepted with `weight`, or rejected for a `reason`.

        update: float32 [size], this object's from here on, and perhaps changed in place
        mark:   under which the server decided; what was decided below `durable` is saved
        spans:  positions of the run's shared data in it
        """
        self.drop(durable)
        self.answered = push.seq + 1
        if mark >= durable:
            self._unsettled = _Answered(push, update, weight, mark, reason, tuple(spans))

    def settle(self) -> None:
        """Add the newest answered push, if that was not done."""
        if self._unsettled is None:
            return
        (push, update, weight, mark, reason, spans), self._unsettled = self._unsettled, None
        work = AnsweredWork(push.seq, push.seq, push.steps, push.samples, push.seconds,
                            push.base_version, {} if reason is None else {reason: 1},
                            spans if reason is None else ())
        if not (self._sums and self._sums[-1].mark >= mark):
            self._merge()
            self._sums.append(_Sum(mark, work, None))
        else:
            self._sums[-1].work = self._sums[-1].work.then(work)
        if reason is None:
            self._sums[-1].add_weighted(update, weight, self._pool)

    def drop(self, durable: int) -> None:
        """Forget what was decided under a mark below `durable`."""
        self.settle()
        while self._sums and self._sums[0].mark < durable:
            self._sums.pop(0)

    def since(self, seq: int) -> tuple[AnsweredWork, np.ndarray | None] | None:
        """What was decided on the pushes from `seq` on, in one sum; None: nothing is kept of it.

        A server has asked for it: all before is durable. Nobody may write to the vector as long as
        the caller needs it; `add` does.
        """
        self.settle()
        self._sums = [one for one in self._sums if one.work.last >= seq]
        self._merge()
        return (self._sums[0].work, self._sums[0].total) if self._sums else None

    def replayed(self, safe: int, mark: int, void: bool = False) -> None:
        """A new server has what was kept: the pushes below `safe` durably, the others under `mark`.

        void: it has rejected what was accepted of these
        """
        self.since(safe)
        for one in self._sums:
            one.mark = mark
            if void:
                one.work, one.total = one.work.void(NOT_OWN), None

    def _merge(self) -> None:
        """Make one sum of all."""
        while len(self._sums) > 1:
            later = self._sums.pop()
            self._sums[-1].add(later.mark, later.work, later.total)
