"""From images in memory to training batches, for simulated workers on JAX.

The same chain as in `data.pipeline`, on the device that trains: a batch is chosen by the host, and
made beside the network. The draws are JAX's, so batches differ from TensorFlow's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from data.draws import HIGHEST, LOWEST, keys


def batches(
    images: jax.Array, labels: jax.Array, batch_size: int, augmented: bool
) -> Callable[[int, int], Iterator[tuple[jax.Array, jax.Array]]]:
    """Return a function (seed, worker_index) -> endless shuffled batches of this size."""

    def worker(seed: int, worker_index: int) -> Iterator[tuple[jax.Array, jax.Array]]:
        stream = shared_batch(images, labels, [seed, worker_index], augmented)
        return (stream(start, batch_size) for start in itertools.count(0, batch_size))

    return worker


def shared_batch(
    images: jax.Array, labels: jax.Array, seed: int | Sequence[int], augmented: bool
) -> Callable[[int, int], tuple[jax.Array, jax.Array]]:
    """Return a function (start, count) -> (images float32 [count, ...], labels int32 [count]).

    As in `data.pipeline`: the example at a position of the endless stream, one shuffled pass over
    the set after another, is a pure function of the position and of `seed`.
    """
    size = len(labels)
    order_key, augment_key = keys(seed, 2)
    key = jax.random.key(augment_key)

    @lru_cache(2)
    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng([order_key, epoch]).permutation(size).astype(np.int32)

    def batch(start: int, count: int) -> tuple[jax.Array, jax.Array]:
        epoch, place = divmod(start, size)
        chosen = order(epoch)[place:place + count]
        while len(chosen) < count:
            epoch += 1
            chosen = np.append(chosen, order(epoch)[:count - len(chosen)])
        return _made(images, labels, chosen, np.uint32(start % 2**32), key, augmented)

    return batch


def test(
    images: np.ndarray, labels: np.ndarray, batch_size: int
) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Yield every image once, in order."""
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        yield standardize(jnp.asarray(images[part])), jnp.asarray(labels[part])


def in_memory(images: np.ndarray, labels: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Return the set in the memory of the device that trains."""
    return jnp.asarray(images), jnp.asarray(labels)


@jax.jit
def standardize(images: jax.Array, contrast: jax.Array | float = 1.0) -> jax.Array:
    """Adjust the contrast [batch] about each channel's mean, then standardize each image.

    uint8 to float32. Equals `data.pipeline.standardize`.
    """
    x = images.astype(jnp.float32)
    mean = x.mean((1, 2), keepdims=True)
    x = mean + jnp.reshape(contrast, (-1, 1, 1, 1)) * (x - mean)
    x -= x.mean((1, 2, 3), keepdims=True)
    # The floor is per_image_standardization's: a uniform image becomes zero.
    std = jnp.sqrt(jnp.maximum((x**2).mean((1, 2, 3), keepdims=True), 1 / x[0].size))
    return x / std


@partial(jax.jit, static_argnames="augmented")
def _made(images: jax.Array, labels: jax.Array, chosen: jax.Array, start: jax.Array,
          key: jax.Array, augmented: bool) -> tuple[jax.Array, jax.Array]:
    """Return the batch of the `chosen` examples, which begin at position `start`."""
    x = images[chosen]
    if not augmented:
        return standardize(x), labels[chosen]
    draws = jax.vmap(lambda position: jax.random.uniform(jax.random.fold_in(key, position), (2,)))(
        start + jnp.arange(len(chosen), dtype=jnp.uint32))  # [batch, 2]
    x = standardize(x, LOWEST + (HIGHEST - LOWEST) * draws[:, 1])
    return jnp.where((draws[:, 0] < 0.5)[:, None, None, None], x[:, :, ::-1], x), labels[chosen]
