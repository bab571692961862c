"""One compiled network that holds the state of one simulated worker after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np


class SharedNetwork(ABC):
    """A compiled model of Keras. V: a flat vector, float32 [size], of numpy or the back end.

    Apart from the vector x, the state of a worker consists of the optimizer's variables and of the
    model's variables that are not in x (random generators).
    """

    def __init__(self, model: keras.Model, batch: Any):
        """Wrap a compiled model; `batch`: (inputs, targets), from which metrics take shapes."""
        self.model = model
        model.test_on_batch(*batch)  # makes the metrics; trains nothing
        model.optimizer.build(model.trainable_variables)
        self._own = [*(v for v in model.variables if "float" not in v.dtype),
                     *model.optimizer.variables]

    @abstractmethod
    def begin(self, fresh: keras.Model) -> tuple[Any, list[Any]]:
        """Take over all variables of `fresh`, a model of the same kind; return x, a V, and the
        other variables of a worker before its first step."""

    @abstractmethod
    def bring(self, vector: np.ndarray) -> Any:
        """Return the vector as a V."""

    @abstractmethod
    def send(self, update: Any) -> np.ndarray:
        """Return a V as an array that may be written to."""

    @abstractmethod
    def read(self) -> Any:
        """Return x, a V; one object until x changes."""

    @abstractmethod
    def write(self, x: Any) -> None:
        """Set x, a V, which is kept."""

    @abstractmethod
    def step(self, batch: Any) -> float:
        """Train this batch, of the usual size; return its loss."""

    @abstractmethod
    def step_on(self, batch: Any) -> float:
        """Train this batch, of any size; return its loss."""

    @abstractmethod
    def count(self, steps: int) -> None:
        """Set the step that the optimizer's schedule continues from."""

    @abstractmethod
    def set_rate(self, rate: float) -> None:
        """Set the learning rate, which is a plain number, for the state that the network holds."""

    @abstractmethod
    def own(self) -> list[Any]:
        """Return the variables apart from x, to keep while other workers train."""

    @abstractmethod
    def take(self, own: list[Any]) -> None:
        """Put back the variables that `own` returned."""

    @abstractmethod
    def evaluate(self, vector: np.ndarray, test_set: Iterable[Any]) -> dict[str, float]:
        """Return loss and metrics of x = `vector` on batches; the network holds this x afterwards.
        """

    def _assign(self, fresh: keras.Model) -> None:
        for mine, theirs in zip(self.model.variables, fresh.variables, strict=True):
            mine.assign(theirs)
