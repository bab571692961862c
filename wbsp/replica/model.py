"""A Keras model as one flat float32 vector: read, cut, adopt.

The vector holds the trainable float variables first, then the float non-trainable ones, so that
BatchNorm statistics take part as deltas like the rest. Optimizer state is not in it.

Anchor, difference and versions lie where the variables lie: in numpy arrays on a CPU, else in
arrays of the back end, whose operations are only enqueued here. Whoever needs the numbers waits.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import keras
import numpy as np

from wbsp.layout import TensorSpec
from wbsp.replica.base import Vector
from wbsp.wire.memory import BufferPool

BACK_ENDS = "tensorflow", "jax", "torch"  # Keras's names, and those of the files here


class Variables(Protocol):
    """The variables that make up x. V: a flat vector, float32 [size], of numpy or the back end."""

    def gather(self) -> Any:
        """x, a new V."""

    def scatter(self, vector: Any) -> None:
        """x = vector, a V, which is not written to, now or later."""

    def cut(self, anchor: Any) -> tuple[Any, Any]:
        """(x - anchor, x), both V. The memory of `anchor` may be used for x."""

    def rebase(self, vector: Any, anchor: Any) -> None:
        """x = vector + (x - anchor), both V."""

    def bring(self, vector: np.ndarray) -> Any:
        """The same vector as a V; any thread may call this."""

    def send(self, update: Any) -> Vector:
        """A V on its way to the host."""


class ModelReplica:
    """See `base.Replica`."""

    def __init__(self, variables: Variables, layout: Sequence[TensorSpec]):
        self.layout = layout
        self._variables = variables
        self._anchor = variables.gather()
        self._x = self._anchor  # None: not known, since a step or a rebase has changed it

    def read(self) -> np.ndarray:
        self.hold()
        return np.asarray(self._variables.send(self._x))

    def hold(self) -> None:
        if self._x is None:
            self._x = self._variables.gather()

    def stepped(self) -> None:
        self._x = None

    def cut(self) -> Vector:
        if self._x is None:
            update, self._anchor = self._variables.cut(self._anchor)
        else:
            update, self._anchor = self._x - self._anchor, self._x
        return self._variables.send(update)

    def bring(self, vector: np.ndarray) -> Any:
        return self._variables.bring(vector)

    def adopt(self, vector: Any, how: str) -> None:
        if how == "replace":
            self._x = vector
            self._variables.scatter(vector)
        elif self._x is None:
            self._variables.rebase(vector, self._anchor)
        else:
            self._x = vector + (self._x - self._anchor)
            self._variables.scatter(self._x)
        self._anchor = vector


def open_replica(model: keras.Model, pool: BufferPool | None = None) -> ModelReplica:
    """The replica of a model, on whatever Keras runs on in this process.

    pool: source of memory for vectors on a CPU
    Raises ValueError for a model that is not built or has no float variables, and for a back end
    that is not known here.
    """
    if not model.built:
        raise ValueError(f"model {model.name} is not built; give it an Input layer or call "
                         "model.build(input_shape) before fit")
    weights = [*model.trainable_weights, *model.non_trainable_weights]
    chosen = [v for v in weights if "float" in v.dtype]
    if not chosen:
        raise ValueError(f"model {model.name} has no variables of floats: there is nothing to "
                         "train together")
    layout = [TensorSpec(v.path, tuple(v.shape)) for v in chosen]
    return ModelReplica(_variables(model, chosen, layout, pool or BufferPool()), layout)


def _variables(model: keras.Model, chosen: Sequence[keras.Variable],
               layout: Sequence[TensorSpec], pool: BufferPool) -> Variables:
    name = keras.backend.backend()
    if name not in BACK_ENDS:
        raise ValueError(f"KERAS_BACKEND={name}: wbsp trains on {', '.join(BACK_ENDS)}")
    back_end = importlib.import_module(f"wbsp.replica.{name}")
    return back_end.variables(model, chosen, layout, pool)
