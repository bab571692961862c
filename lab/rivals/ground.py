"""What is trained on which machines, until when, and how it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from wbsp.simulate.workloads.task import Order, Task
from wbsp.simulate.world.machine import Machine
from wbsp.simulate.world.server import UNLIMITED, ServerSpec


class Look(NamedTuple):
    """The loss of the model at some time.

    Attributes:
        seconds: virtual.
        examples: trained until then, by all machines together.
        loss: on the task's test set.
    """

    seconds: float
    examples: int
    loss: float


class Part(NamedTuple):
    """A tensor's place in the flat vector.

    Attributes:
        name: of the tensor.
        begin, end: its places.
        embedding: it is a table of which a step changes few rows.
    """

    name: str
    begin: int
    end: int
    embedding: bool = False


class Nothing:
    """A task without tensors worth the name: a run of it has the times of any other."""

    def make(self, seed: int) -> tuple[np.ndarray, int]:
        return np.zeros(1, np.float32), 1

    def make_state(self) -> None:
        return None

    def step(self, values: Any, state: None, indices: np.ndarray,
             rate: float) -> tuple[Any, None, float]:
        return values, None, 0.0

    def evaluate(self, values: np.ndarray) -> dict[str, float]:
        return {"loss": 0.0}


@dataclass
class Ground:
    """A training that begins at 0 s and ends at `until`.

    Attributes:
        machines: of the workers; each has a step time for `batch` examples.
        task: what is trained.
        batch: examples of a worker's step.
        until: virtual seconds at which it ends.
        size: bytes of the model as float32.
        rate: part of the run's examples, 0..1 -> learning rate.
        total: examples of the run; 1: they are to be counted.
        seed: of W_0 and of the order of the examples.
        parts: the tensors; none: the whole vector is one.
        server: the interface of a server, for a rival that has one, and how long a loss stays
            unnoticed.
        looks: seconds between two.
    """

    machines: Sequence[Machine]
    task: Task
    batch: int
    until: float
    size: float = 0.0
    rate: Callable[[float], float] = lambda done: 1.0
    total: int = 1
    seed: int = 0
    parts: Sequence[Part] = ()
    server: ServerSpec = UNLIMITED
    looks: float = float("inf")
    found: list[Look] = field(default_factory=list)
    _examples: int = 0
    _due: float = 0.0

    def __post_init__(self) -> None:
        self.initial, n = self.task.make(self.seed)
        if not self.parts:
            self.parts = [Part("all", 0, self.initial.size)]
        self._orders = [Order(n, (self.seed, worker)) for worker in range(len(self.machines))]
        self._places = [0] * len(self.machines)

    @property
    def examples(self) -> int:
        """Trained so far."""
        return self._examples

    @property
    def rate_now(self) -> float:
        """The learning rate of a step that ends now."""
        return self.rate(min(1.0, self._examples / self.total))

    def draw(self, worker: int, count: int) -> np.ndarray:
        """Return the next examples in the worker's own order, and count them."""
        found = self._orders[worker].indices(self._places[worker], count)
        self._places[worker] += count
        self._examples += count
        return found

    def look(self, now: float, values: Any, last: bool = False) -> None:
        """Evaluate the model that is there from `now` on, if a look is due.

        Args:
            now: seconds.
            values: the model.
            last: it is the run's last model.
        """
        if not last and now < self._due:
            return
        loss = self.task.evaluate(np.asarray(values))["loss"]
        self.found.append(Look(now, self._examples, loss))
        while self._due <= now < float("inf"):
            self._due += self.looks
