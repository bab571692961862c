"""Variables of a Keras model on TensorFlow, under any `tf.distribute` strategy of this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wbsp.layout import TensorSpec, total_size
from wbsp.replica.host import HostVariables
from wbsp.wire.memory import BufferPool


def variables(model: keras.Model, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
              pool: BufferPool) -> OnHost | OnDevices:
    """The `chosen` variables of `model`."""
    strategy = model.distribute_strategy or tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1 and not tf.config.list_logical_devices("GPU"):
        return OnHost(chosen, layout, pool)
    return OnDevices(chosen, layout, strategy)


class OnHost(HostVariables):
    """Variables on one CPU."""

    def __init__(self, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
                 pool: BufferPool):
        super().__init__(layout, pool)
        self._chosen = chosen

    def views(self) -> Iterator[np.ndarray]:
        for variable in self._chosen:
            value = tf.cast(variable.value.read_value(), tf.float32)
            yield np.asarray(memoryview(value))

    def write(self, values: Iterator[np.ndarray]) -> None:
        for variable, value in zip(self._chosen, values, strict=True):
            variable.assign(value)


class OnDevices:
    """Variables on a GPU, or on several devices that all hold the same x.

    `gather` takes the first device's copy, `scatter` writes all copies.
    """

    def __init__(self, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
                 strategy: tf.distribute.Strategy):
        self._chosen, self._layout = chosen, layout
        flat = tf.TensorSpec([total_size(layout)], tf.float32)
        with strategy.scope():
            self.gather = tf.function(self._gather).get_concrete_function()
            self.scatter = tf.function(self._scatter).get_concrete_function(flat)
            self.cut = tf.function(self._cut).get_concrete_function(flat)
            self.rebase = tf.function(self._rebase).get_concrete_function(flat, flat)

    def bring(self, vector: np.ndarray) -> tf.Tensor:
        return tf.constant(vector)

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

    def _rebase(self, vector: tf.Tensor, anchor: tf.Tensor) -> None:
        self._scatter(vector + (self._gather() - anchor))
