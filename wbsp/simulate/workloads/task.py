"""A task: a network with its data and its training as four functions, in any framework.

The workload keeps each worker's values, anchor and state, and calls the task for a step. So a task
knows nothing of workers, and a worker's optimizer is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np

from wbsp.simulate.workloads.base import Workload
from wbsp.sync.batch import POWER, least_of


class Task(Protocol):
    """What workers train. V: a flat vector, float32 [size], of numpy or of the task's framework.

    Attributes:
        statistics: ranges of a vector that no gradient changes, as in `Store`, once it is made.
    """

    statistics: Sequence[slice]

    def make(self, seed: int) -> tuple[np.ndarray, int]:
        """Return W_0 and n, the number of examples of a pass."""

    def make_state(self) -> Any:
        """Return a worker's own state before its first step, such as its optimizer's."""

    def step(self, values: Any, state: Any, indices: np.ndarray,
             rate: float) -> tuple[Any, Any, Any]:
        """Train one step; return a V of new values, the state, and the loss.

        Args:
            values: a version, or what the step before returned; never to be written to.
            state: what the worker's step before returned, at first that of `make_state`.
            indices: of the examples, int64 [batch], each in 0..n-1.
            rate: the learning rate.
        """

    def evaluate(self, values: np.ndarray) -> dict[str, float]:
        """Return the metrics of a version, by name."""


class Order:
    """An endless stream of passes over `n` examples, each in an order of its own."""

    def __init__(self, n: int, seed: int | tuple[int, int]):
        self._n, self._key = n, np.atleast_1d(seed).tolist()
        self._pass = lru_cache(2)(self._shuffled)

    def indices(self, start: int, count: int) -> np.ndarray:
        """Return the examples at positions start ... start + count - 1, int64 [count]."""
        number, place = divmod(start, self._n)
        found = self._pass(number)[place:place + count]
        while len(found) < count:
            number += 1
            found = np.append(found, self._pass(number)[:count - len(found)])
        return found

    def _shuffled(self, number: int) -> np.ndarray:
        return np.random.default_rng([*self._key, number]).permutation(self._n)


class TaskWorkload:
    """Replicas of a task's network; see `Workload`.

    Args:
        task: what is trained.
        seed: of W_0, and of the order of the examples.
        workers: number of workers.
        batch: examples of a step, unless the server directs another size.
        rate: worker -> the learning rate of its next step; that of a smaller batch goes with its
            root, as Adam's (Malladi et al. 2022, arXiv 2205.10287).
    """

    sgd = False  # not known

    def __init__(self, task: Task, seed: int, workers: int, batch: int,
                 rate: Callable[[int], float]):
        self.batch, self._task, self._rate = batch, task, rate
        self._initial, n = task.make(seed)
        self._shared = Order(n, seed)
        self._own = [Order(n, (seed, worker)) for worker in range(workers)]
        self._position = [0] * workers  # in its own order
        self._x: list[Any] = [self._initial] * workers
        self._anchor: list[Any] = [self._initial] * workers
        self._state = [task.make_state() for _ in range(workers)]

    @property
    def statistics(self) -> Sequence[slice]:
        return self._task.statistics

    @property
    def least(self) -> int:
        return least_of(self.statistics)

    def initial(self) -> np.ndarray:
        return self._initial

    def step(self, worker: int, samples: int | None = None, start: int | None = None,
             part: float = 1.0) -> tuple[int, float]:
        samples = samples or self.batch
        if start is not None:
            indices = self._shared.indices(start, samples)
        else:
            indices = self._own[worker].indices(self._position[worker], samples)
            self._position[worker] += samples
        self._x[worker], self._state[worker], loss = self._task.step(
            self._x[worker], self._state[worker], indices, self._rate(worker) * part ** POWER)
        return samples, float(loss)

    def cut(self, worker: int) -> np.ndarray:
        x = np.asarray(self._x[worker])
        update: np.ndarray = x - self._anchor[worker]
        self._anchor[worker] = x
        return update

    def adopt(self, worker: int, vector: np.ndarray, how: Literal["replace", "rebase"]) -> None:
        if how == "rebase" and self._x[worker] is not self._anchor[worker]:
            self._x[worker] = vector + (np.asarray(self._x[worker]) - self._anchor[worker])
        else:
            self._x[worker] = vector
        self._anchor[worker] = vector


class TaskExperiment:
    """A task with its batch, rate and schedule, which simulated runs train; see `Experiment`.

    Args:
        task: what is trained.
        batch_size: examples of a mini-batch.
        rate: the learning rate.
        schedule: part of the run's examples, 0..1 -> factor of the rate.
    """

    decays: Mapping[int, float] | None = None

    def __init__(self, task: Task, batch_size: int, rate: float,
                 schedule: Callable[[float], float]):
        self.task, self._batch_size, self.rate, self.schedule = task, batch_size, rate, schedule
        initial, self.size = task.make(0)
        self.model_bytes = 4 * initial.size

    def with_batch(self, batch_size: int) -> TaskExperiment:
        """Return this experiment with another batch, and a rate in proportion to its root (Malladi
        et al. 2022, arXiv 2205.10287)."""
        rate = self.rate * (batch_size / self._batch_size) ** POWER
        return TaskExperiment(self.task, batch_size, rate, self.schedule)

    def workload(self, seed: int, workers: int, micro_batches: int,
                 counted: Callable[[int], int] | None,
                 done: Callable[[int], float]) -> TaskWorkload:
        """Return replicas at the initial model of `seed`; the arguments are an `Experiment`'s. No
        schedule counts steps."""
        return TaskWorkload(self.task, seed, workers, self._batch_size // micro_batches,
                            lambda worker: self.rate * self.schedule(done(worker)))

    def evaluate(self, workload: Workload, vector: np.ndarray) -> dict[str, float]:
        """Return the metrics of a version."""
        return self.task.evaluate(vector)
