"""The batch of each worker where all share the run's data, and the learning rate that goes with it.

Sources: Malladi et al. 2022, arXiv 2205.10287 (rate of Adam and RMSprop); the batch is ours.

SGD keeps the user's batch: two epochs of CIFAR-10 on H1 with 8 workers came to 44.0 % with a
quarter of batch 32, at a rate in proportion, and to 47.9 % with it (virtual time, one seed).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from wbsp.sync.base import Direct, Push
from wbsp.sync.meter import averaged

_PUSHES, _STEPS = 3, 16  # at least, of whose times the median is that of a step
_PART = 5  # of a step's time, which its fixed part takes at most
_STAYS = 0.75  # halvings from the wanted batch at which a worker keeps its own
_LEAST = 16  # with BatchNorm, whose errors grow below it (Wu and He 2018, arXiv 1803.08494)
_ROOT = {"Adam", "AdamW", "RMSprop"}  # classes, of any framework, whose rate goes with the root
POWER = 0.5  # of the batch, with which the rate of these grows


def power_of(kind: type) -> float | None:
    """Return the power of the batch by which the rate of such an optimizer goes; None: no smaller
    batch is known to gain with it."""
    return POWER if _ROOT & {one.__name__ for one in kind.__mro__} else None


def least_of(statistics: Sequence[object]) -> int:
    """Return the fewest examples of a step of a model with these statistics of layers."""
    return _LEAST if statistics else 1


def wanted(batch: int, width: float, fixed: float) -> float:
    """Return the examples of a worker's step with which the run is fastest.

    With u = b / R all workers together average the user's batch b, for which rate and optimizer
    were chosen, and each makes as many steps as one machine would in the whole run, in R times less
    time.

    A step of x examples takes (e + x) c seconds, of which e c are fixed, so that fewer examples a
    step are fewer examples a second. The fixed part is to take a fifth of a step at most: x is at
    least 4 e. On two real machines at 1:2 a step of half the batch, of which a third was fixed,
    trained 21 % fewer examples a second, which no number of steps made good (lab/beside).

    How long a transfer lasts does not matter here: the examples in it are as many for each x.

    Args:
        batch: b, examples of the user's step.
        width: R, the sum of the workers' speeds in those of the fastest.
        fixed: e, in examples.
    """
    return min(float(batch), max(batch / max(1.0, width), (_PART - 1) * fixed))


def halved(batch: int, wish: float, least: int) -> int:
    """Return the one of batch, batch / 2, batch / 4 ... that is nearest to `wish`, and not below
    `least`."""
    halvings = max(0, math.ceil(math.log2(batch / wish) - 0.5))
    while halvings and batch >> halvings < max(1, least):
        halvings -= 1
    return batch >> halvings


def reason(batch: int, width: float, fixed: float) -> str:
    """Return why a worker has its batch; the arguments are those of `wanted`."""
    says = f"the run is {width:.2g} times as fast as its fastest worker"
    if fixed == math.inf:
        return f"{says}, and fewer examples make this one's step no shorter"
    if wanted(batch, width, fixed) > wanted(batch, width, 0.0):
        return (f"{says}, and each of this one's steps takes the time of {fixed:.2g} examples "
                "more: too much for a smaller step")
    return says


class _Steps:
    """What is known of one worker's steps.

    Attributes:
        size: examples that it was told to train.
        new: no push has had this size only.
        seen: seconds of a step in each of the newest pushes of this size.
        steps: in these.
        known: examples -> seconds of a step.
        settled: it has its own batch, which two sizes have shown.
    """

    def __init__(self, size: int):
        self.known: dict[int, float] = {}
        self.settled = False
        self.begin(size)

    def begin(self, size: int) -> None:
        self.size, self.new = size, True
        self.seen: list[float] = []
        self.steps = 0

    def takes(self, push: Push) -> bool:
        """Take the time of a push's steps, all of this size; return whether its time is known now.
        """
        if self.new:  # it may have compiled its step
            self.new = False
            return False
        self.seen.append(push.seconds / push.steps)
        self.steps += push.steps
        if len(self.seen) < _PUSHES or self.steps < _STEPS:
            return False
        self.known[self.size] = averaged(self.known.get(self.size), median(self.seen))
        self.seen, self.steps = [], 0
        return True

    def settle(self, size: int) -> None:
        """Note that this is its own batch."""
        self.settled = True
        if size != self.size:
            self.begin(size)

    def fixed(self, batch: int) -> float:
        """Return the fixed part of a step, in examples, from its largest and smallest size."""
        least = min(self.known)
        example = (self.known[batch] - self.known[least]) / (batch - least)
        if example <= 0:
            return math.inf
        return max(0.0, self.known[batch] / example - batch)


class Batches:
    """Directs the batches of the workers that can follow, from the times of their pushes.

    A worker begins with the user's batch, then has half of it, and after that its own. It changes
    again only if the best one is another by far, because each size may compile anew.
    """

    def __init__(self) -> None:
        self._workers: dict[int, _Steps] = {}

    def leave(self, worker: int) -> None:
        self._workers.pop(worker, None)

    def pushed(self, push: Push, width: float) -> list[Direct]:
        """Return the direction that follows a push, if any; `width`: as of `wanted`."""
        batch, worker = push.batch, push.worker
        if batch is None:
            return []
        one = self._workers.get(worker)
        if one is None:
            one = self._workers[worker] = _Steps(batch)
            if push.samples < push.steps * batch:  # an earlier server may have directed it
                return [Direct(worker, batch=batch)]
        if push.samples != push.steps * one.size or not one.takes(push):
            return []
        return self._direct(worker, one, batch, push.least, width)

    def _direct(self, worker: int, one: _Steps, batch: int, least: int, width: float
                ) -> list[Direct]:
        if len(one.known) == 1:
            if halved(batch, wanted(batch, width, 0.0), least) == batch:
                return []
            one.begin(batch // 2)
            return [Direct(worker, batch=one.size)]
        fixed = one.fixed(batch)
        wish = wanted(batch, width, fixed)
        size = halved(batch, wish, least)
        if one.settled and (size == one.size or abs(math.log2(one.size / wish)) <= _STAYS):
            return []
        one.settle(size)
        return [Direct(worker, batch=size, why=reason(batch, width, fixed))]
