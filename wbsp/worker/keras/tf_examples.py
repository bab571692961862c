"""The run's shared data as a tf.data.Dataset that Keras can fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wbsp.core.messages import Range
from wbsp.worker.keras.shared_batches import Batches
from wbsp.worker.share import LOOK, NOTHING

_END, _NONE, _BATCH = -1, 0, 1


def dataset(batches: Batches) -> tf.data.Dataset:
    """Return a batch for each step, made by threads of tf.data ahead of the step."""
    structure = keras.tree.lists_to_tuples(batches.look)  # tf.data stacks the arrays of a list
    look = [np.asarray(array) for array in keras.tree.flatten(structure)]
    types = [tf.as_dtype(array.dtype) for array in look]
    readers: list[Iterator[Range]] = []  # one for each iterator of the dataset

    def open_reader() -> np.int64:
        readers.append(iter(batches.share))
        return np.int64(len(readers) - 1)

    def read(reader: int) -> tuple[np.generic | np.ndarray, ...]:
        positions = next(readers[reader], None)
        if positions is None or positions == NOTHING:
            return np.int64(_END if positions is None else _NONE), *look
        made = [np.asarray(array) for array in keras.tree.flatten(batches.of(positions))]
        if positions != LOOK:
            batches.share.made()
        return np.int64(_BATCH), *(array.astype(known.dtype, copy=False)
                                   for array, known in zip(made, look, strict=True))

    def call(reader: tf.Tensor) -> tuple[tf.Tensor, ...]:
        state, *arrays = tf.numpy_function(read, [reader], [tf.int64, *types])
        arrays = [tf.ensure_shape(array, [None, *known.shape[1:]])
                  for array, known in zip(arrays, look, strict=True)]
        return tf.ensure_shape(state, []), *arrays

    def batch(_: Any, *arrays: Any) -> Any:
        return keras.tree.pack_sequence_as(structure, list(arrays))

    # See `tf_input`: not from_generator, which calls Python when an iterator is deleted. NOTHING
    # becomes an element, too, since threads are stopped only between two elements.
    endless = tf.data.Dataset.counter()
    pieces = tf.data.Dataset.from_tensors(0).map(
        lambda _: tf.ensure_shape(tf.numpy_function(open_reader, [], tf.int64), [])).flat_map(
        lambda reader: endless.map(lambda _: call(reader)))
    stream = pieces.take_while(lambda state, *_: state >= _NONE).prefetch(1).filter(
        lambda state, *_: state == _BATCH).map(batch).prefetch(1)
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread may delay an iterator's deletion for a minute
    # Else a step's operations would wait for threads in which Python makes the next batch.
    options.threading.private_threadpool_size = 1
    return stream.with_options(options)
