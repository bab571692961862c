"""How many examples each worker should train, so that unequal machines end together.

`Solver` predicts the cost of a batch on each worker and computes the best sizes. `Shifter` needs no
cost model: it moves examples from the slowest worker to the fastest until that no longer helps.
Both receive every join, leave and push, and return new sizes at the end of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heapreplace
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from wbsp.sync.base import Push
from wbsp.sync.predict import PREDICTORS, Ema, Overhead, Predictor

_INSTANT = 1e-9  # seconds, in place of a step's time that is too short to measure
_BISECTIONS = 100  # halvings of a time; examples that are undecided then end at the same moment
_GROWTH = 1.25  # of slowest / quickest: from here on an allocation is judged again


def greedy(time: Callable[[int, int], float], sizes: Sequence[int], total: int,
           high: Sequence[int]) -> list[int]:
    """Raise `sizes` to the sum `total`: each next example goes to the worker that ends it first.

    The result minimizes max_i time(i, x_i). Of equal times the smaller batch grows first, so that
    equal workers differ by one example at most.

    Args:
        time: time(i, x) is the seconds of worker i for x examples; it does not decrease in x.
        sizes: the least examples of each worker.
        total: the sum to reach.
        high: the most examples of each worker.

    Raises:
        ValueError: the bounds do not permit `total`.
    """
    sizes = list(sizes)
    _check(sizes, total, high)
    heap = [(time(i, x + 1), x + 1, i) for i, x in enumerate(sizes) if x < high[i]]
    heapify(heap)
    for _ in range(total - sum(sizes)):
        _, x, i = heap[0]
        sizes[i] = x
        if x < high[i]:
            heapreplace(heap, (time(i, x + 1), x + 1, i))
        else:
            heappop(heap)
    return sizes


def fastest(speed: Sequence[float], fixed: Sequence[float], total: int, low: int,
            high: int) -> list[int]:
    """Return `greedy`'s sizes for time(i, x) = x / speed[i] + fixed[i] and equal bounds.

    Greedy takes the examples in the order of their times, hence first the examples that end by some
    time T. Bisection finds a T by which nearly enough end, each step in O(N); at most N examples
    are left to greedy, or more where more than N end at the same moment.
    """
    v, q = np.asarray(speed, float), np.asarray(fixed, float)
    _check([low] * len(v), total, [high] * len(v))
    high = min(high, total)

    def by(moment: float) -> np.ndarray:
        """Return the most examples that each worker ends by `moment`, float [N]; at least `low`."""
        most: np.ndarray = np.floor(np.clip((moment - q) * v, low, high))
        return most

    before, after = 0.0, float(np.max(high / v + q, initial=0.0))
    taken = by(before)
    for _ in range(_BISECTIONS):
        if total - taken.sum() <= len(v):
            break
        moment = (before + after) / 2
        more = by(moment)
        if more.sum() <= total:
            before, taken = moment, more
        else:
            after = moment
    speeds, overheads = v.tolist(), q.tolist()
    return greedy(lambda i, x: x / speeds[i] + overheads[i], taken.astype(int).tolist(), total,
                  [high] * len(v))


def _check(low: Sequence[int], total: int, high: Sequence[int]) -> None:
    if not sum(low) <= total <= sum(high):
        raise ValueError(f"{total} examples cannot be split: {len(low)} workers take {sum(low)} to "
                         f"{sum(high)} together; change the total or the bounds")


class Solver:
    """Sizes that minimize max_i t_i(x_i) with t_i(x) = steps (x / v_i + q_i) + c_i.

    v_i is predicted by `predictor`, q_i found by `Overhead`, and c_i, a moving average of the
    seconds that the messages of a round take, counts where `remote`. Sizes are multiples of `grain`
    and sum up to N times `batch`.
    """

    def __init__(self, predictor: str, batch: int, low: int, high: int, grain: int, steps: int,
                 remote: bool):
        self._predictor, self._steps, self._remote = PREDICTORS[predictor], steps, remote
        self._batch, self._low, self._high, self._grain = batch, low, high, grain
        self._costs: dict[int, Cost] = {}

    def join(self, worker: int) -> None:
        self._costs[worker] = Cost(self._predictor())

    def leave(self, worker: int) -> None:
        del self._costs[worker]

    def pushed(self, push: Push, communication: float) -> None:
        """Note a push whose messages took `communication` seconds of the round."""
        self._costs[push.worker].observe(push, communication if self._remote else 0.0)

    def sizes(self, sizes: dict[int, int]) -> dict[int, int]:
        """Return the sizes of the next round, from the last one's: worker -> examples."""
        costs = [self._costs[worker] for worker in sizes]
        steps, grain = self._steps, self._grain
        grains = fastest([cost.speed.value / (steps * grain) for cost in costs],
                         [steps * cost.overhead.seconds + cost.communication.value
                          for cost in costs],
                         len(sizes) * self._batch // grain, self._low // grain,
                         self._high // grain)
        return {worker: n * grain for worker, n in zip(sizes, grains, strict=True)}


class Cost:
    """Cost of a batch on one worker: the terms of its t(x)."""

    def __init__(self, speed: Predictor):
        self.speed, self.overhead, self.communication = speed, Overhead(), Ema()

    def observe(self, push: Push, communication: float) -> None:
        """Update the terms from a push."""
        batch = max(push.samples, 1) / push.steps
        seconds = max(push.seconds, _INSTANT) / push.steps
        self.overhead.observe(batch, seconds)
        self.speed.observe(batch / (seconds - self.overhead.seconds), push.cpu, push.memory)
        self.communication.observe(communication)


class Trial(NamedTuple):
    """An allocation, its slowest worker, and the seconds of that one and of the quickest."""

    sizes: dict[int, int]
    straggler: int
    slowest: float
    quickest: float

    def outdated_by(self, now: Trial) -> bool:
        """Return whether the spread has grown by a quarter, for another reason than the sizes."""
        if now.sizes == self.sizes:
            return now.slowest * self.quickest > _GROWTH * self.slowest * now.quickest
        return (now.sizes[now.straggler] <= self.sizes[now.straggler]
                and now.slowest > _GROWTH * self.slowest)


class Shifter:
    """Sizes by trial, for machines whose time is not linear in the batch.

        every `window` rounds:
            T_i = median seconds of worker i; straggler = argmax T
            leader = argmin T among the workers with room for more: `high`, and memory
            move `coarse` examples from the straggler to the leader
            a reversed pair, or an allocation visited before? go back to the best one;
                coarse phase: fine phase (steps of `fine`, windows twice as long)
                fine phase: hold still
            max T / min T has grown by a quarter, and not because of the sizes? coarse phase

    In the phase "hold" the slowest is within one fine step of the optimum if times do not vary: in
    a cycle of moves some worker becomes the slowest by a step that it received as the quickest, and
    no sizes can beat the quickest of that moment. A bound cuts a step short. Memory is assumed to
    grow in proportion to the batch, which never underestimates it. When a worker joins or leaves,
    the search restarts with the equal split, which is assumed to fit every worker.
    """

    phase: Literal["coarse", "fine", "hold"]

    def __init__(self, batch: int, low: int, high: int, grain: int, window: int, coarse: int,
                 fine: int):
        self._batch, self._low, self._high, self._grain = batch, low, high, grain
        self._window, self._steps = window, {"coarse": coarse, "fine": fine}
        self._memory: dict[int, float] = {}  # worker -> share of its memory that one example takes
        self._changed = True  # a worker came or went
        self._best: Trial | None = None
        self._rounds = 0  # in this window
        self._seconds: dict[int, list[float]] = {}  # worker -> of each step in this window
        self._visited: set[int] = set()  # keys of this phase's allocations
        self._last: tuple[int, int] | None = None  # (from, to) of the newest move
        self._begin("coarse")

    def join(self, worker: int) -> None:
        self._changed = True

    def leave(self, worker: int) -> None:
        self._changed = True
        self._memory.pop(worker, None)

    def pushed(self, push: Push, communication: float) -> None:
        """Note a push; the seconds of its messages do not count."""
        self._seconds.setdefault(push.worker, []).append(push.seconds / push.steps)
        self._memory[push.worker] = (push.memory or 0.0) * push.steps / max(push.samples, 1)

    def sizes(self, sizes: dict[int, int]) -> dict[int, int]:
        """Return the sizes of the next round, from the last one's: worker -> examples."""
        if self._changed:
            self._changed, self._best = False, None
            self._begin("coarse")
            return dict.fromkeys(sizes, self._batch)
        self._rounds += 1
        if self._rounds < self._window * (1 if self.phase == "coarse" else 2):
            return sizes
        times = {worker: median(self._seconds[worker]) for worker in sizes}
        self._rounds, self._seconds = 0, {}
        straggler = max(times, key=times.__getitem__)
        trial = Trial(sizes, straggler, times[straggler], min(times.values()))
        if self._best is not None and self._best.outdated_by(trial):
            self._best = None
            self._begin("coarse")
        if self.phase == "hold":
            return sizes
        if self._best is None or trial.slowest < self._best.slowest:
            self._best = trial
        return self._move(trial, times) or self._best.sizes

    def _move(self, trial: Trial, times: dict[int, float]) -> dict[int, int] | None:
        """Return the next allocation to try; None when this phase has tried all."""
        sizes, straggler = trial.sizes, trial.straggler
        room = {worker: self._room(worker, size) for worker, size in sizes.items()}
        leader = min((w for w in sizes if room[w] > 0), key=times.__getitem__,
                     default=straggler)
        moved = dict(sizes)
        if times[leader] < times[straggler]:
            step = min(self._steps[self.phase], room[leader], sizes[straggler] - self._low)
            moved[straggler] -= step
            moved[leader] += step
        self._visited.add(_key(sizes))
        if self._last == (leader, straggler) or _key(moved) in self._visited:  # or nothing moved
            self._begin("fine" if self.phase == "coarse" else "hold")
            return None
        self._last = straggler, leader
        return moved

    def _room(self, worker: int, size: int) -> int:
        """Return how many more examples the worker can train, in whole grains."""
        most, share = self._high, self._memory[worker]
        if share > 0:
            most = min(most, int(1 / share))
        return (most - size) // self._grain * self._grain

    def _begin(self, phase: Literal["coarse", "fine", "hold"]) -> None:
        self.phase = phase
        self._rounds, self._seconds = 0, {}
        self._visited, self._last = set(), None


def _key(sizes: dict[int, int]) -> int:
    """Return a hash of an allocation, so that the sizes of thousands of workers are not kept."""
    return hash(tuple(sizes.values()))
