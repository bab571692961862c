"""A simulated machine: its step times, its link, and the presence of its worker.

A step time is a function (index of the step, time at which the step starts) -> seconds of a whole
mini-batch; the machine derives the time of a smaller batch: in proportion, but for its fixed part.
Step times compose:
`changing(lognormal(0.1, 0.2, seed=1), [(100, 4), (200, 1)])`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

INF = float("inf")
StepTime = Callable[[int, float], float]


def constant(seconds: float) -> StepTime:
    """Return constant step times.

    Args:
        seconds: of each step.
    """
    return lambda index, now: seconds


def lognormal(mean: float, sigma: float, seed: int) -> StepTime:
    """Return independent lognormal step times.

    Args:
        mean: of the step times, seconds.
        sigma: standard deviation of the logarithm.
        seed: of the draws.
    """
    draw = random.Random(seed).lognormvariate
    mu = math.log(mean) - sigma * sigma / 2
    return lambda index, now: draw(mu, sigma)


def trace(seconds: Sequence[float]) -> StepTime:
    """Return recorded step times, repeated after their end.

    Args:
        seconds: of each step, in order.

    Raises:
        ValueError: the record is empty.
    """
    if not seconds:
        raise ValueError("a trace needs at least one step time")
    return lambda index, now: seconds[index % len(seconds)]


def changing(base: StepTime, changes: Sequence[tuple[float, float]]) -> StepTime:
    """Return step times that change at given times.

    The latest change counts: [(100, 4), (200, 1)] is four times slower from 100 s to 200 s.

    Args:
        base: step times before any change.
        changes: (time in seconds, factor of `base` for steps that start then or later).
    """
    ordered = sorted(changes, reverse=True)

    def seconds(index: int, now: float) -> float:
        factor = next((f for time, f in ordered if now >= time), 1.0)
        return factor * base(index, now)
    return seconds


class Incarnation(NamedTuple):
    """A worker's presence from `start` to `end`, at which it is lost, or else leaves.

    A lost worker's messages in flight are lost as well. A worker that leaves in good order ends its
    step and pushes the rest of its progress.
    """

    start: float = 0.0
    end: float = INF
    lost: bool = True


@dataclass(frozen=True)
class Line:
    """The line of site `site` to the outside, `up` and `down` bytes/s, which its machines share."""

    site: int
    up: float = INF
    down: float = INF

    def __post_init__(self) -> None:
        if not (self.up > 0 and self.down > 0):
            raise ValueError(f"a line carries more than 0 bytes/s, not {self.up} and {self.down}")

    @property
    def limited(self) -> bool:
        """True if the line has a limit; else the site is at the server's place."""
        return min(self.up, self.down) < INF


@dataclass(frozen=True)
class Machine:
    """A simulated machine, on which one worker runs.

    Attributes:
        step: step times; called once at the start of each step.
        latency: seconds, one way.
        up: bytes/s of the machine's own link, to the server.
        down: bytes/s of the machine's own link, from the server.
        incarnations: presence of the worker; a lost worker returns with the next incarnation.
        fixed: seconds of a mini-batch that do not depend on its size: the published sleeps.
        part: of the time of a step on a whole mini-batch, 0..1, that every step takes, however few
            examples it has.
        stalls: (from, to), in the order of time: the machine stands still.
        line: that all bytes between machine and server pass as well; None: no such line.
    """

    step: StepTime
    latency: float = 0.0
    up: float = INF
    down: float = INF
    incarnations: tuple[Incarnation, ...] = (Incarnation(),)
    fixed: float = 0.0
    stalls: tuple[tuple[float, float], ...] = ()
    line: Line | None = None
    part: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.part <= 1:
            raise ValueError(f"part must be 0 to 1, not {self.part}")
        if not 0 <= self.latency < INF:
            raise ValueError(f"latency must be 0 s or more and finite, not {self.latency}")
        if not (self.up > 0 and self.down > 0):
            raise ValueError(f"up and down must be above 0 bytes/s, not {self.up} and {self.down}")
        times = [time for incarnation in self.incarnations for time in incarnation[:2]]
        if not times or times[0] < 0 or times != sorted(times):
            raise ValueError("incarnations must follow one another from 0 s on, not "
                             f"{self.incarnations}")
        if not 0 <= self.fixed < INF:
            raise ValueError(f"fixed must be 0 s or more and finite, not {self.fixed}")
        times = [time for stall in self.stalls for time in stall]
        if times != sorted(times):
            raise ValueError(f"stalls must follow one another, not {self.stalls}")

    def seconds(self, index: int, now: float, share: float = 1.0, parts: int = 1) -> float:
        """Return the seconds of a step.

        Args:
            index: of the step.
            now: seconds at which the step begins.
            share: its examples, as a part of a mini-batch's usual number.
            parts: micro-batches in a mini-batch, of which the step is one.
        """
        if self.part:
            share = self.part + (1 - self.part) * share
        seconds = self.fixed / parts + self.step(index, now) * share
        return stalled(seconds, now, self.stalls) if self.stalls else seconds


def stalled(seconds: float, now: float, stalls: Sequence[tuple[float, float]]) -> float:
    """Return the duration of `seconds` of work from `now` on that pauses in each (from, to)."""
    end = now + seconds
    for begin, over in stalls:
        if begin < end and over > now:
            end += over - max(begin, now)
    return end - now
