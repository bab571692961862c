"""A network of simulated workers on JAX: a step is a pure function of x and the other state."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from wbsp.replica.layers import trained
from wbsp.simulate.workloads.network import SharedNetwork


def make_deterministic() -> None:
    """Make the same computation give the same bits on one machine, and products of float32 exact.

    To be called before JAX computes anything.
    """
    os.environ["XLA_FLAGS"] = " ".join([
        os.environ.get("XLA_FLAGS", ""), "--xla_cpu_multi_thread_eigen=false",
        "--xla_gpu_deterministic_ops=true"])
    jax.config.update("jax_default_matmul_precision", "highest")
    keras.utils.set_random_seed(0)  # imports TensorFlow, where it is installed: now, not in a run


class Network(SharedNetwork):
    """A compiled model; this object holds the state of one worker after another."""

    def __init__(self, model: keras.Model, batch: Any):
        super().__init__(model, batch)
        self._chosen = trained(model)
        mine = {id(v) for v in [*self._chosen, *self._own]}
        self._still = [v for v in model.variables if id(v) not in mine]  # no step changes them
        self._fixed = [v.value for v in self._still]
        self._optimizer = [v.value for v in model.optimizer.variables]
        self._x = _join([v.value for v in self._chosen])
        self._held = [v.value for v in self._own]
        self._version: tuple[Any, Any] = None, None  # the newest vector, here and on the device
        self._ends = np.cumsum([v.value.size for v in self._chosen])[:-1]
        self._counter = next(n for n, v in enumerate(self._own) if v is model.optimizer.iterations)
        model.reset_metrics()
        self._metrics = [v.value for v in model.metrics_variables]
        self._step = jax.jit(self._step_on_batch)
        self._test = jax.jit(self._test_on_batch)

    def begin(self, fresh: keras.Model) -> tuple[jax.Array, list[jax.Array]]:
        self._assign(fresh)
        self._fixed = [v.value for v in self._still]
        self._x = _join([v.value for v in self._chosen])
        kept = len(self._own) - len(self._optimizer)
        self._held = [*(v.value for v in self._own[:kept]), *self._optimizer]
        return self._x, self._held

    def bring(self, vector: np.ndarray) -> jax.Array:
        if vector is not self._version[0]:  # all workers adopt the same version
            # A copy: `asarray` may keep the memory of an aligned array.
            self._version = vector, jnp.array(vector)
        return self._version[1]

    def send(self, update: jax.Array) -> np.ndarray:
        return np.array(update)

    def read(self) -> jax.Array:
        return self._x

    def write(self, x: jax.Array) -> None:
        self._x = x

    def step(self, batch: Any) -> float:
        self._x, self._held, loss = self._step(self._x, self._held, self._fixed, batch)
        return float(loss)

    def step_on(self, batch: Any) -> float:
        """Each size is compiled once."""
        return self.step(batch)

    def count(self, steps: int) -> None:
        self._held = [*self._held]
        self._held[self._counter] = jnp.asarray(steps, self._held[self._counter].dtype)

    def set_rate(self, rate: float) -> None:
        place = next(n for n, v in enumerate(self._own)
                     if v is self.model.optimizer._learning_rate)
        self._held = [*self._held]
        self._held[place] = jnp.asarray(rate, self._held[place].dtype)

    def own(self) -> list[jax.Array]:
        return self._held

    def take(self, own: list[jax.Array]) -> None:
        self._held = own

    def evaluate(self, vector: np.ndarray, test_set: Iterable[Any]) -> dict[str, float]:
        self._x = self.bring(vector)
        metrics, result = self._metrics, {}
        for batch in test_set:
            result, metrics = self._test(self._x, self._held, self._fixed, metrics, batch)
        return {name: float(value) for name, value in result.items()}

    def _step_on_batch(self, x: jax.Array, own: list[jax.Array], fixed: list[jax.Array],
                       batch: Any) -> tuple[jax.Array, list[jax.Array], jax.Array]:
        """Return x, the other state and the loss after a step."""
        model, held = self.model, self._spread(x, own, fixed)
        parts = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables
        logs, state = model.train_step(
            (*([held[id(v)] for v in part] for part in parts), self._metrics), batch)
        for part, values in zip(parts, state, strict=False):
            held |= {id(v): value for v, value in zip(part, values, strict=True)}
        return (_join([held[id(v)] for v in self._chosen]), [held[id(v)] for v in self._own],
                logs["loss"])

    def _test_on_batch(self, x: jax.Array, own: list[jax.Array], fixed: list[jax.Array],
                       metrics: list[jax.Array], batch: Any
                       ) -> tuple[dict[str, Any], list[jax.Array]]:
        """Return the metrics until now, and their state."""
        model, held = self.model, self._spread(x, own, fixed)
        parts = model.trainable_variables, model.non_trainable_variables
        logs, state = model.test_step(
            (*([held[id(v)] for v in part] for part in parts), metrics), batch)
        return logs, state[-1]

    def _spread(self, x: jax.Array, own: list[jax.Array],
                fixed: list[jax.Array]) -> dict[int, jax.Array]:
        """Return the value of each variable, by its id."""
        values = [part.reshape(v.shape).astype(v.dtype) for v, part in
                  zip(self._chosen, jnp.split(x, self._ends), strict=True)]
        return {id(v): value for v, value in
                zip([*self._chosen, *self._own, *self._still], [*values, *own, *fixed],
                    strict=True)}


def _join(values: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([value.astype(jnp.float32).ravel() for value in values])
