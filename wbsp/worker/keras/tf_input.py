"""Assigned examples as a tf.data.Dataset that Keras can fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from wbsp.worker.assignments import Assignments

_NO_MORE = 0, -1


def batches(assignments: Assignments,
            examples: Callable[[tf.Tensor, tf.Tensor], Any]) -> tf.data.Dataset:
    """Return a dataset of `examples`(start, count) for each assigned piece, made while the worker
    waits for a model."""
    readers: list[Iterator[tuple[int, int]]] = []  # one for each iterator of the dataset

    def open_reader() -> int:
        readers.append(iter(assignments))
        return len(readers) - 1

    def read(reader: int) -> tuple[int, int]:
        return next(readers[reader], _NO_MORE)

    def made(start: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return count > 0, examples(start, tf.maximum(count, 1))

    def call(function: Callable[..., Any], inputs: list[tf.Tensor],
             outputs: int) -> tuple[tf.Tensor, ...]:
        results = tf.numpy_function(function, inputs, outputs * [tf.int64])
        return tuple(tf.ensure_shape(result, []) for result in results)

    # Not from_generator: it calls Python when an iterator is deleted, perhaps while Python is
    # ending and waits for its threads, which is a deadlock.
    endless = tf.data.Dataset.counter()
    pieces = tf.data.Dataset.from_tensors(0).map(
        lambda _: call(open_reader, [], 1)).flat_map(
        lambda reader: endless.map(lambda _: call(read, [reader], 2)))
    # TensorFlow can stop a thread that makes batches only between two of them. So NOTHING becomes a
    # batch, too, which a filter drops.
    stream = pieces.take_while(lambda _, count: count >= 0).map(made).prefetch(1).filter(
        lambda real, _: real).map(lambda _, batch: batch)
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread may delay an iterator's deletion for a minute
    return stream.with_options(options)
