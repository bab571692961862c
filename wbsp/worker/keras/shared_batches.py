"""Batches of the run's shared data, made by the user's function from indices of examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from wbsp.core.permutation import Order
from wbsp.worker.share import LOOK, Range, Share

Function = Callable[[np.ndarray], Any]  # indices, int64 [size] -> x, (x, y) or (x, y, weights)


class Batches:
    """Batches of a share's positions.

    look: a batch that is not trained
    """

    def __init__(self, share: Share, function: Function,
                 class_weight: Mapping[int, float] | None = None):
        self.share = share
        self._function = function
        self._class_weight = class_weight
        self._order = Order()
        self.look = self._made(np.arange(min(share.data.n, share.data.batch)))

    def of(self, positions: Range) -> tuple:
        """Return the batch of these positions, of one epoch; the look for LOOK."""
        if positions == LOOK:
            return self.look
        data = self.share.data
        return self._made(self._order.examples(positions.start, positions.stop, data.n, data.seed))

    def _made(self, indices: np.ndarray) -> tuple:
        batch = self._function(indices)
        batch = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        for array in keras.tree.flatten(batch):
            shape = np.shape(array)
            if not shape or shape[0] != indices.size:
                raise ValueError(f"the function given to examples() got {indices.size} indices, "
                                 f"but returned an array of shape {shape}: return one row for each "
                                 "index, in the same order")
        return batch if self._class_weight is None else _weighted(batch, self._class_weight)


def _weighted(batch: tuple, class_weight: Mapping[int, float]) -> tuple:
    """Return the batch with its class weights, computed as `fit` does from class_weight."""
    if len(batch) != 2:
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
