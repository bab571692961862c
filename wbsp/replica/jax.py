"""Variables of a Keras model on JAX.

Keras's trainer keeps the values outside of the model while it trains. Whoever takes
`Callback.model` between two steps has them put back; what is assigned then is what the next step
begins with. A step's arrays are given away to the next step: none may be kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from wbsp.replica.base import Variables
from wbsp.replica.host import OneByOne
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import TensorSpec


def variables(model: keras.Model, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
              pool: BufferPool) -> Variables:
    """The `chosen` variables of `model`."""
    devices = {device for variable in chosen for device in variable.value.devices()}
    if len(devices) > 1 or devices.pop().platform != "cpu":
        return OnDevices(chosen, layout)
    return OneByOne(chosen, layout, pool, _view, _write)


def _view(variable: keras.Variable) -> np.ndarray:
    return np.asarray(variable.value).astype(np.float32, copy=False)


def _write(variable: keras.Variable, value: np.ndarray) -> None:
    # `device_put` takes memory that is aligned to 64 bytes for its own, may_alias=False or not.
    variable.assign(jnp.array(value, copy=True))


class OnDevices(Variables):
    """Variables on an accelerator, or on several devices under a `keras.distribution`."""

    def __init__(self, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec]):
        self._chosen = chosen
        self._layout = layout
        self._gather = jax.jit(_join)
        self._cut = jax.jit(_difference)
        self._part = jax.jit(self._split)
        self._rebase = jax.jit(lambda vector, values, anchor: vector + (_join(values) - anchor))
        self._sharding = self.gather().sharding

    def gather(self) -> jax.Array:
        return self._gather(self._values())

    def scatter(self, vector: jax.Array) -> None:
        for variable, value in zip(self._chosen, self._part(vector), strict=True):
            variable.assign(value)

    def cut(self, anchor: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._cut(self._values(), anchor)

    def rebase(self, vector: jax.Array, anchor: jax.Array) -> jax.Array:
        x = self._rebase(vector, self._values(), anchor)
        self.scatter(x)
        return x

    def bring(self, vector: np.ndarray) -> jax.Array:
        return jax.device_put(vector, self._sharding, may_alias=False)

    def _values(self) -> list[jax.Array]:
        return [variable.value for variable in self._chosen]

    def _split(self, vector: jax.Array) -> list[jax.Array]:
        ends = np.cumsum([spec.size for spec in self._layout])
        return [part.reshape(spec.shape).astype(variable.dtype) for variable, part, spec in
                zip(self._chosen, jnp.split(vector, ends[:-1]), self._layout, strict=True)]


def _difference(values: Sequence[jax.Array], anchor: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = _join(values)
    return x - anchor, x


def _join(values: Sequence[jax.Array]) -> jax.Array:
    return jnp.concatenate([value.astype(jnp.float32).ravel() for value in values])
