"""The run's shared data as input of `fit`, on any back end of Keras.

The data are endless, because Keras must know an end in advance: `shared_fit` ends the epochs.
Before training begins, Keras reads a *look*: a batch that shows the examples' structure, and is not
trained.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from wbsp import given
from wbsp.worker.keras.input import check_release
from wbsp.worker.keras.shared_batches import Batches, Function
from wbsp.worker.share import NOTHING, Share


def dataset(share: Share, function: Function, class_weight: Mapping[int, float] | None,
            processes: int) -> Any:
    """Return the batches of `function`: a tf.data.Dataset, a DataLoader (PyTorch) or what Keras
    makes of other data (JAX).

    Raises ValueError if it returns another number of examples than requested.
    """
    processes = given.whole("processes", processes, 0, 4096)
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
            return torch_examples.loader(batches, processes)
    check_release()
    return _Stream(batches)


class _Stream(DataAdapter):
    """A batch for each step, made when Keras on JAX requests it, in the compute thread.

    Not a generator: from one, Keras requests two batches before training begins, and takes only
    tuples. Not a PyDataset: Keras turns its x into (x,).
    """

    num_batches = batch_size = has_partial_batch = partial_batch_size = None

    def __init__(self, batches: Batches):
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for positions in self._batches.share:
            if positions != NOTHING:
                yield self._batches.of(positions)

    def get_jax_iterator(self) -> Iterator[Any]:
        """Return `__iter__`, as Keras calls it."""
        return iter(self)
