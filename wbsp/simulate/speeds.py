"""How long a step takes: functions of (index of the step, time it starts) -> seconds.

Of a whole mini-batch; what a smaller one takes is the machine's to say. They compose:
`changing(lognormal(0.1, 0.2, seed=1), [(100, 4), (200, 1)])`.
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


def stalled(seconds: float, now: float, stalls: Sequence[tuple[float, float]]) -> float:
    """What `seconds` of work from `now` on take if nothing moves in each (from, to), in order."""
    end = now + seconds
    for begin, over in stalls:
        if begin < end and over > now:
            end += over - max(begin, now)
    return end - now
