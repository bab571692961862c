"""From images in memory to training batches: shuffle, augment, standardize.

The pipeline shares its cores with the training step, so it works on whole batches, and the
published chain (flip, brightness, contrast, standardization) is one affine map per channel:

    contrast f, brightness d:   y = f * (x - mean_c) + mean_c + d     mean_c over one channel
    standardization:            (y - mean) / std                      over the whole image

`mean` contains d as well, so brightness cancels and is not computed at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from data.draws import HIGHEST, LOWEST, keys

PART = 16  # examples in each of the parts that make up a batch of any size


def train(
    images: np.ndarray,
    labels: np.ndarray,
    batch_size: int,
    seed: int,
    worker_index: int,
    augmented: bool,
) -> tf.data.Dataset:
    """Return endless shuffled batches; `augmented` adds random flips and contrast."""
    if not 1 <= batch_size <= len(images):
        raise ValueError(f"batch_size={batch_size}: choose 1 to {len(images)}, the set's size")
    images, labels = in_memory(images, labels)
    order_key, augment_key = keys([seed, worker_index], 2)
    made = _batch_of(images, labels, batch_size, augmented)
    return (
        tf.data.Dataset.counter()
        .map(lambda epoch: _order(len(labels), [order_key, epoch]))
        .rebatch(batch_size, drop_remainder=True)
        .enumerate()
        .map(lambda step, chosen: made(chosen, [augment_key, step]))
        .apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        .prefetch(2)
        .with_options(untuned())
    )


def batches(
    images: np.ndarray, labels: np.ndarray, batch_size: int, augmented: bool
) -> Callable[[int, int], Iterator[tuple[tf.Tensor, tf.Tensor]]]:
    """Return a function (seed, worker_index) -> the batches of `train`, each made when asked for.

    All workers share two graphs. A `train` for each takes 0.1 s, as long as 20 small steps.
    """
    images, labels = in_memory(images, labels)
    count, key = len(labels), tf.TensorSpec([2], tf.int64)
    chosen = tf.TensorSpec([batch_size], tf.int32)
    order = tf.function(lambda seed: _order(count, seed), input_signature=[key])
    made = tf.function(_batch_of(images, labels, batch_size, augmented),
                       input_signature=[chosen, key])

    def worker(seed: int, worker_index: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        order_key, augment_key = keys([seed, worker_index], 2)
        epochs, left = itertools.count(), np.empty(0, np.int32)
        for step in itertools.count():
            with tf.device("CPU:0"):
                while len(left) < batch_size:
                    left = np.append(left, order(tf.constant([order_key, next(epochs)], tf.int64)))
                batch = made(tf.constant(left[:batch_size]),
                             tf.constant([augment_key, step], tf.int64))
            left = left[batch_size:]
            yield batch

    return worker


def shared_batch(
    images: np.ndarray, labels: np.ndarray, seed: int | Sequence[int], augmented: bool
) -> Callable[[int | tf.Tensor, int | tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return a function (start, count) -> (images float32 [count, ...], labels int32 [count]).

    It returns the examples at positions start ... start + count - 1 of an endless stream, one
    shuffled pass over the set after another. The example at a position is a pure function of the
    position and of `seed`: it depends neither on the batch nor on the worker.
    """
    images, labels = in_memory(images, labels)
    order_key, augment_key = keys(seed, 2)
    shape = images.shape[1:]
    text = is_text(images)
    kinds = (tf.TensorSpec([PART, *shape], tf.int32 if text else tf.float32),
             tf.TensorSpec([PART, *labels.shape[1:]], tf.int32 if text else labels.dtype))

    def part(first):
        chosen = shuffled(tf.range(first, first + PART), len(labels), order_key)
        x = tf.ensure_shape(tf.gather(images, chosen), [PART, *shape])
        if text:
            return _bytes(x, tf.ensure_shape(tf.gather(labels, chosen), x.shape))
        if augmented:
            x = augment(x, *_flip_and_contrast(_draws(augment_key, first, PART)))
        else:
            x = standardize(x)
        return x, tf.gather(labels, chosen)

    # Traced once for all counts; XLA compiles once as well, since all parts have one size.
    @tf.function(input_signature=2 * [tf.TensorSpec([], tf.int64)])
    def batch(start, count):
        with tf.device("CPU:0"):
            firsts = tf.range(start, start + count, PART)
            x, y = tf.map_fn(part, firsts, fn_output_signature=kinds)
            return (tf.reshape(x, [-1, *shape])[:count],
                    tf.reshape(y, [-1, *labels.shape[1:]])[:count])

    return batch


def test(images: np.ndarray, labels: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """Return every image once, in order."""
    images, labels = in_memory(images, labels)
    return (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .batch(batch_size)
        .map(_bytes if is_text(images) else lambda x, y: (standardize(x), y))
        .prefetch(2)
        .with_options(untuned())
    )


def untuned() -> tf.data.Options:
    """Return options without TensorFlow's autotuning thread.

    These pipelines have no buffers to tune, and TensorFlow 2.21 sometimes waits for that thread for
    up to a minute when an iterator is deleted.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


@tf.function(jit_compile=True)
def augment(images: tf.Tensor, flip: tf.Tensor, contrast: tf.Tensor) -> tf.Tensor:
    """Mirror where `flip` [batch], adjust the contrast [batch], standardize."""
    x = standardize(images, contrast)
    return tf.where(flip[:, None, None, None], x[:, :, ::-1], x)


# Compiled to one loop over the pixels: ten times faster than op by op.
@tf.function(jit_compile=True)
def standardize(images: tf.Tensor, contrast: tf.Tensor | float = 1.0) -> tf.Tensor:
    """Adjust the contrast [batch] about each channel's mean, then standardize each image.

    uint8 to float32. Equals `tf.image.adjust_contrast`, then `per_image_standardization`.
    """
    whole = tf.cast(images, tf.int32)  # sums of whole numbers are exact
    _, height, width, channels = images.shape
    pixels = height * width
    channel_mean = tf.cast(tf.reduce_sum(whole, [1, 2]), tf.float32) / pixels  # [batch, channels]
    mean = tf.reduce_mean(channel_mean, 1, keepdims=True)  # [batch, 1]
    squares = tf.cast(tf.reduce_sum(whole * whole, [1, 2, 3]), tf.float32) / (pixels * channels)

    contrast = tf.reshape(contrast, [-1, 1])  # [batch, 1], or [1, 1] for all
    within = squares[:, None] - tf.reduce_mean(channel_mean**2, 1, keepdims=True)
    between = tf.reduce_mean((channel_mean - mean) ** 2, 1, keepdims=True)
    # The floor is per_image_standardization's: a uniform image becomes zero.
    std = tf.sqrt(tf.maximum(contrast**2 * within + between, 1 / (pixels * channels)))  # [batch, 1]
    scale = contrast / std
    shift = (channel_mean - mean) / std - scale * channel_mean
    return tf.cast(images, tf.float32) * scale[:, None, None] + shift[:, None, None]


def is_text(images: tf.Tensor) -> bool:
    """Return whether the examples are windows of bytes, which pass as they are."""
    return len(images.shape) == 2


def _bytes(seen: tf.Tensor, wanted: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(seen, tf.int32), tf.cast(wanted, tf.int32)


def _order(count: int, seed: Sequence[int] | tf.Tensor) -> tf.Tensor:
    """Return a pass over `count` examples, int32 [count]."""
    return tf.random.experimental.stateless_shuffle(tf.range(count), seed=seed)


def _batch_of(
    images: tf.Tensor, labels: tf.Tensor, batch_size: int, augmented: bool
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Return a function (chosen int32 [batch], seed of its draws [2]) -> the batch."""

    def batch(chosen, seed):
        x = tf.ensure_shape(tf.gather(images, chosen), [batch_size, *images.shape[1:]])
        if is_text(images):
            return _bytes(x, tf.ensure_shape(tf.gather(labels, chosen), x.shape))
        if not augmented:
            return standardize(x), tf.gather(labels, chosen)
        draws = tf.random.stateless_uniform([2, batch_size], seed=seed)
        return augment(x, *_flip_and_contrast(draws)), tf.gather(labels, chosen)

    return batch


def _flip_and_contrast(draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return flips and contrasts, both [batch], from uniform numbers in [0, 1): draws [2, batch].
    """
    return draws[0] < 0.5, LOWEST + (HIGHEST - LOWEST) * draws[1]


def shuffled(position: tf.Tensor, size: int, key: int) -> tf.Tensor:
    """Return the index of the image, 0 ... size - 1, at each position, int64 [batch].

    Computes only the requested elements of a pass's permutation.
    """
    seed = tf.stack([position // size, *2 * [tf.fill(tf.shape(position), np.int64(key))]], 1)
    # With TensorFlow's usual 4 rounds one pass over 50,000 images looks like the next.
    return tf.raw_ops.RandomIndexShuffle(
        index=position % size, seed=seed, max_index=np.int64(size - 1), rounds=16
    )


def _draws(key: int, start: tf.Tensor, count: int) -> tf.Tensor:
    """Draw numbers in [0, 1) for positions start ... start + count - 1: float32 [2, count].

    Philox is a function of a key and a counter, and draws four numbers for each count; the position
    is the counter.
    """
    philox = 1
    draws = tf.raw_ops.StatelessRandomUniformV2(
        shape=[count, 4], key=[np.uint64(key)], counter=[tf.cast(start, tf.uint64), 0], alg=philox
    )
    return tf.transpose(draws[:, :2])


def in_memory(images: np.ndarray, labels: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the set as tensors in host memory: the CPU makes batches also beside a GPU."""
    with tf.device("CPU:0"):
        return tf.constant(images), tf.constant(labels)
