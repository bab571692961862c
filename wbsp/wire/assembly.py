"""A flat vector as a sequence of chunks, and a sequence of chunks as a flat vector."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import numpy as np

from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.ops import bounds
from wbsp.wire.messages.codec import CHUNK, WireError

_BLOCK = 1 << 16  # floats; two of them stay in the second-level cache


def split(vector: np.ndarray, most: int = CHUNK) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, bytes) of each chunk of `vector` (float32 [size]) without copying.

    most: floats in a chunk
    """
    data = vector.data.cast("B")
    for offset in range(0, max(vector.size, 1), most):
        yield offset, data[4 * offset:4 * (offset + most)]


class Assembly:
    """Puts one vector together from ranges of which each comes in chunks of its own sender.

    A range may begin anew, of another version perhaps; the vector is whole when all ranges are, of
    the same version.
    """

    def __init__(self, size: int, parts: int, pool: BufferPool):
        self.size, self._pool = size, pool
        self._bounds = bounds(size, parts)
        self._vector: np.ndarray | None = None  # incomplete
        self._filled = self._bounds[:-1]  # where the next chunk of each range begins
        self._versions: list[int | None] = [None] * parts

    def add(self, version: int, offset: int, data: memoryview) -> np.ndarray | None:
        """Take one chunk; return the whole vector (float32 [size]) if it was the last.

        The rest of what was broken off is passed over. Raises WireError for a chunk of the wrong
        size.
        """
        part = bisect.bisect_right(self._bounds, offset) - 1
        if not 0 <= part < len(self._versions):
            raise WireError(f"chunk at float {offset} of {self.size}")
        start, stop = self._bounds[part:part + 2]
        if offset != start and (offset, version) != (self._filled[part], self._versions[part]):
            return None
        count = min(CHUNK, stop - offset)
        if data.nbytes != 4 * count:
            raise WireError(f"chunk at float {offset} has {data.nbytes} bytes, not {4 * count}")
        if self._vector is None:
            self._vector = self._pool.take(self.size)
        self._vector[offset:offset + count] = np.frombuffer(data, "<f4")
        self._filled[part], self._versions[part] = offset + count, version
        if self._filled != self._bounds[1:] or {*self._versions} - {None, version}:
            return None
        vector, self._vector = self._vector, None
        self._filled = self._bounds[:-1]
        return vector


class Reassembler:
    """Puts the chunks of one vector together; offset 0 begins anew.

    Returns a vector only when its last chunk is there, so that half an update is never seen.

    shared: what is added lies in shared memory, and may change at any time: all of it is copied,
            and it may be more than a chunk
    """

    def __init__(self, size: int, pool: BufferPool, shared: bool = False):
        """`size` in floats; `pool`: source of the vectors' memory."""
        self.size, self._shared = size, shared
        self._pool = pool
        self._vector: np.ndarray | None = None  # incomplete
        self.filled = 0  # floats that have been added to it

    def add(self, offset: int, size: int, data: memoryview) -> np.ndarray | None:
        """Take one chunk; return the whole vector (float32 [size]) if the chunk was the last.

        The vector is the caller's; one of a single chunk is a view of `data`. Raises WireError for
        a chunk of the wrong size or out of order.
        """
        if size != self.size:
            raise WireError(f"a vector of {size} floats was announced, the model has {self.size}")
        if offset and offset != self.filled:
            raise WireError(f"chunk at float {offset} came when {self.filled} was due")
        expected = min(CHUNK, size - offset)
        count = data.nbytes // 4
        if self._shared and expected < count <= size - offset:
            expected = count
        if offset < 0 or expected < 0 or data.nbytes != 4 * expected:
            raise WireError(f"chunk at float {offset} has {data.nbytes} bytes, not "
                            f"{4 * expected}")
        values = np.frombuffer(data, "<f4")
        if expected == size and not self._shared:
            self._took(values, offset)
            return values
        vector = self._pool.take(size) if self._vector is None else self._vector
        for start in range(0, expected, _BLOCK):
            part = vector[offset + start:offset + min(start + _BLOCK, expected)]
            np.copyto(part, values[start:start + _BLOCK])
            self._took(part, offset + start)
        self.filled = offset + expected
        complete = self.filled == size
        self._vector = None if complete else vector
        if not complete:
            return None
        self.filled = 0
        return vector

    def _took(self, part: np.ndarray, offset: int) -> None:
        """These floats of the vector are here, and in the processor's caches."""
