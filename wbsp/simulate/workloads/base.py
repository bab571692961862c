"""Workloads: what the simulated workers train.

The virtual-time cluster decides when a step, a cut or an adoption happens; the workload computes
it, without tensors at all, on a small problem in NumPy or, in `training`, on a real network.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

Vector: TypeAlias = Any  # np.ndarray, float32 [size]; None in a study of time alone


class Workload(Protocol):
    """The training of all workers, each with a replica of its own."""

    batch: int  # examples of a step, unless the server directs another size

    def initial(self) -> Vector:
        """W_0."""

    def step(self, worker: int, samples: int | None = None,
             start: int | None = None) -> tuple[int, float]:
        """Train one step on the worker's live model x; return (samples, loss).

        samples: number of examples; passed, like `start`, only where the server directs it
        start:   position in the stream that all workers share; None: the worker's own next batch
        """

    def cut(self, worker: int) -> Vector:
        """Return x - anchor as a new array; anchor = x."""

    def adopt(self, worker: int, vector: Vector, how: Literal["replace", "rebase"]) -> None:
        """replace: x = W; rebase: x = W + (x - anchor); anchor = W, which is never written."""


class TimingWorkload:
    """A workload without tensors: every step counts its samples and has no loss."""

    def __init__(self, batch: int = 1):
        self.batch = batch

    def initial(self) -> None:
        return None

    def step(self, worker: int, samples: int | None = None,
             start: int | None = None) -> tuple[int, float]:
        return samples or self.batch, math.nan

    def cut(self, worker: int) -> None:
        return None

    def adopt(self, worker: int, vector: None, how: str) -> None:
        pass


class QuadraticWorkload:
    """Least squares by SGD: minimize |A x - b|^2 / 2 over `rows` seeded random rows.

    Every worker draws its own mini-batches with its own seed, so that a worker's n-th batch does
    not depend on the other workers. The shared stream is one seeded order of the rows after
    another.
    """

    def __init__(self, workers: int, size: int = 8, rows: int = 256, batch: int = 16,
                 rate: float = 0.05, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.a = rng.standard_normal((rows, size)).astype(np.float32)
        self.b = (self.a @ rng.standard_normal(size) + 0.1 * rng.standard_normal(rows)).astype(
            np.float32)
        self.batch, self.rate, self._seed = batch, np.float32(rate), seed
        self._draws = [np.random.default_rng([seed, worker]) for worker in range(workers)]
        self._orders: dict[int, np.ndarray] = {}
        self.x = [self.initial() for _ in range(workers)]
        self._anchor = [self.initial() for _ in range(workers)]

    def initial(self) -> np.ndarray:
        return np.zeros(self.a.shape[1], np.float32)

    def draw(self, worker: int, samples: int | None = None,
             start: int | None = None) -> np.ndarray:
        """Row numbers of the worker's next mini-batch, int [samples]."""
        samples, n = samples or self.batch, len(self.a)
        if start is None:
            return self._draws[worker].integers(n, size=samples)
        return np.array([self.order(p // n)[p % n] for p in range(start, start + samples)])

    def step(self, worker: int, samples: int | None = None,
             start: int | None = None) -> tuple[int, float]:
        rows, x = self.draw(worker, samples, start), self.x[worker]
        error = self.a[rows] @ x - self.b[rows]
        self.x[worker] = x - self.rate * (error @ self.a[rows] / np.float32(len(rows)))
        return len(rows), float(error @ error) / (2 * len(rows))

    def cut(self, worker: int) -> np.ndarray:
        update = self.x[worker] - self._anchor[worker]
        self._anchor[worker] = self.x[worker]
        return update

    def adopt(self, worker: int, vector: np.ndarray, how: str) -> None:
        uncut = self.x[worker] - self._anchor[worker]
        self.x[worker] = vector + uncut if how == "rebase" else vector
        self._anchor[worker] = vector

    def order(self, epoch: int) -> np.ndarray:
        """Rows in the order of the shared stream's `epoch`, int [rows]."""
        if epoch not in self._orders:
            draw = np.random.default_rng([self._seed, epoch, 1])
            self._orders[epoch] = draw.permutation(len(self.a))
        return self._orders[epoch]

    def loss(self, vector: np.ndarray) -> float:
        """Mean loss over all rows at `vector`, float32 [size]."""
        error = self.a @ vector - self.b
        return float(error @ error) / (2 * len(self.a))
