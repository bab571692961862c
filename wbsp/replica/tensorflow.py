"""A Keras model as one flat float32 vector: read, cut, adopt.

The vector holds the trainable float variables first, then the float non-trainable ones, so that
BatchNorm statistics take part as deltas like the rest. Optimizer state is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from wbsp.layout import TensorSpec, total_size


class KerasReplica:
    """The live model x and its anchor; only the compute thread may use it.

    Under a mirrored strategy all devices of this worker hold the same x: `read` takes the first
    device's copy, `adopt` writes all copies.
    """

    def __init__(self, model: keras.Model):
        """Raises ValueError for a model that is not built, has no float variables, or does not
        run on TensorFlow."""
        if keras.backend.backend() != "tensorflow":
            raise ValueError(f"wbsp needs Keras on TensorFlow, not {keras.backend.backend()}; set "
                             "KERAS_BACKEND=tensorflow")
        if not model.built:
            raise ValueError(f"model {model.name} is not built; give it an Input layer or call "
                             "model.build(input_shape) before fit")
        weights = [*model.trainable_weights, *model.non_trainable_weights]
        self._variables = [v for v in weights if "float" in v.dtype]
        if not self._variables:
            raise ValueError(f"model {model.name} has no variables of floats: there is nothing to "
                             "train together")
        self.layout: Sequence[TensorSpec] = [
            TensorSpec(v.path, tuple(v.shape)) for v in self._variables]
        strategy = model.distribute_strategy or tf.distribute.get_strategy()
        # Called at every step: a concrete function costs half of a tf.function, and half again
        # where XLA makes it one loop in the calling thread.
        one_cpu = strategy.num_replicas_in_sync == 1 and not tf.config.list_logical_devices("GPU")
        with strategy.scope():
            self._gather = tf.function(
                self._concatenate, jit_compile=one_cpu).get_concrete_function()
            self._scatter = tf.function(
                self._assign, jit_compile=one_cpu).get_concrete_function(
                    tf.TensorSpec([total_size(self.layout)], tf.float32))
        self._x: np.ndarray | None = None  # x, until the next step changes it
        self._anchor = self.read()
        self.adopt(self._anchor, "replace")  # compile now what compiles at first use

    def read(self) -> np.ndarray:
        """The live model x, float32 [size]; callers must not write to the array."""
        if self._x is None:
            self._x = self._gather().numpy()
        return self._x

    def stepped(self) -> None:
        """Notification that a step has changed the variables."""
        self._x = None

    def cut(self) -> np.ndarray:
        """The update x - anchor, float32 [size], a new array; then anchor = x."""
        x = self.read()
        update = x - self._anchor
        self._anchor = x
        return update

    def adopt(self, vector: np.ndarray, how: str) -> None:
        """Adopt `vector` W, float32 [size], which is kept: `replace` sets x = W, `rebase` sets
        x = W + (x - anchor); then anchor = W."""
        x = vector if how == "replace" else vector + (self.read() - self._anchor)
        self._scatter(tf.constant(x))
        self._x, self._anchor = x, vector

    def _concatenate(self) -> tf.Tensor:
        flat = [tf.reshape(tf.cast(v.value, tf.float32), [-1]) for v in self._variables]
        return tf.concat(flat, 0)

    def _assign(self, flat: tf.Tensor) -> None:
        parts = tf.split(flat, [spec.size for spec in self.layout])
        for variable, part, spec in zip(self._variables, parts, self.layout, strict=True):
            variable.assign(tf.cast(tf.reshape(part, spec.shape), variable.dtype))
