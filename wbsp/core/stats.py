"""Statistics of one worker over a whole run: the server counts, its logs and console show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from msgspec import Meta

from wbsp.limits import Count, Reason, Seconds

REASONS = 64  # of rejections that are told apart
OTHERS = "for other reasons"  # what is rejected beyond them
COUNTED = "steps", "samples", "seconds", "pushes", "base", "rounds", "rejected"


class AnsweredWork(NamedTuple):
    """What pushes `first` ... `last` of one worker carried, which the server has answered."""

    first: Count
    last: Count
    steps: Count
    samples: Count
    seconds: Seconds  # of compute
    base: Count  # base version of the last
    rejected: Annotated[dict[Reason, Count], Meta(max_length=REASONS)]  # reason -> pushes

    @property
    def pushes(self) -> int:
        return self.last - self.first + 1

    def then(self, later: AnsweredWork) -> AnsweredWork:
        """Both, where `later` follows on this one."""
        rejected = Counter(self.rejected)
        for reason, pushes in sorted(later.rejected.items()):
            count_rejected(rejected, reason, pushes)
        return AnsweredWork(
            self.first, later.last, self.steps + later.steps, self.samples + later.samples,
            self.seconds + later.seconds, later.base,
            dict(rejected))


def count_rejected(rejected: Counter[str], reason: str, pushes: int = 1) -> None:
    """Add pushes that were rejected for this reason; a model may make a new one of each push."""
    full = reason not in rejected and len(rejected) >= REASONS - 1
    rejected[OTHERS if full else reason] += pushes


@dataclass
class Member:
    """Totals of one worker over all its incarnations, also across restarts of the server.

    Pushes count when the server receives them, rejected pushes included.
    """

    active: bool = False
    finished: bool = False  # left in good order
    gone: str = ""  # why it left, the last time, if not in good order
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
        for reason, pushes in work.rejected.items():
            count_rejected(self.rejected, reason, pushes)
