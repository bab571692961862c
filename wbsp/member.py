"""Statistics of one worker over a whole run: the server counts, its logs and console show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

COUNTED = "steps", "samples", "seconds", "pushes", "base", "rejected"


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
    rejected: Counter[str] = field(default_factory=Counter)  # reason -> pushes

    def count(self, steps: int, samples: int, seconds: float, base: int) -> None:
        """One more push of this worker."""
        self.pushes += 1
        self.steps += steps
        self.samples += samples
        self.seconds += seconds
        self.base = base
