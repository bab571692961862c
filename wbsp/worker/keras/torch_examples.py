"""The run's shared data as a torch DataLoader that Keras can fit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import torch

from wbsp.core.messages import Range
from wbsp.worker.keras.shared_batches import Batches
from wbsp.worker.share import LOOK, NOTHING


def loader(batches: Batches, processes: int) -> torch.utils.data.DataLoader[Any]:
    """Return a batch for each step, made when Keras requests it, in the compute thread, or ahead
    by other processes."""
    return _loader(_Stream(batches, processes))


def loader_of(batches: Iterable[Any]) -> torch.utils.data.DataLoader[Any]:
    """Return these batches, made in the compute thread, each time from the first one."""
    return _loader(_Batches(batches))


def _loader(stream: torch.utils.data.IterableDataset[Any]) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(stream, batch_size=None, collate_fn=_on_device)


class _Batches(torch.utils.data.IterableDataset[Any]):
    def __init__(self, batches: Iterable[Any]):
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def _on_device(batch: Any) -> Any:
    """Return a batch's arrays as tensors where Keras computes; PyTorch's own function would turn
    tuples into lists."""
    return keras.tree.map_structure(keras.ops.convert_to_tensor, batch)


def _shared(batch: Any) -> Any:
    """Return a batch's arrays as tensors, which two processes can share."""
    return keras.tree.map_structure(
        lambda one: torch.from_numpy(one) if isinstance(one, np.ndarray) else one, batch)


class _Stream(torch.utils.data.IterableDataset[Any]):
    def __init__(self, batches: Batches, processes: int):
        self._batches, self._processes = batches, processes
        self._last: Callable[[], Generator[Any, None, None] | None] = lambda: None

    def __iter__(self) -> Iterator[Any]:
        if (last := self._last()) is not None:
            # The processes of an earlier fit end now: those of this one would inherit the object
            # that ends them, which raises an error there.
            last.close()
        stream = self._tuples()
        self._last = weakref.ref(stream)  # it ends with its fit, if nothing else holds it
        return stream

    def _tuples(self) -> Generator[Any, None, None]:
        positions = iter(self._batches.share)
        if self._processes and self._batches.share.running:
            yield from _ahead(self._batches, positions, self._processes)
            return
        for one in positions:
            if one != NOTHING:
                yield self._batches.of(one)


def _ahead(batches: Batches, positions: Iterator[Range], processes: int) -> Iterator[Any]:
    """Yield batches of the known positions, in their order, for the rest of the run.

    A loader requests positions before it returns a finished batch, and new positions may depend on
    that batch's step. So one pass of the loader ends when no position is known, and the next pass
    begins with the position that was waited for.
    """
    known: list[Range] = []

    def to_read() -> Iterator[Range]:
        yield from known
        while batches.share.untaken and (one := next(positions, LOOK)) not in (LOOK, NOTHING):
            yield one

    pool = torch.utils.data.DataLoader(
        _Made(batches), sampler=_Sampler(to_read), batch_size=None, num_workers=processes,
        persistent_workers=True, multiprocessing_context="fork", collate_fn=_shared)
    for one in positions:
        if one == LOOK:
            yield batches.look
        elif one != NOTHING:
            known = [one]
            yield from pool


class _Sampler(torch.utils.data.Sampler[Range]):
    def __init__(self, positions: Callable[[], Iterator[Range]]):
        self._positions = positions

    def __iter__(self) -> Iterator[Range]:
        return self._positions()


class _Made(torch.utils.data.Dataset[Any]):
    """Makes the batch of some positions, in a process that was forked from the worker's."""

    def __init__(self, batches: Batches):
        self._batches = batches

    def __getitem__(self, positions: Range) -> Any:
        return self._batches.of(positions)
