"""The run's shared data as input of `fit`, on any back end of Keras.

The data are endless, since Keras cannot be told of an end later: `shared_fit` ends the epochs.
Before training begins, Keras reads a *look*: a batch that shows the examples' structure, and is not
trained.
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
    """Return the batches of `function`: a tf.data.Dataset, a generator (JAX) or a DataLoader
    (PyTorch).

    Raises ValueError if it returns another number of examples than requested.
    """
    if processes != int(processes) or processes < 0:
        raise ValueError(f"processes={processes!r}: give a whole number of 0 or more")
    if processes and keras.backend.backend() != "torch":
        raise ValueError(f"processes={processes}: only PyTorch's DataLoader has processes; leave "
                         f"it out on {keras.backend.backend()}")
    batches = Batches(share, function, class_weight)
    warnings.filterwarnings("ignore", "`shuffle=True` was passed")  # the run shuffles already
    match keras.backend.backend():
        case "tensorflow":
            from wbsp.worker.keras import tf_examples
            return tf_examples.dataset(batches)
        case "torch":
            from wbsp.worker.keras import torch_examples
            return torch_examples.loader(batches, int(processes))
    return _endless(batches)


def _endless(batches: Batches) -> Iterator[tuple]:
    """Yield a batch for each step.

    Keras requests two from a generator before training begins, and trains them first. Their
    positions are taken when Keras makes arrays of them.
    """
    share = batches.share
    while True:
        if not share.running:
            yield _Later(batches).structure
        elif (positions := share.take()) != NOTHING:
            yield batches.of(positions)


class _Later:
    """A batch whose positions are taken when its first array is made in a run; before, a look."""

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
