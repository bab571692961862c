"""A workload whose gradient never changes: it shows how far a model's steps take the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np


class SlopeWorkload:
    """Vectors of equal values, to which each step of a worker adds 1.

    So a version's values are the steps that the network has made since W_0: a step of one of N
    workers counts 1/N where updates are averaged, and more where the outer step adds momentum.

    Args:
        workers: number of workers.
        batch: examples of a step, unless the server directs another size.
        size: floats of a vector.
    """

    sgd = True  # as the default optimizer
    least: int | None = None
    statistics: Sequence[slice] = ()

    def __init__(self, workers: int, batch: int, size: int):
        self.batch = batch
        self._initial = np.zeros(size, np.float32)
        self._x = [self._initial] * workers
        self._anchor = [self._initial] * workers

    def initial(self) -> np.ndarray:
        return self._initial

    def step(self, worker: int, samples: int | None = None, start: int | None = None,
             part: float = 1.0) -> tuple[int, float]:
        self._x[worker] = self._x[worker] + np.float32(1)
        return samples or self.batch, 0.0

    def cut(self, worker: int) -> np.ndarray:
        update = self._x[worker] - self._anchor[worker]
        self._anchor[worker] = self._x[worker]
        return update

    def adopt(self, worker: int, vector: np.ndarray, how: Literal["replace", "rebase"]) -> None:
        uncut = self._x[worker] - self._anchor[worker]
        self._x[worker] = vector if how == "replace" else vector + uncut
        self._anchor[worker] = vector
