"""The experiment's data sets by name, and the batches that a worker trains on.

A worker reads the whole training set in its own order, or takes its part of one stream that all
workers share. Batches are a pure function of (seed, worker index, position in the stream), so a run
can be repeated, whatever its threads do. TensorFlow is imported when a pipeline is built.

CIFAR-10, shapes10 and stdlib are arrays in memory (`data.pipeline`). ImageNet stays on the disk
(`data.imagenet`, `data.pictures`). A `Look` defines, for example, the size of its images, or the
bytes of a window of stdlib.
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

    from data import imagenet, stdlib

    Look = imagenet.Look | stdlib.Look

KNOWN = ("cifar10", "shapes10", "imagenet", "stdlib")


def load(
    name: str, data_dir: str | PathLike | None = None, split: str = "train",
    look: Look | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 [n, 32, 32, 3] and labels int32 [n] of the "train" or "test" split.

    Of stdlib: bytes, and the byte after each, both uint8 [n, context]. `data_dir` is the folder of
    the set's files, if it has files.
    """
    if split not in ("train", "test"):
        raise ValueError(f"unknown split {split!r}: choose train or test")
    if name == "imagenet":
        raise ValueError("imagenet stays on the disk: it has data sets and batches, but no arrays")
    if name == "stdlib":
        return _module(name).load(data_dir, split, look)
    return _module(name).load(data_dir, split)


def size(name: str, data_dir: str | PathLike | None = None, split: str = "train",
         look: Look | None = None) -> int:
    """Return the number of examples of a split, without reading images."""
    if name == "imagenet":
        return _module(name).find(data_dir, split).size
    if name == "stdlib":
        return _module(name).size(data_dir, split, look)
    return _module(name).TRAIN_SIZE if split == "train" else _module(name).TEST_SIZE


def train_dataset(
    name: str, batch_size: int, seed: int, worker_index: int,
    data_dir: str | PathLike | None = None, look: Look | None = None,
) -> tf.data.Dataset:
    """Return endless batches (images float32 [batch_size, 32, 32, 3], labels int32 [batch_size]).

    Of stdlib both are int32 [batch_size, context]. The stream is one shuffled pass over the set
    after another, cut into batches of exactly `batch_size`: every example comes once in a pass, and
    a batch may span the end of a pass.
    """
    if name == "imagenet":
        pictures, split, look = _pictures(data_dir, "train", look)
        return pictures.train(split, batch_size, seed, worker_index, look)
    from data import pipeline

    images, labels = load(name, data_dir, "train", look)
    augmented = _module(name).AUGMENTED
    return pipeline.train(images, labels, batch_size, seed, worker_index, augmented)


def shared_batch(
    name: str, seed: int | Sequence[int], data_dir: str | PathLike | None = None,
    look: Look | None = None,
) -> Callable[[int, int], tuple[tf.Tensor, tf.Tensor]]:
    """Return a function (start, count) -> (images float32 [count, 32, 32, 3], labels int32).

    The examples are at positions start ... start + count - 1 of an endless shuffled stream, equal
    for all callers with the same `seed`.
    """
    if name == "imagenet":
        pictures, split, look = _pictures(data_dir, "train", look)
        return pictures.shared_batch(split, seed, look)
    from data import pipeline

    images, labels = load(name, data_dir, "train", look)
    return pipeline.shared_batch(images, labels, seed, _module(name).AUGMENTED)


def test_dataset(
    name: str, batch_size: int | None = None, data_dir: str | PathLike | None = None,
    look: Look | None = None, count: int | None = None,
) -> tf.data.Dataset:
    """Return the whole test split once, in order; or a fixed subset of `count` images.

    batch_size: default: 1000, of ImageNet 100; the last batch may be smaller
    """
    if name == "imagenet":
        pictures, split, look = _pictures(data_dir, "test", look)
        return pictures.test(split, batch_size or 100, look, count)
    from data import draws, pipeline

    images, labels = load(name, data_dir, "test", look)
    if count is not None:
        chosen = draws.subset(len(labels), count)
        images, labels = images[chosen], labels[chosen]
    return pipeline.test(images, labels, batch_size or 1000)


def _pictures(
    data_dir: str | PathLike | None, split: str, look: Look | None
) -> tuple[ModuleType, imagenet.Split, imagenet.Look]:
    """Return the pipelines of ImageNet, the split on the disk, and the form of its pictures."""
    from data import imagenet, pictures

    form = look if isinstance(look, imagenet.Look) else imagenet.Look()
    return pictures, imagenet.find(data_dir, split), form


def _module(name: str) -> ModuleType:
    if name not in KNOWN:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(KNOWN)}")
    return importlib.import_module(f"data.{name}")
