"""The experiment's data sets by name, and the batches that a worker trains on.

A worker reads the whole training set in an order of its own, or takes its part of one stream that
all workers share. Batches are a pure function of (seed, worker index, position in the stream): a
run can be repeated, whatever the threads do. TensorFlow is imported when a pipeline is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

KNOWN = ("cifar10", "shapes10")


def load(
    name: str, data_dir: str | PathLike | None = None, split: str = "train"
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, 32, 32, 3] and labels int32 [n] of the "train" or "test" split.

    `data_dir` is the folder of the set's files, if the set has files.
    """
    if split not in ("train", "test"):
        raise ValueError(f"unknown split {split!r}: choose train or test")
    return _module(name).load(data_dir, split)


def size(name: str) -> int:
    """Number of training images, known without reading them."""
    return _module(name).TRAIN_SIZE


def train_dataset(
    name: str, batch_size: int, seed: int, worker_index: int, data_dir: str | PathLike | None = None
) -> tf.data.Dataset:
    """Endless batches (images float32 [batch_size, 32, 32, 3], labels int32 [batch_size]).

    The stream is one shuffled pass over the set after another, cut into batches of exactly
    `batch_size`: every image comes once a pass, and a batch may span the end of a pass.
    """
    from data import pipeline

    images, labels = load(name, data_dir, "train")
    augmented = _module(name).AUGMENTED
    return pipeline.train(images, labels, batch_size, seed, worker_index, augmented)


def shared_batch(
    name: str, seed: int | Sequence[int], data_dir: str | PathLike | None = None
) -> Callable[[int, int], tuple[tf.Tensor, tf.Tensor]]:
    """A function (start, count) -> (images float32 [count, 32, 32, 3], labels int32 [count]).

    The examples at positions start ... start + count - 1 of an endless shuffled stream, the same
    for all callers with the same `seed`.
    """
    from data import pipeline

    images, labels = load(name, data_dir, "train")
    return pipeline.shared_batch(images, labels, seed, _module(name).AUGMENTED)


def test_dataset(
    name: str, batch_size: int = 1000, data_dir: str | PathLike | None = None
) -> tf.data.Dataset:
    """The whole test split once, in order, standardized; the last batch may be smaller."""
    from data import pipeline

    return pipeline.test(*load(name, data_dir, "test"), batch_size)


def _module(name: str) -> ModuleType:
    if name not in KNOWN:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(KNOWN)}")
    return importlib.import_module(f"data.{name}")
