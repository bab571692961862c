"""Batches of the run's shared data, made by the user's function from indices of examples.

A model's `train_step` receives what it would receive from `fit` on the function's arrays: x itself
if the function returns only x, else (x, y) or (x, y, sample_weight), and floats of Keras's type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from wbsp.core.messages import Range
from wbsp.core.permutation import Order
from wbsp.worker.share import LOOK, Share

Function = Callable[[np.ndarray], Any]  # indices, int64 [size] -> x, (x, y) or (x, y, weights)


class Batches:
    """Batches of a share's positions.

    Attributes:
        look: a batch that is not trained.
    """

    def __init__(self, share: Share, function: Function,
                 class_weight: Mapping[int, float] | None = None):
        self.share = share
        self._function = function
        self._class_weight = class_weight
        self._order = Order()
        self.look = self._made(np.arange(min(share.data.n, share.data.batch)))

    def of(self, positions: Range) -> Any:
        """Return the batch of these positions, of one epoch; the look for LOOK."""
        if positions == LOOK:
            return self.look
        data = self.share.data
        return self._made(self._order.examples(positions.start, positions.stop, data.n, data.seed))

    def _made(self, indices: np.ndarray) -> Any:
        batch = keras.tree.map_structure(_floats, _packed(self._function(indices)),
                                         none_is_leaf=False)
        for array in keras.tree.flatten(batch):
            shape = np.shape(array)
            if not shape or shape[0] != indices.size:
                raise ValueError(f"the function given to examples() got {indices.size} indices, "
                                 f"but returned an array of shape {shape}: return one row for each "
                                 "index, in the same order")
        return batch if self._class_weight is None else _weighted(batch, self._class_weight)


def _packed(batch: Any) -> Any:
    """Return a batch as `fit` packs it; a list is taken for a tuple, as from a PyDataset."""
    if isinstance(batch, list):
        batch = tuple(batch)
    if not isinstance(batch, tuple) or all(part is not None for part in batch):
        return batch
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if x is None or (y is None and weights is not None):
        raise ValueError("the function given to examples() returned None beside other arrays: "
                         "return x, (x, y) or (x, y, sample_weight)")
    return keras.utils.pack_x_y_sample_weight(x, y, weights)


def _floats(array: Any) -> Any:
    """Return the array; floats of another type become Keras's, as in `fit`."""
    floatx = keras.backend.floatx()
    if hasattr(array, "is_floating_point"):  # a tensor of PyTorch
        torch = sys.modules["torch"]
        return array.to(getattr(torch, floatx)) if array.is_floating_point() else array
    array = np.asarray(array)
    is_float = array.dtype.kind == "f" or array.dtype.name.startswith("bfloat")
    return array.astype(floatx, copy=False) if is_float else array


def _weighted(batch: Any, class_weight: Mapping[int, float]) -> tuple[Any, ...]:
    """Return the batch with its class weights, computed as `fit` does from class_weight."""
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise ValueError("class_weight needs the classes in y: the function must return (x, y)")
    classes = np.asarray(batch[1])
    if classes.ndim == 2:
        classes = classes.argmax(1) if classes.shape[1] > 1 else classes[:, 0]
    if classes.ndim != 1:
        raise ValueError("class_weight needs y as a class for each example, or one-hot, not an "
                         f"array of shape {np.shape(batch[1])}")
    weights = np.ones(len(classes), "float32")
    for number, weight in class_weight.items():
        weights[np.round(classes) == number] = weight
    return *batch, weights
