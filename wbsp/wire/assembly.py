"""Flat vectors as sequences of chunks, and such sequences as flat vectors.

Updates and versions, whole, as differences or of each shard its range; and vectors from one process
to another, to and from shards, and to a standby.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.tensors.error_feedback import advanced
from wbsp.tensors.ops import bounds, magnitude
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.messages.codec import CHUNK, WireError
from wbsp.wire.rate import Frames

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


class _Floats(Reassembler):
    """Looks at what it has taken, while that is in the processor's caches."""

    most = 0.0  # as of `magnitude`, of the newest vector so far

    def _took(self, part: np.ndarray, offset: int) -> None:
        self.most = max(self.most if offset else 0.0, magnitude(part))


class UpdateReassembler:
    """Puts a worker's updates together, and sums of them, which come as float32 in any run.

    most: as of `magnitude`, of the newest one so far
    """

    most = 0.0

    def __init__(self, size: int, pool: BufferPool, wire: Codec = FLOAT32, shared: bool = False):
        """`size` in floats; `pool`: source of the vectors' memory; `wire`: the run's format;
        `shared`: as of `Reassembler`."""
        self.size, self._wire, self._pool = size, wire, pool
        self._floats = _Floats(size, pool, shared)
        self._words = None if wire.lossless else Reassembler(wire.words(size), pool)

    def due(self, again: bool) -> int:
        """How many floats or words a push has, or a sum that is sent `again`."""
        return self.size if self._words is None or again else self._words.size

    def add(self, offset: int, size: int, data: memoryview,
            again: bool = False) -> np.ndarray | None:
        """As `Reassembler.add`, of a push or, `again`, of a sum; what is returned are floats."""
        if self._words is None or again:
            vector = self._floats.add(offset, size, data)
            self.most = self._floats.most
            return vector
        words = self._words.add(offset, size, data)
        if words is None:
            return None
        try:
            vector = self._wire.decode(words, self.size, self._pool.take(self.size))
        except ValueError as error:
            raise m.WireError(f"an update of {error}") from None
        self.most = magnitude(vector)
        return vector


class _Part(NamedTuple):
    """A range on its way."""

    version: int
    base: int
    words: Reassembler


class Parts:
    """Puts versions together; a range may begin anew, of another version perhaps."""

    def __init__(self, size: int, parts: int, wire: Codec):
        """`size`: of the model, in floats; `wire`: format of differences."""
        self._wire, self._size = wire, size
        self._bounds = bounds(size, parts)
        self._coming: dict[int, _Part] = {}  # index -> what comes of it
        self._here: dict[int, tuple[int, np.ndarray, int]] = {}  # version, floats, words

    def add(self, model: m.Model, data: memoryview, held: int,
            vector: np.ndarray | None) -> tuple[np.ndarray, int] | None:
        """Take one chunk; return the whole version, float32 [size], and in how many bytes it came,
        if the chunk was the last of all ranges.

        held, vector: the version that differences may be added to

        The rest of what was broken off is passed over. Raises WireError for what no shard sends.
        """
        index = bisect.bisect_right(self._bounds, model.offset) - 1
        if not 0 <= index < len(self._bounds) - 1:
            raise m.WireError(f"chunk at float {model.offset} of {self._size}")
        start, stop = self._bounds[index:index + 2]
        whole, offset = model.base == m.NONE, model.offset - start
        size = stop - start if whole else model.size
        if not whole and (model.base != held or vector is None or not 0 <= size <= stop - start):
            raise m.WireError(f"a range of version {model.version} in {size} words that are added "
                              f"to version {model.base}, and version {held} is here")
        if offset == 0:
            words = Reassembler(size, BufferPool())
            self._coming[index] = _Part(model.version, model.base, words)
        part = self._coming.get(index)
        if part is None or (part.version, part.base, part.words.size) != (
                model.version, model.base, size) or offset not in (0, part.words.filled):
            return None
        floats = part.words.add(offset, size, data)
        if floats is None:
            return None
        if not whole:
            assert vector is not None
            try:
                floats = advanced(self._wire, vector[start:stop], floats)
            except ValueError as error:
                raise m.WireError(f"version {model.version} as {error}") from None
        self._here[index] = model.version, floats, size
        return self._joined(model.version)

    def _joined(self, version: int) -> tuple[np.ndarray, int] | None:
        """All ranges, if they are here, and of this version."""
        found = [self._here.get(index) for index, (start, stop)
                 in enumerate(zip(self._bounds, self._bounds[1:], strict=False)) if start < stop]
        ranges = [one for one in found if one is not None and one[0] == version]
        if len(ranges) < len(found):
            return None
        self._here.clear()
        self._coming.clear()
        return np.concatenate([floats for _, floats, _ in ranges]), 4 * sum(
            words for _, _, words in ranges)
