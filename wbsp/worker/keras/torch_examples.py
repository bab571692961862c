"""The run's shared data as a torch DataLoader that Keras can fit."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from wbsp.worker.keras.shared_batches import Batches
from wbsp.worker.share import NOTHING


def loader(batches: Batches) -> torch.utils.data.DataLoader:
    """A batch for each step; made when Keras asks for it, in the compute thread."""
    return torch.utils.data.DataLoader(_Stream(batches), batch_size=None)


class _Stream(torch.utils.data.IterableDataset):
    def __init__(self, batches: Batches):
        self._batches = batches

    def __iter__(self) -> Iterator[tuple]:
        for positions in self._batches.share:
            if positions != NOTHING:
                yield self._batches.of(positions)
