"""A Keras model as one flat float32 vector.

The vector holds the trainable float variables first, then the float non-trainable ones that change
by themselves, so that BatchNorm statistics take part as deltas like the rest. It holds neither
frozen variables, nor optimizer state, nor the state described in `layers`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from wbsp.replica.base import Held, Part, Variables, begins, rounds
from wbsp.replica.flat import FlatReplica
from wbsp.replica.layers import (
    calls,
    derive,
    every_layer,
    frozen,
    optimizers,
    remarks,
    settle,
    trained,
)
from wbsp.replica.states import states
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import LayerState, TensorSpec

BACK_ENDS = "tensorflow", "jax", "torch"  # named as in Keras, and as the files here


class KerasPart(Part):
    """A model or a layer of Keras; its variables are named by their paths, with `at` in front."""

    def __init__(self, model: keras.Layer, at: str = ""):
        """Raises ValueError for a model with complex trainable variables, or without variables."""
        self._model, self._at = model, at
        chosen, still = trained(model), frozen(model)
        if not chosen and not all(layer.built for layer in every_layer(model)):
            raise ValueError(f"model {model.name} has no variables yet, because Keras creates them "
                             f"in the first step of fit; {_remedy(model, 'its layers')}")
        super().__init__([Held(TensorSpec(f"{at}{v.path}", tuple(v.shape)), v.dtype, v,
                               id(v) in still) for v in chosen])

    def _open(self, chosen: list[Any], layout: list[TensorSpec], pool: BufferPool) -> Variables:
        name = keras.backend.backend()
        if name not in BACK_ENDS:
            raise ValueError(f"KERAS_BACKEND={name}: wbsp trains on {', '.join(BACK_ENDS)}")
        back_end = importlib.import_module(f"wbsp.replica.{name}")
        found: Variables = back_end.variables(self._model, chosen, layout, pool)
        return found

    def read(self, it: keras.Variable) -> np.ndarray:
        return np.asarray(keras.ops.convert_to_numpy(it)).astype(np.float32, copy=False)

    def write(self, it: keras.Variable, value: np.ndarray) -> None:
        it.assign(value)

    def open(self, pool: BufferPool | None = None) -> FlatReplica:
        """Return the replica of the model as it is now. Raises ValueError for an unknown back end,
        or without float variables to train."""
        if not self.layout:
            still = " that are neither frozen nor local" if self.held else ""
            raise ValueError(f"model {self._model.name} has no variables of floats{still}: there "
                             "is nothing to train together")
        return FlatReplica(self.variables(pool or BufferPool()), self.layout, rounds(self.types),
                           self.adopted)

    def states(self) -> list[LayerState]:
        def compared(variable: keras.Variable) -> bool:
            return not begins(f"{self._at}{variable.path}", self._local)

        return states(self._model, compared)

    def remarks(self) -> Iterator[str]:
        yield from remarks(self._model)

    def adopted(self) -> None:
        derive(self._model)

    def finish(self) -> Iterator[str]:
        yield from settle(self._model)

    def check(self) -> None:
        check_whole(self._model, [held.spec for held in self.held])


def open_replica(model: keras.Model, pool: BufferPool | None = None) -> FlatReplica:
    """Return the replica of a model, on Keras's back end in this process.

    Raises ValueError for a model without float variables, or with complex ones to train, and for an
    unknown back end.

    Args:
        pool: source of memory for vectors on a CPU.
    """
    return KerasPart(model).open(pool)


def check_whole(model: keras.Model, layout: Sequence[TensorSpec]) -> None:
    """Raise ValueError if the model has more variables than `layout`: the layer that created them
    in the first step was not built when the worker joined."""
    paths = [variable.path for variable in trained(model)]
    if len(paths) > len(layout):
        late = [path for path in paths if path not in {spec.name for spec in layout}] or paths[-1:]
        more = f" and {len(late) - 1} more" if late[1:] else ""
        raise ValueError(f"the first step has created variable {late[0]}{more}, which the other "
                         f"workers do not have; {_remedy(model, late[0].partition('/')[0])}")


def _remedy(model: keras.Layer, part: str) -> str:
    """Return how a user has Keras create all variables before the first step; `part`: the model's
    layer that has created some late."""
    if calls(model):
        return "call the model on a batch of your data before fit, such as model(x[:1])"
    return (f"{model.name} has no `call`, so build {part} before fit, by an Input layer in it or "
            "by its build(shape)")


def sums_gradients(model: keras.Model) -> bool:
    """True if an update of the model is a sum of gradients, each times a rate: plain SGD trains it,
    and its vector has no statistics of layers."""
    optimizer = getattr(model, "optimizer", None)
    more = ("momentum", "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema",
            "gradient_accumulation_steps")
    return (type(optimizer) is type(keras.optimizers.SGD())  # on PyTorch a class derived from it
            and not any(getattr(optimizer, name, None) for name in more)
            and len(optimizers(model)) == 1
            and {id(v) for v in trained(model)} <= {id(v) for v in model.trainable_variables})


def renew_optimizers(model: keras.Model) -> bool:
    """Replace values that are not finite in a model's optimizers by those of new optimizers.

    Returns:
        True if there was something.
    """
    found = False
    for optimizer in optimizers(model):
        kept = list(optimizer.variables)
        if all(_is_finite(variable) for variable in kept):
            continue
        found = True
        new = type(optimizer).from_config(optimizer.get_config())
        new.build(getattr(optimizer, "_trainable_variables", model.trainable_variables))
        begun = list(new.variables)
        for index, variable in enumerate(kept):
            if not _is_finite(variable):
                alike = index < len(begun) and begun[index].shape == variable.shape
                variable.assign(begun[index] if alike else keras.ops.zeros_like(variable))
    return found


def _is_finite(variable: keras.Variable) -> bool:
    return bool(np.isfinite(keras.ops.convert_to_numpy(variable)).all())


def number(model: keras.Model, variable: keras.Variable) -> Callable[[], float]:
    """Return a function that reads a variable of one float, cheap enough for every step."""
    if keras.backend.backend() == "tensorflow":  # Keras's own takes a hundred microseconds
        of_tensorflow = importlib.import_module("wbsp.replica.tensorflow")
        read: Callable[[], float] = of_tensorflow.number(model, variable)
        return read
    return lambda: float(variable.numpy())


def whole(value: Any) -> int:
    """Return the number in a variable or a tensor of one integer."""
    return int(keras.ops.convert_to_numpy(value))
