"""Assigned examples as input of `fit`, on any back end of Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import keras
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from wbsp.sync.base import WorkerRule
from wbsp.worker.assignments import LOOK, NOTHING, Assignments

_ADAPTERS = 3, 7


def batches(assignments: Assignments, examples: Callable[[Any, Any], Any]) -> Any:
    """Return a dataset of `examples`(start, count) for each assigned piece."""
    if keras.backend.backend() == "tensorflow":
        from wbsp.worker.keras import tf_input as pipeline
        return pipeline.batches(assignments, examples)
    check_release()
    return Batches(assignments, examples)


def check(model: keras.Model, streamed: bool, sync: str, rule: WorkerRule) -> None:
    """Raise ValueError if `model` cannot be fitted with such batches under the model `sync`.

    Args:
        streamed: fit was given a dataset of `batches`.
    """
    if rule.shared and not streamed:
        raise ValueError(f"under {sync} the server assigns the examples: give fit a dataset of "
                         "this callback's examples() or stream()")
    if streamed and model.steps_per_execution != 1:
        raise ValueError(f"steps_per_execution={model.steps_per_execution}: a batch of stream() is "
                         "unknown until the step before it has ended; compile the model with "
                         "steps_per_execution=1")
    if rule.shared and reads_ahead():
        raise ValueError(f"under {sync} a batch is unknown until the step before it has ended, but "
                         "on JAX with a GPU or TPU Keras requests one batch ahead: use another "
                         "back end, or JAX_PLATFORMS=cpu")


def check_release() -> None:
    """Raise ValueError for a release of Keras whose `fit` accepts no DataAdapter."""
    if tuple(map(int, keras.__version__.split(".")[:2])) < _ADAPTERS:
        raise ValueError(f"Keras {keras.__version__} on {keras.backend.backend()} cannot fit data "
                         f"of this callback: install {'.'.join(map(str, _ADAPTERS))} or later")


def reads_ahead() -> bool:
    """Return whether Keras on JAX moves the next batch to the device during a step."""
    if keras.backend.backend() != "jax":
        return False
    import jax
    return jax.default_backend() != "cpu"


class Batches(DataAdapter):
    """`examples`(start, count) for each assigned piece, made when Keras requests it.

    Not a PyDataset: Keras turns its x into (x,), where a tf.data.Dataset gives x itself. Keras
    requests it in the compute thread, and on PyTorch before the callbacks of the step. So pieces of
    the worker's own stream are made on demand.
    """

    def __init__(self, assignments: Assignments, examples: Callable[[int, int], Any]):
        assignments.make_on_demand()
        self._assignments = assignments
        self._examples = examples
        self._pieces: Iterator[tuple[int, int]] = iter(())

    num_batches = batch_size = has_partial_batch = partial_batch_size = None  # no end

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, count())

    def get_jax_iterator(self) -> Iterator[Any]:
        """Return `__iter__`, as Keras calls it."""
        return iter(self)

    def get_torch_dataloader(self) -> Any:
        """Return a DataLoader of `__iter__`."""
        from wbsp.worker.keras.torch_examples import loader_of
        return loader_of(self)

    def __getitem__(self, index: int) -> Any:
        """Return the next batch; index 0 starts a new reader, other indices are ignored.

        When no step will follow, it returns a look once more: an endless dataset cannot end, and
        the callback raises before such a step counts.
        """
        if index == 0:
            self._pieces = iter(self._assignments)
        piece = next((piece for piece in self._pieces if piece != NOTHING), LOOK)
        batch = self._examples(*piece)
        return tuple(batch) if isinstance(batch, list) else batch
