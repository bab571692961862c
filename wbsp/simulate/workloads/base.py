"""Workloads: what the simulated workers train.

The virtual-time cluster decides when a step, a cut or an adoption happens; the workload computes
it: without tensors at all or, in `workloads/keras.py`, on a real network.
"""

from __future__ import annotations

import importlib.util
import math
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
    """

    batch: int

    @property
    def sgd(self) -> bool: ...

    def initial(self) -> Vector:
        """Return W_0."""

    def step(self, worker: int, samples: int | None = None,
             start: int | None = None) -> tuple[int, float]:
        """Train one step on the worker's live model x; return (samples, loss).

        Args:
            worker: index of the worker.
            samples: number of examples; given, like `start`, only if the server directs it.
            start: position in the stream that all workers share; None: the worker's own next
                batch.
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


class TimingWorkload:
    """A workload without tensors: every step counts its samples and has no loss.

    Args:
        batch: examples of a step, unless the server directs another size.
    """

    sgd = False  # not known

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
