"""Vectors from one process to another, chunk after chunk: to and from shards, and to a standby."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wbsp.tensors.buffers import BufferPool
from wbsp.wire.assembly import split
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.rate import Frames


class FloatsReader:
    """Vectors whose chunks come one after another: those of Begin, of Collected, or of Copy."""

    def __init__(self, sizes: Sequence[int], pool: BufferPool | None = None):
        """`pool`: source of the vectors' memory; None: it is new."""
        self._ends = np.cumsum(sizes)
        self._floats = (pool or BufferPool()).take(sum(sizes))
        self._filled = 0

    def add(self, message: s.Floats | m.CopyChunk, body: memoryview) -> list[np.ndarray] | None:
        """Take the next chunk; return all vectors if it was the last. Raises WireError."""
        end = self._filled + body.nbytes // 4
        if message.offset != self._filled or body.nbytes % 4 or end > self._floats.size:
            raise m.WireError(f"{body.nbytes} bytes from float {message.offset} on came when "
                              f"{self._filled} of {self._floats.size} was due")
        self._floats[self._filled:end] = np.frombuffer(body, "<f4")
        self._filled = end
        return np.split(self._floats, self._ends[:-1]) if end == self._floats.size else None


def floats_of(number: int, *vectors: np.ndarray,
              kind: type[s.Floats] | type[m.CopyChunk] = s.Floats) -> Iterator[Frames]:
    """The messages from which `FloatsReader` makes these vectors, float32."""
    start = 0
    for vector in [v for v in vectors if v.size] or vectors[:1]:
        for offset, chunk in split(vector):
            yield m.encode(kind(number, start + offset)), chunk
        start += vector.size
