"""The run's shared data as what Keras can fit, on whatever Keras runs on.

It has no end, since Keras cannot be told of one: `shared_fit` ends the epochs. What Keras reads
before training begins is a look, which shows the form of the examples and takes none of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from wbsp.worker.keras.shared_batches import Batches, Function
from wbsp.worker.share import LOOK, NOTHING, Share


def dataset(share: Share, function: Function, class_weight: Mapping[int, float] | None,
            processes: int) -> Any:
    """A tf.data.Dataset, a generator (JAX) or a DataLoader (PyTorch) of what `function` makes.

    Raises ValueError where that makes another number of examples than it was asked for.
    """
    if processes != int(processes) or processes < 0:
        raise ValueError(f"processes={processes!r}: it must be a whole number from 0 on")
    if processes and keras.backend.backend() != "torch":
        raise ValueError(f"processes={processes}: only PyTorch's DataLoader has some; on "
                         f"{keras.backend.backend()} leave it out")
    batches = Batches(share, function, class_weight)
    warnings.filterwarnings("ignore", "`shuffle=True` was passed")  # the run's order is drawn
    match keras.backend.backend():
        case "tensorflow":
            from wbsp.worker.keras import tf_examples
            return tf_examples.dataset(batches)
        case "torch":
            from wbsp.worker.keras import torch_examples
            return torch_examples.loader(batches, int(processes))
    return _endless(batches)


def _endless(batches: Batches) -> Iterator[tuple]:
    """A batch for each step. Keras asks a generator for two before training begins, and trains
    them first: they become known when Keras makes arrays of them."""
    share = batches.share
    while True:
        if not share.running:
            yield _Later(batches).structure
        elif (positions := share.take()) != NOTHING:
            yield batches.of(positions)


class _Later:
    """A batch that is taken when its first array is made in a run; before that it is a look."""

    def __init__(self, batches: Batches):
        self._batches = batches
        self._arrays: list[Any] | None = None
        look = keras.tree.flatten(batches.look)
        self.structure: tuple = keras.tree.pack_sequence_as(
            batches.look, [_Array(self, place, np.asarray(one)) for place, one in enumerate(look)])

    def array(self, place: int) -> Any:
        if self._arrays is not None:
            return self._arrays[place]
        share, positions = self._batches.share, LOOK
        while share.running and (positions := share.take()) == NOTHING:
            pass
        arrays = keras.tree.flatten(self._batches.of(positions))
        if positions != LOOK:
            self._arrays = arrays
        return arrays[place]


class _Array:
    """One array of a `_Later`, by numpy's protocol `__array__`."""

    def __init__(self, batch: _Later, place: int, look: np.ndarray):
        self.shape, self.dtype = look.shape, look.dtype
        self._batch, self._place = batch, place

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._batch.array(self._place), dtype)
