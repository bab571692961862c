"""A network of simulated workers on TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wbsp.replica.model import open_replica
from wbsp.simulate.workloads.network import SharedNetwork

# How a sum is split among threads decides its last bits, so the number of threads must not depend
# on the machine. Two threads lose nothing on small networks; several runs fill a larger machine.
THREADS = 2


def make_deterministic() -> None:
    """Make the same computation give the same bits, on one core or many.

    Raises RuntimeError if TensorFlow has computed anything before.
    """
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    tf.config.experimental.enable_op_determinism()


class Network(SharedNetwork):
    """A compiled model whose variables hold the state of one worker after another."""

    def __init__(self, model: keras.Model, batch: Any):
        super().__init__(model, batch)
        self._replica = open_replica(model)
        self._x: np.ndarray | None = None  # None: not known, since a step changed it
        self._step = tf.function(self._step_on_batch, jit_compile=model.jit_compile)
        self._test = tf.function(model.test_step, jit_compile=model.jit_compile)
        # Traced once for batches of all sizes, and never with XLA, which compiles for each.
        any_size = tf.nest.map_structure(
            lambda part: tf.TensorSpec([None, *part.shape[1:]], part.dtype), batch)
        self._step_on = tf.function(self._step_on_batch, input_signature=[any_size])
        self._read_own = tf.function(lambda: [tf.identity(v.value) for v in self._own])
        self._write_own = tf.function(self._assign_own)
        self._optimizer = [tf.identity(v.value) for v in model.optimizer.variables]

    def begin(self, fresh: keras.Model) -> tuple[np.ndarray, list[tf.Tensor]]:
        self._assign(fresh)
        self._replica.stepped()
        self._x = None
        kept = len(self._own) - len(self._optimizer)
        return self.read(), [*self._read_own()[:kept], *self._optimizer]

    def bring(self, vector: np.ndarray) -> np.ndarray:
        return vector

    def send(self, update: np.ndarray) -> np.ndarray:
        return update

    def read(self) -> np.ndarray:
        if self._x is None:
            self._x = self._replica.read()
        return self._x

    def write(self, x: np.ndarray) -> None:
        if x is not self._x:
            self._replica.adopt(self._replica.bring(x), "replace")
            self._x = x

    def step(self, batch: Any) -> float:
        return self._stepped(self._step(batch))

    def step_on(self, batch: Any) -> float:
        return self._stepped(self._step_on(batch))

    def count(self, steps: int) -> None:
        self.model.optimizer.iterations.assign(steps)

    def set_rate(self, rate: float) -> None:
        self.model.optimizer.learning_rate = rate

    def own(self) -> list[tf.Tensor]:
        return self._read_own()

    def take(self, own: list[tf.Tensor]) -> None:
        self._write_own(own)

    def evaluate(self, vector: np.ndarray, test_set: Iterable[Any]) -> dict[str, float]:
        """`Model.evaluate` would take some milliseconds more."""
        self.write(vector)
        self.model.reset_metrics()
        result: dict[str, tf.Tensor] = {}
        for batch in test_set:
            result = self._test(batch)
        return {name: float(value) for name, value in result.items()}

    def _stepped(self, loss: tf.Tensor) -> float:
        self._replica.stepped()
        self._x = None
        return float(loss)

    def _step_on_batch(self, batch: Any) -> tf.Tensor:
        for metric in self.model.metrics:  # so that the loss is only this batch's
            metric.reset_state()
        return self.model.train_step(batch)["loss"]

    def _assign_own(self, values: list[tf.Tensor]) -> None:
        for variable, value in zip(self._own, values, strict=True):
            variable.assign(value)
