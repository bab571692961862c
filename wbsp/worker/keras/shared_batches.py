"""Batches of the run's shared data, made by the user's function from indices of examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from wbsp.core.permutation import examples
from wbsp.worker.share import LOOK, Range, Share

Function = Callable[[np.ndarray], Any]  # indices, int64 [size] -> x, (x, y) or (x, y, weights)


class Batches:
    """Batches of a share's positions.

    look: one that is not counted
    """

    def __init__(self, share: Share, function: Function):
        self.share = share
        self._function = function
        self.look = self._made(np.arange(min(share.data.n, share.data.batch)))

    def of(self, positions: Range) -> tuple:
        """The batch of these positions, of one epoch; the look for LOOK."""
        if positions == LOOK:
            return self.look
        data = self.share.data
        return self._made(examples(positions.start, positions.stop, data.n, data.seed))

    def _made(self, indices: np.ndarray) -> tuple:
        batch = self._function(indices)
        batch = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        for array in keras.tree.flatten(batch):
            shape = np.shape(array)
            if not shape or shape[0] != indices.size:
                raise ValueError(f"the function given to examples() was asked for {indices.size} "
                                 f"examples, and returned an array of shape {shape}: make an array "
                                 "with one row for each index, in the same order")
        return batch
