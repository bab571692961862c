"""Variables of a Keras model on TensorFlow, under any `tf.distribute` strategy of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from wbsp.layout import TensorSpec, total_size
from wbsp.replica.base import Variables
from wbsp.replica.host import HostVariables, OneByOne
from wbsp.wire.memory import BufferPool

# A call of a function costs as much as operations for so many variables, and copies all twice.
MANY = 16
SMALL = 1 << 14  # floats of a variable up to which that is worth it


def variables(model: keras.Model, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
              pool: BufferPool) -> Variables:
    """The `chosen` variables of `model`."""
    strategy = model.distribute_strategy or tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync > 1 or tf.config.list_logical_devices("GPU"):
        return OnDevices(chosen, layout, strategy)
    if len(layout) > MANY and total_size(layout) <= SMALL * len(layout):
        return OneCall(OnDevices(chosen, layout, strategy), total_size(layout), pool)
    return OneByOne([_held(variable) for variable in chosen], layout, pool, _view, _write)


def number(model: keras.Model, variable: keras.Variable) -> Callable[[], float]:
    """See `wbsp.replica.model.number`."""
    if (model.distribute_strategy or tf.distribute.get_strategy()).num_replicas_in_sync > 1:
        return lambda: float(variable.numpy())  # of all devices
    held = _held(variable)
    return lambda: float(_view(held))


class _Held(NamedTuple):
    """What TensorFlow's operations need of a variable; to ask it each time takes as long as one."""

    handle: tf.Tensor
    dtype: tf.DType
    is_float32: bool


def _held(variable: keras.Variable) -> _Held:
    held = variable.value
    return _Held(held.handle, held.dtype, held.dtype == tf.float32)


def _view(held: _Held) -> np.ndarray:
    # Python's own way to the same operation takes four times as long.
    value = tf.raw_ops.ReadVariableOp(resource=held.handle, dtype=held.dtype)
    return np.asarray(value if held.is_float32 else tf.cast(value, tf.float32))


def _write(held: _Held, value: np.ndarray) -> None:
    # As above. The value is copied, since the operation alone would take it as it is where it is
    # aligned; `constant` copies it twice.
    copied = (tf.raw_ops.DeepCopy(x=value) if held.is_float32
              else tf.constant(value, held.dtype))
    tf.raw_ops.AssignVariableOp(resource=held.handle, value=copied)


class OnDevices:
    """Variables on a GPU, or on several devices that all hold the same x.

    `gather` takes the first device's copy, `scatter` writes all copies.
    """

    def __init__(self, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
                 strategy: tf.distribute.Strategy):
        self._chosen, self._layout = chosen, layout
        flat = tf.TensorSpec([total_size(layout)], tf.float32)
        with strategy.scope():
            self.gather, self.scatter, self.cut, self.rebase = (
                tf.function(made).get_concrete_function(*given)
                for made, *given in ((self._gather,), (self._scatter, flat), (self._cut, flat),
                                     (self._rebase, flat, flat)))

    def bring(self, vector: np.ndarray) -> tf.Tensor:
        return tf.constant(vector)

    def difference(self, x: tf.Tensor, anchor: tf.Tensor) -> tf.Tensor:
        return x - anchor

    def send(self, update: tf.Tensor) -> Any:
        return update

    def _gather(self) -> tf.Tensor:
        flat = [tf.reshape(tf.cast(v.value, tf.float32), [-1]) for v in self._chosen]
        return tf.concat(flat, 0)

    def _scatter(self, vector: tf.Tensor) -> None:
        parts = tf.split(vector, [spec.size for spec in self._layout])
        for variable, part, spec in zip(self._chosen, parts, self._layout, strict=True):
            variable.assign(tf.cast(tf.reshape(part, spec.shape), variable.dtype))

    def _cut(self, anchor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = self._gather()
        return x - anchor, x

    def _rebase(self, vector: tf.Tensor, anchor: tf.Tensor) -> tf.Tensor:
        x = vector + (self._gather() - anchor)
        self._scatter(x)
        return x

class OneCall(HostVariables):
    """Many small variables: one call for all of them costs less than a call for each."""

    def __init__(self, devices: OnDevices, size: int, pool: BufferPool):
        """`devices`: the same variables; `size`: floats in all of them."""
        super().__init__([TensorSpec("x", (size,))], pool)
        self._devices = devices

    def views(self) -> Iterator[np.ndarray]:
        yield np.asarray(self._devices.gather())

    def write(self, values: Iterator[np.ndarray]) -> None:
        for value in values:
            self._devices.scatter(self._devices.bring(value))
