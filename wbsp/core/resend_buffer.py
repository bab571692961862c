"""A worker's buffer of cuts that the server has decided on, but not saved durably yet.

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
    """Pushes decided under one mark, or under several with no checkpoint between."""

    mark: int
    work: AnsweredWork
    total: np.ndarray | None  # sum of weight * update, float32 [size]; None: all were rejected

    def add_weighted(self, update: np.ndarray, weight: float, pool: BufferPool) -> None:
        """Add an update; the sum may take over its memory, or return it to the pool."""
        if self.total is None:
            self.total = update if update.flags.writeable else pool.take(update.size)
            np.multiply(update, np.float32(weight), out=self.total)
        else:
            add_weighted(self.total, update, weight)

    def extend(self, work: AnsweredWork) -> None:
        """Add the metadata of the worker's next push."""
        self.work = self.work.then(work)

    def has_arrived(self, mark: int, void: bool) -> None:
        """Note that a new server has this sum; arguments as for `ResendBuffer.replayed`."""
        self.mark = mark
        if void:
            self.work, self.total = self.work.void(NOT_OWN), None

    def add(self, mark: int, work: AnsweredWork, total: np.ndarray | None) -> None:
        """Add the worker's next pushes; this object owns `total` from here on."""
        self.mark = mark
        self.work = self.work.then(work)
        if self.total is None:
            self.total = total
        elif total is not None:
            self.total += total


class _Answered(NamedTuple):
    """A push, with the arguments of `ResendBuffer.add`."""

    push: Push
    update: np.ndarray
    weight: float
    mark: int
    reason: str | None
    spans: tuple[Span, ...]


class ResendBuffer:
    """The weighted sum of a worker's cuts that the server has decided on and not saved yet.

    A restarted server resumes from a checkpoint. Of the decisions under one mark the checkpoint
    holds all or none, so one sum for each mark is enough. At most one checkpoint is in progress
    beyond the newest complete one, so the buffer holds two sums at most; three after a sum was sent
    to a server that has not answered. That one may have taken it, and serve later, while the server
    before has answered more: so what comes behind a sum that was sent stays apart from it.

    Attributes:
        answered: number after the newest answered push.
        unsettled: the newest push is not added yet; adding takes time, see `settle`.
    """

    def __init__(self, first: int = 0):
        """Start an empty buffer; `first`: number of this process's first push."""
        self.answered = self._begin = first
        self._sums: list[_Sum] = []
        self._unsettled: _Answered | None = None
        self._sent = 0  # number after the newest sum that was sent, and not answered
        self._pool = BufferPool()  # of sums: with a standby, each version begins one

    @property
    def unsettled(self) -> bool:
        return self._unsettled is not None

    @property
    def vectors(self) -> int:
        """Number of vectors in the buffer."""
        self.settle()
        return sum(one.total is not None for one in self._sums)

    @property
    def first(self) -> int:
        """Number of the first push in the buffer; earlier ones are durable, or of another process.
        """
        self.settle()
        return self._sums[0].work.first if self._sums else self.answered

    @property
    def durable(self) -> int:
        """Pushes below this number are durable, by the server's answers; 0: none is known to be."""
        return self.first if self.first > self._begin else 0

    def add(self, push: Push, update: np.ndarray, weight: float, mark: int, saved: int,
            reason: str | None = None, spans: Iterable[Span] = ()) -> None:
        """Add an answered push, accepted with `weight` or rejected for a `reason`.

        Args:
            push: its metadata.
            update: float32 [size]; this object owns it from here on, and may change it in place.
            weight: of the update, 0 if rejected.
            mark: checkpoint number under which the server decided.
            saved: decisions under a lower mark are durable.
            reason: of a rejection, or None.
            spans: positions of the run's shared data in it.
        """
        self.drop(saved)
        self.answered = push.seq + 1
        if mark >= saved:
            self._unsettled = _Answered(push, update, weight, mark, reason, tuple(spans))

    def settle(self) -> None:
        """Add the newest answered push to its sum, if that was not done."""
        if self._unsettled is None:
            return
        (push, update, weight, mark, reason, spans), self._unsettled = self._unsettled, None
        work = AnsweredWork(push.seq, push.seq, push.steps, push.samples, push.seconds,
                            push.base_version, {} if reason is None else {reason: 1},
                            spans if reason is None else (),
                            0 if reason is None else push.samples)
        if not self._sums or self._sums[-1].mark < mark or self._ends(self._sums[-1]):
            self._merge()
            self._sums.append(_Sum(mark, work, None))
        else:
            self._sums[-1].extend(work)
        if reason is None:
            self._sums[-1].add_weighted(update, weight, self._pool)

    def drop(self, saved: int) -> None:
        """Discard what is durable: the decisions under a mark below `saved`."""
        self.settle()
        while self._sums and self._sums[0].mark < saved:
            self._sums.pop(0)

    def since(self, seq: int) -> tuple[AnsweredWork, np.ndarray | None] | None:
        """Return the decisions on the pushes from `seq` on in one sum, or None without any.

        All earlier pushes are durable, because a server requests `seq`. `add` writes to the vector,
        and must not be called while the caller uses it.
        """
        self.settle()
        self._sums = [one for one in self._sums if one.work.last >= seq]
        self._sent = 0  # all of it is sent in one sum from here on
        self._merge()
        self._sent = self.answered
        return (self._sums[0].work, self._sums[0].total) if self._sums else None

    def replayed(self, safe: int, mark: int, void: bool = False) -> None:
        """Note that a new server has the resent pushes.

        Args:
            safe: pushes below this number are durable.
            mark: checkpoint number of the others.
            void: the server has rejected the resent pushes that had been accepted.
        """
        self.since(safe)
        self._sent = 0
        for one in self._sums:
            one.has_arrived(mark, void)

    def _ends(self, one: _Sum) -> bool:
        """Return whether this sum was sent to a server that has not answered."""
        return one.work.last + 1 == self._sent

    def _merge(self) -> None:
        """Merge all sums into one, except for one that was sent."""
        while len(self._sums) > 1 and not self._ends(self._sums[-2]):
            later = self._sums.pop()
            self._sums[-1].add(later.mark, later.work, later.total)
