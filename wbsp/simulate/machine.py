"""A simulated machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wbsp.simulate.speeds import StepTime, stalled

INF = float("inf")


class Incarnation(NamedTuple):
    """When a worker is there: it comes at `start`, and at `end` is lost, or else leaves.

    A lost worker's messages on the way are lost with it. One that leaves in good order ends its
    step and hands over what is left.
    """

    start: float = 0.0
    end: float = INF
    lost: bool = True


@dataclass(frozen=True)
class Machine:
    """One simulated machine.

    step:     (index of the step, time) -> seconds of compute, of a whole mini-batch; asked once at
              the start of each step
    latency:  seconds, one way
    up, down: bytes/s of its own link
    lives:    when it is there; a worker that was lost returns with the next life
    fixed:    seconds of a mini-batch that do not depend on its size: the published sleeps
    stalls:   (from, to): it stands still, in the order of time
    """

    step: StepTime
    latency: float = 0.0
    up: float = INF
    down: float = INF
    lives: tuple[Incarnation, ...] = (Incarnation(),)
    fixed: float = 0.0
    stalls: tuple[tuple[float, float], ...] = ()

    def __post_init__(self):
        if not 0 <= self.latency < INF:
            raise ValueError(f"latency must be 0 s or more and finite, not {self.latency}")
        if not (self.up > 0 and self.down > 0):
            raise ValueError(f"up and down must be above 0 bytes/s, not {self.up} and {self.down}")
        times = [time for life in self.lives for time in life[:2]]
        if not times or times[0] < 0 or times != sorted(times):
            raise ValueError(f"lives must follow one another from 0 s on, not {self.lives}")
        if not 0 <= self.fixed < INF:
            raise ValueError(f"fixed must be 0 s or more and finite, not {self.fixed}")
        times = [time for stall in self.stalls for time in stall]
        if times != sorted(times):
            raise ValueError(f"stalls must follow one another, not {self.stalls}")

    def seconds(self, index: int, now: float, share: float = 1.0, parts: int = 1) -> float:
        """What a step takes that begins `now`, on `share` of a mini-batch's usual examples.

        `parts`: micro-batches in a mini-batch, of which the step is one
        """
        seconds = self.fixed / parts + self.step(index, now) * share
        return stalled(seconds, now, self.stalls) if self.stalls else seconds
