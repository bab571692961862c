"""Statistics of one worker over a whole run: the server counts, its logs and console show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

COUNTED = "steps", "samples", "seconds", "pushes", "base", "rounds", "rejected"


class AnsweredWork(NamedTuple):
    """What pushes `first` ... `last` of one worker carried, which the server has answered."""

    first: int
    last: int
    steps: int
    samples: int
    seconds: float  # of compute
    base: int  # base version of the last
    rejected: dict[str, int]  # reason -> pushes

    @property
    def pushes(self) -> int:
        return self.last - self.first + 1

    def then(self, later: AnsweredWork) -> AnsweredWork:
        """Both, where `later` follows on this one."""
        reasons = {*self.rejected, *later.rejected}
        return AnsweredWork(
            self.first, later.last, self.steps + later.steps, self.samples + later.samples,
            self.seconds + later.seconds, later.base,
            {reason: self.rejected.get(reason, 0) + later.rejected.get(reason, 0)
             for reason in sorted(reasons)})


@dataclass
class Member:
    """Totals of one worker over all its incarnations, also across restarts of the server.

    Pushes count when the server receives them, rejected pushes included.
    """

    active: bool = False
    finished: bool = False  # left in good order
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0  # of compute
    pushes: int = 0
    base: int = 0  # base version of its newest push
    rounds: int = 0  # its pushes, and those that the others had made before it came
    rejected: Counter[str] = field(default_factory=Counter)  # reason -> pushes

    def count(self, steps: int, samples: int, seconds: float, base: int) -> None:
        """One more push of this worker."""
        self.pushes += 1
        self.rounds += 1
        self.steps += steps
        self.samples += samples
        self.seconds += seconds
        self.base = base

    def count_all(self, work: AnsweredWork) -> None:
        """Several pushes of this worker."""
        self.pushes += work.pushes
        self.rounds += work.pushes
        self.steps += work.steps
        self.samples += work.samples
        self.seconds += work.seconds
        self.base = work.base
        self.rejected.update(work.rejected)
