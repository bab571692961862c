"""Who is to be here before a run begins, or goes on after its server was restarted."""

from __future__ import annotations

from collections.abc import Iterable

from wbsp.ps.effects import Reattached


class Gathering:
    """The workers that a run waits for before its synchronization model starts.

    A run begins with `expected` workers. One that is resumed goes on when those are here that its
    checkpoint knows; they join anew, or attach themselves again in mid-training, and then wait for
    their answer until the model starts.

    awaited:  by a resumed run; None: it had not begun when the checkpoint was made
    ended:    the checkpoint is that of the last version: who has not finished comes too late to
              attach again, but may join
    left:     workers that attached again, and have finished
    answers:  to workers that attached again before the start
    floor:    lowest number of the first version that is news to all of these
    """

    def __init__(self, expected: int, awaited: Iterable[int] | None = None, ended: bool = False):
        self.expected, self.ended = expected, ended
        self.awaited = None if awaited is None else set(awaited)
        self.left: set[int] = set()
        self.answers: list[Reattached] = []
        self.floor = 0

    def came_back(self, answer: Reattached, newest: int, left: bool) -> None:
        """A worker that has version `newest` attached again before the start."""
        self.answers.append(answer)
        if left:
            self.left.add(answer.worker)
        self.floor = max(self.floor, newest if left else newest + 1)

    def complete(self, active: set[int]) -> bool:
        """True if nobody is missing; `active`: the workers that are here and have not finished."""
        here = active | self.left
        if self.awaited:
            return self.awaited <= here
        over = self.awaited is not None and bool(self.left) and not active
        return over or len(here) >= self.expected
