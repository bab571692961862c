"""How long a step takes: functions of (index of the step, time it starts) -> seconds.

They compose: `paused(changing(lognormal(0.1, 0.2, seed=1), [(100, 4)]), [(150, 160)])`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

StepTime = Callable[[int, float], float]


def constant(seconds: float) -> StepTime:
    """Every step takes `seconds`."""
    return lambda index, now: seconds


def lognormal(mean: float, sigma: float, seed: int) -> StepTime:
    """Independent lognormal times of mean `mean` seconds; `sigma` is the log's deviation."""
    draw = random.Random(seed).lognormvariate
    mu = math.log(mean) - sigma * sigma / 2
    return lambda index, now: draw(mu, sigma)


def trace(seconds: Sequence[float]) -> StepTime:
    """Recorded times, one a step; begins again at the end."""
    if not seconds:
        raise ValueError("a trace needs at least one step time")
    return lambda index, now: seconds[index % len(seconds)]


def changing(base: StepTime, changes: Sequence[tuple[float, float]]) -> StepTime:
    """`base`, times `factor` for steps that start at `time` or later, for each (time, factor).

    The latest change counts: [(100, 4), (200, 1)] is four times slower from 100 s to 200 s.
    """
    ordered = sorted(changes, reverse=True)

    def seconds(index: int, now: float) -> float:
        factor = next((f for time, f in ordered if now >= time), 1.0)
        return factor * base(index, now)
    return seconds


def paused(base: StepTime, pauses: Sequence[tuple[float, float]]) -> StepTime:
    """`base` on a machine that stands still in each (from, to), in seconds."""
    ordered = sorted(pauses)

    def seconds(index: int, now: float) -> float:
        end = now + base(index, now)
        for begin, over in ordered:
            if begin < end and over > now:
                end += over - max(begin, now)
        return end - now
    return seconds
