"""A Keras model as one flat float32 vector: read, cut, adopt.

The vector holds the trainable float variables first, then the float non-trainable ones, so that
BatchNorm statistics take part as deltas like the rest. Optimizer state is not in it, nor is what
`layers` is about.

Anchor, difference and versions lie where the variables lie: in numpy arrays on a CPU, else in
arrays of the back end, whose operations are only enqueued here. Whoever needs the numbers waits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from wbsp.replica.base import Variables, Vector
from wbsp.replica.layers import derive, every_layer, trained
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import TensorSpec

_CALL = "call the model on a batch of your data before fit, such as model(x[:1])"
BACK_ENDS = "tensorflow", "jax", "torch"  # Keras's names, and those of the files here
_ROUNDING = 2e-6  # of the largest weight


class ModelReplica:
    """See `base.Replica`."""

    def __init__(self, model: keras.Model, variables: Variables, layout: Sequence[TensorSpec],
                 rounds: bool):
        """`rounds`: there are variables that hold fewer digits than float32."""
        self.layout = layout
        self._model = model
        self._rounds = rounds
        self._variables = variables
        self._anchor = variables.gather()
        self._x = self._anchor  # None: not known, since a step has changed it

    def read(self) -> np.ndarray:
        self.hold()
        return self._host(self._x)

    def hold(self) -> None:
        if self._x is None:
            self._x = self._variables.gather()

    def put_back(self) -> bool:
        if self._x is None:
            return False
        found = self._variables.gather()
        if not self._host(found != self._x).any():
            return False
        self._variables.scatter(self._x)
        differs = _differs(self._host(found), self._host(self._x))
        if differs:
            derive(self._model)
        return differs

    def stepped(self) -> None:
        self._x = None

    def cut(self) -> Vector:
        if self._x is None:
            update, self._anchor = self._variables.cut(self._anchor)
            self._x = self._anchor
        else:
            update = self._variables.difference(self._x, self._anchor)
            self._anchor = self._x
        return self._variables.send(update)

    def bring(self, vector: np.ndarray) -> Any:
        return self._variables.bring(vector)

    def adopt(self, vector: Any, how: str) -> None:
        if self._rounds:
            self._adopt_rounded(vector, how)
            return
        if how == "replace":
            self._x = vector
            self._variables.scatter(vector)
        elif self._x is None:
            self._x = self._variables.rebase(vector, self._anchor)
        else:
            self._x = vector + (self._x - self._anchor)
            self._variables.scatter(self._x)
        self._anchor = vector

    def _adopt_rounded(self, vector: Any, how: str) -> None:
        """As `adopt`. What the variables cannot hold of W is no progress: the anchor is what x has
        become, less the progress that is uncut."""
        self.hold()
        progress = None if how == "replace" else self._x - self._anchor
        self._variables.scatter(vector if progress is None else vector + progress)
        self._x = self._variables.gather()
        self._anchor = self._x if progress is None else self._x - progress

    def _host(self, vector: Any) -> np.ndarray:
        return np.asarray(self._variables.send(vector))


def _differs(found: np.ndarray, x: np.ndarray) -> bool:
    """True if `found` is not x, rounding aside. On TensorFlow `SwapEMAWeights` swaps by additions.
    """
    where = (found != x) & ~(np.isnan(found) & np.isnan(x))
    with np.errstate(invalid="ignore"):
        gap = np.abs(found[where] - x[where]).max(initial=0)
    return not gap <= _ROUNDING * np.abs(x, where=np.isfinite(x), out=np.zeros_like(x)).max()


def open_replica(model: keras.Model, pool: BufferPool | None = None) -> ModelReplica:
    """The replica of a model, on whatever Keras runs on in this process.

    pool: source of memory for vectors on a CPU
    Raises ValueError for a model that has no float variables (yet), or has complex ones to train,
    and for a back end that is not known here.
    """
    chosen = trained(model)
    if not chosen and not all(layer.built for layer in every_layer(model)):
        raise ValueError(f"model {model.name} has no variables yet, since Keras makes them in the "
                         f"first step of fit; {_CALL}")
    if not chosen:
        raise ValueError(f"model {model.name} has no variables of floats: there is nothing to "
                         "train together")
    layout = [TensorSpec(v.path, tuple(v.shape)) for v in chosen]
    rounds = any(v.dtype not in ("float32", "float64") for v in chosen)
    variables = _variables(model, chosen, layout, pool or BufferPool())
    return ModelReplica(model, variables, layout, rounds)


def check_whole(model: keras.Model, layout: Sequence[TensorSpec]) -> None:
    """Raises ValueError for a model that has got more variables than those of `layout`: the layer
    that made them in the first step was not built when the worker joined."""
    paths = [variable.path for variable in trained(model)]
    if len(paths) > len(layout):
        late = [path for path in paths if path not in {spec.name for spec in layout}] or paths[-1:]
        more = f" and {len(late) - 1} more" if late[1:] else ""
        raise ValueError(f"the first step of fit has made variable {late[0]}{more}, in which the "
                         f"other workers have no part; {_CALL}")


def number(model: keras.Model, variable: keras.Variable) -> Callable[[], float]:
    """A reader of a variable of the model that holds one float, cheap enough for every step."""
    if keras.backend.backend() == "tensorflow":  # Keras's own way takes a hundred microseconds
        return importlib.import_module("wbsp.replica.tensorflow").number(model, variable)
    return lambda: float(variable.numpy())


def whole(value: Any) -> int:
    """The number in a variable or a tensor of one integer."""
    return int(keras.ops.convert_to_numpy(value))


def _variables(model: keras.Model, chosen: Sequence[keras.Variable],
               layout: Sequence[TensorSpec], pool: BufferPool) -> Variables:
    name = keras.backend.backend()
    if name not in BACK_ENDS:
        raise ValueError(f"KERAS_BACKEND={name}: wbsp trains on {', '.join(BACK_ENDS)}")
    back_end = importlib.import_module(f"wbsp.replica.{name}")
    return back_end.variables(model, chosen, layout, pool)
