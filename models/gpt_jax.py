"""The decoder of `models.gpt` and its training as pure functions of JAX, for virtual time.

The function equals the Keras model, and a step that of Keras's AdamW. It takes less time, because
it is one compiled function of the flat vector. Nothing of Keras is imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from models.adamw import EPSILON, AdamW
from models.gpt import EPSILON as NORM_EPSILON
from models.gpt import Shape, initial

AT_ONCE = 64  # windows of an evaluation


def logits(form: Shape, values: Mapping[str, jax.Array], seen: jax.Array) -> jax.Array:
    """Return the network's float32 [batch, context, 256] for int32 [batch, context] bytes.

    Args:
        form: of the network.
        values: name -> array, as of `models.gpt.initial`.
        seen: the bytes.
    """
    batch, context = seen.shape
    per_head = form.width // form.heads
    causal = jnp.tril(jnp.ones((context, context), bool))

    def norm(x: jax.Array, gain: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + NORM_EPSILON) * gain

    def split(x: jax.Array) -> jax.Array:  # to [batch, heads, context, width of a head]
        return x.reshape(batch, context, form.heads, per_head).transpose(0, 2, 1, 3)

    x = values["bytes"][seen] + values["positions"]
    for n in range(form.layers):
        three = norm(x, values[f"norm{n}a"]) @ values[f"attend{n}"]
        q, k, v = (split(part) for part in jnp.split(three, 3, -1))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(per_head)
        mixed = jax.nn.softmax(jnp.where(causal, scores, -1e9), -1) @ v
        x = x + mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ values[f"project{n}"]
        wide = jax.nn.gelu(norm(x, values[f"norm{n}b"]) @ values[f"widen{n}"], approximate=True)
        x = x + wide @ values[f"narrow{n}"]
    return norm(x, values["norm"]) @ values["bytes"].T


class Training:
    """Training of the decoder on windows of a text: a task of virtual workers.

    Args:
        form: of the network.
        optimizer: options of AdamW.
        train: (bytes, the byte after each), uint8 [n, context], as of `data.stdlib`.
        test: the same, of which the versions are evaluated.
    """

    statistics = ()  # the decoder has no layers that keep any

    def __init__(self, form: Shape, optimizer: AdamW, train: tuple[np.ndarray, np.ndarray],
                 test: tuple[np.ndarray, np.ndarray]):
        self._form, self._optimizer, self._n = form, optimizer, len(train[0])
        begin = initial(form, 0)
        self._shapes = {name: value.shape for name, value in begin.items()}
        self._ends = np.cumsum([value.size for value in begin.values()])[:-1]
        self._matrices = _join({name: np.full(value.shape, value.ndim > 1, np.float32)
                                for name, value in begin.items()})
        self._train = tuple(jnp.asarray(part) for part in train)
        self._test = [tuple(jnp.asarray(part[start:start + AT_ONCE]) for part in test)
                      for start in range(0, len(test[0]), AT_ONCE)]
        self._step = jax.jit(self._stepped)
        self._measure = jax.jit(self._measured)

    def make(self, seed: int) -> tuple[np.ndarray, int]:
        """Return W_0, float32 [size], and the number of examples."""
        return _join(initial(self._form, seed)), self._n

    def make_state(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Return a worker's moments, and its steps so far."""
        zero = np.zeros_like(self._matrices)
        return zero, zero, 0

    def step(self, values: jax.Array, state: tuple, indices: np.ndarray,
             rate: float) -> tuple[jax.Array, tuple, jax.Array]:
        """Train the examples of these indices; return values, state and loss."""
        return self._step(values, state, indices, np.float32(rate), *self._train)

    def evaluate(self, values: np.ndarray) -> dict[str, float]:
        """Return loss in nats, bits a byte, and how often the byte is the first guess, or among
        the first five."""
        sums, count = np.zeros(3), 0
        for part in self._test:
            sums += self._measure(values, *part)
            count += part[0].size
        loss, first, five = (float(value) for value in sums / count)
        return {"loss": loss, "bits_per_byte": loss / math.log(2), "accuracy": first, "top5": five}

    def _stepped(self, values: jax.Array, state: tuple, indices: jax.Array, rate: jax.Array,
                 seen: jax.Array, wanted: jax.Array) -> tuple[jax.Array, tuple, jax.Array]:
        own = self._optimizer
        loss, gradient = jax.value_and_grad(self._loss)(values, seen[indices], wanted[indices])
        if own.clip:
            gradient *= jnp.minimum(1.0, own.clip / (jnp.linalg.norm(gradient) + 1e-9))
        first, second, steps = state
        steps += 1
        first = own.beta1 * first + (1 - own.beta1) * gradient
        second = own.beta2 * second + (1 - own.beta2) * gradient * gradient
        corrected = jnp.sqrt(1 - own.beta2 ** steps) / (1 - own.beta1 ** steps)
        update = corrected * first / (jnp.sqrt(second) + EPSILON)
        moved = values - rate * (update + own.decay * self._matrices * values)
        return moved, (first, second, steps), loss

    def _loss(self, values: jax.Array, seen: jax.Array, wanted: jax.Array) -> jax.Array:
        return jnp.mean(self._guessed(values, seen, wanted)[1])

    def _measured(self, values: jax.Array, seen: jax.Array, wanted: jax.Array) -> jax.Array:
        """Return sums over the bytes: loss, right first guesses, right among five."""
        guessed, loss = self._guessed(values, seen, wanted)
        chosen = jnp.take_along_axis(guessed, wanted.astype(int)[..., None], -1)
        better = jnp.sum(guessed > chosen, -1)
        return jnp.stack([jnp.sum(loss), jnp.sum(better < 1), jnp.sum(better < 5)])

    def _guessed(self, values: jax.Array, seen: jax.Array,
                 wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the logits, and the loss of each byte."""
        parts = zip(self._shapes.items(), jnp.split(values, self._ends), strict=True)
        guessed = logits(self._form, {name: part.reshape(shape) for (name, shape), part in parts},
                         seen.astype(int))
        chosen = jnp.take_along_axis(guessed, wanted.astype(int)[..., None], -1)[..., 0]
        return guessed, jax.nn.logsumexp(guessed, -1) - chosen


def _join(values: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([value.ravel() for value in values.values()])
