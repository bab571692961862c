"""Workloads: what the simulated workers train.

The virtual-time cluster decides when a step, a cut or an adoption happens; the workload computes
it: without tensors at all or, in `workloads/keras.py`, on a real network.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeAlias

Vector: TypeAlias = Any  # np.ndarray, float32 [size]; None without tensors
BACK_ENDS = "tensorflow", "jax"  # of real networks; named as in Keras, and as the files here


def check_back_end(name: str) -> None:
    """Check that simulated workers can train on this back end of Keras.

    Raises:
        ValueError: they cannot, or it is not installed.
    """
    if name not in BACK_ENDS:
        raise ValueError(f"KERAS_BACKEND={name}: simulated workers train on "
                         f"{' or '.join(BACK_ENDS)}; choose one, or --model=timing")
    if importlib.util.find_spec(name) is None:
        raise ValueError(f"KERAS_BACKEND={name} is not installed: pip install {name}")


class Workload(Protocol):
    """The training of all workers, each with its own replica.

    Attributes:
        batch: examples of a step, unless the server directs another size.
        sgd: updates are sums of gradients, each times a rate.
        statistics: ranges of W that no gradient changes, as in `Store`.
        least: the fewest examples of a step that a server may direct, of data that all workers
            share; None: it is not known how its rate depends on that number.
    """

    batch: int

    @property
    def least(self) -> int | None: ...

    @property
    def statistics(self) -> Sequence[slice]: ...

    @property
    def sgd(self) -> bool: ...

    def initial(self) -> Vector:
        """Return W_0."""

    def step(self, worker: int, samples: int | None = None, start: int | None = None,
             part: float = 1.0) -> tuple[int, float]:
        """Train one step on the worker's live model x; return (samples, loss).

        Args:
            worker: index of the worker.
            samples: number of examples; given, like `start`, only if the server directs it.
            start: position in the stream that all workers share; None: the worker's own next
                batch.
            part: the directed number of examples in those of the user's batch, with which the
                learning rate goes.
        """

    def cut(self, worker: int) -> Vector:
        """Return x - anchor as a new array; anchor = x.

        Args:
            worker: index of the worker.
        """

    def adopt(self, worker: int, vector: Vector, how: Literal["replace", "rebase"]) -> None:
        """Adopt a version W; anchor = W.

        Args:
            worker: index of the worker.
            vector: W, which is never written to.
            how: "replace": x = W; "rebase": x = W + (x - anchor).
        """


class Experiment(Protocol):
    """A network and its data, which all runs of a study train.

    Attributes:
        size: examples of an epoch.
        model_bytes: bytes of an update and of a version as float32.
        rate: the initial learning rate.
        decays: {steps: factor of the rate from there on}; None: the published ones, or none.
    """

    size: int
    model_bytes: int

    @property
    def rate(self) -> float: ...

    @property
    def decays(self) -> Mapping[int, float] | None: ...

    def with_batch(self, batch_size: int) -> Experiment | None:
        """Return this experiment with another batch, and a rate and decays that suit it.

        None: its schedule is its own.
        """

    def workload(self, seed: int, workers: int, micro_batches: int,
                 counted: Callable[[int], int] | None,
                 done: Callable[[int], float]) -> Workload:
        """Return replicas at the initial model of `seed`.

        Args:
            seed: of the initial model and of the batches.
            workers: number of workers.
            micro_batches: the number into which a mini-batch is split; each is a step.
            counted: worker -> the steps that a schedule counts before its next one; None: its own.
            done: worker -> the part of the run's examples that all workers have trained, 0..1, as
                that worker knows it.
        """

    def evaluate(self, workload: Any, vector: Vector) -> dict[str, float]:
        """Return the metrics of a version; `workload`: the run's, of this experiment."""


class TimingWorkload:
    """A workload without tensors: every step counts its samples and has no loss.

    Args:
        batch: examples of a step, unless the server directs another size.
    """

    sgd = False  # not known
    statistics: Sequence[slice] = ()
    least: int | None = 1

    def __init__(self, batch: int = 1):
        self.batch = batch

    def initial(self) -> None:
        return None

    def step(self, worker: int, samples: int | None = None, start: int | None = None,
             part: float = 1.0) -> tuple[int, float]:
        return samples or self.batch, math.nan

    def cut(self, worker: int) -> None:
        return None

    def adopt(self, worker: int, vector: None, how: str) -> None:
        pass


def of_experiment(name: str) -> ModuleType:
    """Import a module of the experiment's networks and data sets.

    It is in the checkout next to the library, or else in the installed package.
    """
    library = Path(__file__).resolve().parents[2]
    for folder in (library.parent, library / "_experiment"):
        if (folder / "models" / "training.py").exists() and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))  # before folders of these names where a user works
            break
    return importlib.import_module(name)
