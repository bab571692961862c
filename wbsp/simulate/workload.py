"""What the simulated workers train.

The virtual-time cluster asks a workload for the numbers and decides when; the same protocol is
served by no tensors at all, by a small problem in NumPy, or by a real network.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np


class Workload(Protocol):
    """One replica a worker. Vectors are float32 [size], or None in a study of time alone."""

    def initial(self) -> np.ndarray | None:
        """W_0."""

    def step(self, worker: int) -> tuple[int, float]:
        """Train one mini-batch on the worker's live model x; return (samples, loss)."""

    def cut(self, worker: int) -> np.ndarray | None:
        """Return x - anchor as a new array; anchor = x."""

    def adopt(self, worker: int, vector: np.ndarray | None,
              how: Literal["replace", "rebase"]) -> None:
        """replace: x = W; rebase: x = W + (x - anchor); anchor = W, which is never written."""


class TimingWorkload:
    """No tensors: every step counts `batch` samples and has no loss."""

    def __init__(self, batch: int = 1):
        self._done = batch, float("nan")

    def initial(self) -> None:
        return None

    def step(self, worker: int) -> tuple[int, float]:
        return self._done

    def cut(self, worker: int) -> None:
        return None

    def adopt(self, worker: int, vector: None, how: str) -> None:
        pass


class QuadraticWorkload:
    """Least squares by SGD: minimize |A x - b|^2 / 2 over `rows` seeded random rows.

    Every worker draws its own mini-batches with its own seed, so that a worker's n-th batch does
    not depend on what the others do.
    """

    def __init__(self, workers: int, size: int = 8, rows: int = 256, batch: int = 16,
                 rate: float = 0.05, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.a = rng.standard_normal((rows, size)).astype(np.float32)
        self.b = (self.a @ rng.standard_normal(size) + 0.1 * rng.standard_normal(rows)).astype(
            np.float32)
        self.batch, self.rate = batch, np.float32(rate)
        self._draws = [np.random.default_rng([seed, worker]) for worker in range(workers)]
        self.x = [self.initial() for _ in range(workers)]
        self._anchor = [self.initial() for _ in range(workers)]

    def initial(self) -> np.ndarray:
        return np.zeros(self.a.shape[1], np.float32)

    def draw(self, worker: int) -> np.ndarray:
        """Row numbers of the worker's next mini-batch, int [batch]."""
        return self._draws[worker].integers(len(self.a), size=self.batch)

    def step(self, worker: int) -> tuple[int, float]:
        rows, x = self.draw(worker), self.x[worker]
        error = self.a[rows] @ x - self.b[rows]
        self.x[worker] = x - self.rate * (error @ self.a[rows] / np.float32(self.batch))
        return self.batch, float(error @ error) / (2 * self.batch)

    def cut(self, worker: int) -> np.ndarray:
        update = self.x[worker] - self._anchor[worker]
        self._anchor[worker] = self.x[worker]
        return update

    def adopt(self, worker: int, vector: np.ndarray, how: str) -> None:
        uncut = self.x[worker] - self._anchor[worker]
        self.x[worker] = vector + uncut if how == "rebase" else vector
        self._anchor[worker] = vector

    def loss(self, vector: np.ndarray) -> float:
        """Mean over all rows at `vector`, float32 [size]."""
        error = self.a @ vector - self.b
        return float(error @ error) / (2 * len(self.a))
