"""A flat vector as a row of chunks, and a row of chunks as a flat vector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wbsp.wire.memory import BufferPool
from wbsp.wire.messages import CHUNK, WireError


def split(vector: np.ndarray) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, bytes) of each chunk of `vector` (float32 [size]) without copying."""
    data = memoryview(vector).cast("B")
    for offset in range(0, max(vector.size, 1), CHUNK):
        yield offset, data[4 * offset:4 * (offset + CHUNK)]


class Reassembler:
    """Puts the chunks of one vector together; offset 0 begins anew.

    Nothing is handed out before the last chunk is there, so half an update is never seen.
    """

    def __init__(self, size: int, spare: BufferPool):
        """`size` in floats; `spare`: where the vectors' memory comes from."""
        self.size = size
        self._spare = spare
        self._vector: np.ndarray | None = None
        self.filled = 0  # floats that have come

    def add(self, offset: int, size: int, data: memoryview) -> np.ndarray | None:
        """Take one chunk; return the whole vector (float32 [size]) when it was the last.

        It is the caller's; one of a single chunk is a view of `data`. Raises WireError for a chunk
        of the wrong size or out of order.
        """
        if size != self.size:
            raise WireError(f"a vector of {size} floats was announced, the model has {self.size}")
        if offset and offset != self.filled:
            raise WireError(f"chunk at float {offset} came when {self.filled} was due")
        expected = min(CHUNK, size - offset)
        if offset < 0 or expected < 0 or data.nbytes != 4 * expected:
            raise WireError(f"chunk at float {offset} has {data.nbytes} bytes, not "
                            f"{4 * expected}")
        values = np.frombuffer(data, "<f4")
        if expected == size:
            return values
        if offset == 0 and self._vector is None:
            self._vector = self._spare.take(size)
        self._vector[offset:offset + expected] = values
        self.filled = offset + expected
        if self.filled < size:
            return None
        vector, self._vector, self.filled = self._vector, None, 0
        return vector
