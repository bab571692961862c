"""The run's shared data as Keras on JAX reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from wbsp.worker.keras.shared_batches import Batches
from wbsp.worker.share import NOTHING


class Stream(DataAdapter):
    """A batch for each step, made when Keras requests it, in the compute thread.

    Not a generator: from one, Keras requests two batches before training begins, and takes only
    tuples. Not a PyDataset: Keras turns its x into (x,).
    """

    num_batches = batch_size = has_partial_batch = partial_batch_size = None

    def __init__(self, batches: Batches):
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        for positions in self.batches.share:
            if positions != NOTHING:
                yield self.batches.of(positions)

    def get_jax_iterator(self) -> Iterator[Any]:
        """Return `__iter__`, as Keras calls it."""
        return iter(self)
