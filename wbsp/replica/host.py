"""Variables in this machine's own memory, read and written by numpy.

A large model does not fit into a cache, and the time depends on the passes over its memory. So all
computations on a block are done while the block is in the cache. Fresh memory costs more than
several copies, so the memory of the old anchor is used again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from wbsp.replica.base import Variables, Vector
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import TensorSpec, slices, total_size

_BLOCK = 1 << 15  # floats; three vectors' blocks fit into the second-level cache


class _Difference:
    """x - anchor, computed by the first reader, in any thread, so that the compute thread need not.

    x is the anchor of the next difference, and read-only until this one is computed.
    """

    def __init__(self, x: np.ndarray, anchor: np.ndarray, out: np.ndarray):
        """Take three vectors, float32 [size]; `out`, perhaps `anchor`, gets the difference."""
        self._of: tuple[np.ndarray, np.ndarray] | None = (x, anchor)
        self._out = out
        self._writeable = x.flags.writeable
        x.flags.writeable = False

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        if self._of is not None:
            x, anchor = self._of
            np.subtract(x, anchor, out=self._out)
            self._of = None
            x.flags.writeable = self._writeable
        return self._out


class HostVariables(Variables):
    """Variables that a subclass reads and writes."""

    def __init__(self, layout: Sequence[TensorSpec], pool: BufferPool):
        self._layout = layout
        self._pool = pool
        self._size = total_size(layout)
        self._ranges = slices(layout)

    @abstractmethod
    def views(self) -> Iterator[np.ndarray]:
        """Yield each variable of the layout, float32: its own memory, if it is of that type."""

    @abstractmethod
    def write(self, values: Iterator[np.ndarray]) -> None:
        """Set each variable to a copy of its values, float32 in the layout's shape."""

    def gather(self) -> np.ndarray:
        x = self._pool.take(self._size)
        for where, view in zip(self._ranges, self.views(), strict=True):
            x[where] = view.reshape(-1)  # in one call: a long copy bypasses the caches
        return x

    def scatter(self, vector: np.ndarray) -> None:
        self.write(part.reshape(spec.shape)
                   for (part,), spec in zip(self._split(vector), self._layout, strict=True))

    def rebase(self, vector: np.ndarray, anchor: np.ndarray) -> np.ndarray:
        x = anchor if anchor.flags.writeable else self._pool.take(self._size)
        for was, new, now, view in self._parts(anchor, vector, x):
            for start in range(0, view.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                np.subtract(view[block], was[block], out=now[block])
                np.add(new[block], now[block], out=now[block])
        self.scatter(x)
        return x

    def difference(self, x: np.ndarray, anchor: np.ndarray) -> Vector:
        mine = anchor.flags.writeable and anchor is not x
        return _Difference(x, anchor, anchor if mine else self._pool.take(self._size))

    def bring(self, vector: np.ndarray) -> np.ndarray:
        return vector

    def _parts(self, *vectors: np.ndarray) -> Iterator[list[np.ndarray]]:
        """Yield, for each variable, its parts of the flat vectors, and the variable itself, flat.
        """
        for parts, view in zip(self._split(*vectors), self.views(), strict=True):
            yield [*parts, view.reshape(-1)]

    def _split(self, *vectors: np.ndarray) -> Iterator[list[np.ndarray]]:
        for where in self._ranges:
            yield [vector[where] for vector in vectors]


class OneByOne(HostVariables):
    """Variables that are read and written one by one.

    Args:
        view: a variable -> its value, float32: its own memory, if it is of that type.
        write: set a variable to a copy of a value, float32 in its shape.
    """

    def __init__(self, chosen: Sequence[Any], layout: Sequence[TensorSpec],
                 pool: BufferPool, view: Callable[[Any], np.ndarray],
                 write: Callable[[Any, np.ndarray], object]):
        super().__init__(layout, pool)
        self._chosen = chosen
        self._view = view
        self._write = write

    def views(self) -> Iterator[np.ndarray]:
        return map(self._view, self._chosen)

    def write(self, values: Iterator[np.ndarray]) -> None:
        for variable, value in zip(self._chosen, values, strict=True):
            self._write(variable, value)
