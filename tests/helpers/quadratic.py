"""Least squares in NumPy, as a workload for virtual-time clusters."""

from __future__ import annotations

from typing import Any

import numpy as np

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine


class QuadraticWorkload:
    """Least squares by SGD: minimize |A x - b|^2 / 2 over `rows` seeded random rows.

    Every worker draws its mini-batches with its own seed, so that a worker's n-th batch does not
    depend on the other workers. The shared stream is a sequence of seeded orders of the rows.
    """

    sgd = True
    least = None
    statistics = ()

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
        """Return the row numbers of the worker's next mini-batch, int [samples]."""
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
        """Return the rows in the order of the shared stream's `epoch`, int [rows]."""
        if epoch not in self._orders:
            draw = np.random.default_rng([self._seed, epoch, 1])
            self._orders[epoch] = draw.permutation(len(self.a))
        return self._orders[epoch]

    def loss(self, vector: np.ndarray) -> float:
        """Return the mean loss over all rows at `vector`, float32 [size]."""
        error = self.a @ vector - self.b
        return float(error @ error) / (2 * len(self.a))


def versions(model, workers: list[Machine], workload: QuadraticWorkload,
             **options: Any) -> list[bytes]:
    """Return every version of a virtual run, in order."""
    found = []

    def log(now: float, kind: str, **fields: Any) -> None:
        if kind == "commit":
            found.append(cluster.engine.store.latest.vector.tobytes())

    cluster = Cluster(model, workers, workload, log=log, **options)
    cluster.run()
    return found
