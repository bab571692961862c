"""Split flat vectors into chunks, and assemble chunks into flat vectors.

`VectorStream` assembles what one peer sends in order: an update, W_0, a snapshot. `VectorAssembly`
assembles the versions that a worker receives, in ranges of one sender each. No other class does
either. Both check each size and offset that a peer names.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wbsp.tensors import blocks
from wbsp.tensors.blocks import Blocks
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.tensors.error_feedback import advanced
from wbsp.tensors.ops import bounds, squared
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.messages.codec import CHUNK, WireError
from wbsp.wire.rate import Frames

_BLOCK = 1 << 17  # floats; two of them stay in a second-level cache of 1 MB


def split(vector: np.ndarray, most: int = CHUNK) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, bytes) of each chunk of `vector` (float32 [size]) without copying.

    Args:
        most: floats in a chunk.
    """
    data = vector.data.cast("B")
    for offset in range(0, max(vector.size, 1), most):
        yield offset, data[4 * offset:4 * (offset + most)]


def floats_of(number: int, *vectors: np.ndarray,
              kind: type[s.Floats] | type[m.CopyChunk] = s.Floats) -> Iterator[Frames]:
    """Yield the messages from which a `VectorStream` assembles these float32 vectors."""
    start = 0
    for vector in [v for v in vectors if v.size] or vectors[:1]:
        for offset, chunk in split(vector):
            yield m.encode(kind(number, start + offset)), chunk
        start += vector.size


def _check(offset: int, data: memoryview, expected: int) -> None:
    """Raise WireError unless this chunk has `expected` floats."""
    if data.nbytes != 4 * expected:
        raise WireError(f"chunk at float {offset} has {data.nbytes} bytes, not {4 * expected}")


class VectorStream:
    """Assembles vectors that arrive one after another, in ordered chunks; offset 0 starts again.

    `add` returns them only with the last chunk, so that a caller never sees half an update.

    Attributes:
        size: floats of all vectors.
        filled: floats that have been added.
        square: squared norm of the floats added since offset 0, if `measured`.
    """

    def __init__(self, sizes: Sequence[int], pool: BufferPool | None = None, shared: bool = False,
                 measured: bool = False):
        """
        sizes:  of the vectors, in floats
        pool:   source of their memory; None: allocate new memory
        shared: the chunks lie in shared memory and may change at any time: copy all of them. They
                may be longer than `CHUNK`.
        """
        self._ends = [*itertools.accumulate(sizes)]
        self.size = sum(sizes)
        self._pool = BufferPool() if pool is None else pool
        self._shared, self._measured = shared, measured
        self._floats: np.ndarray | None = None  # incomplete
        self.filled = 0
        self.square = 0.0

    def add(self, offset: int, data: memoryview,
            size: int | None = None) -> list[np.ndarray] | None:
        """Add one chunk; return all vectors (float32) if it was the last.

        The vectors are the caller's; a single vector in a single chunk is a view of `data`. Raises
        WireError, without an effect, for a chunk of the wrong size or out of order.

        Args:
            size: floats of all vectors, if the peer has announced them.
        """
        if size is not None and size != self.size:
            raise WireError(f"a vector of {size} floats was announced, the model has {self.size}")
        if offset and offset != self.filled:
            raise WireError(f"received a chunk at float {offset}, expected {self.filled}")
        end = self._ends[min(bisect.bisect_right(self._ends, offset), len(self._ends) - 1)]
        expected, count = min(CHUNK, end - offset), data.nbytes // 4
        if self._shared and expected < count <= end - offset:
            expected = count
        _check(offset, data, expected)
        if not offset:
            self.square = 0.0
        values = np.frombuffer(data, "<f4")
        if expected == self.size and len(self._ends) == 1 and not self._shared:
            self._measure(values)
            return [values]
        if self._floats is None:
            self._floats = self._pool.take(self.size)
        for start in range(0, expected, _BLOCK):
            block = self._floats[offset + start:offset + min(start + _BLOCK, expected)]
            np.copyto(block, values[start:start + _BLOCK])
            self._measure(block)  # while it is in the processor's caches
        self.filled = offset + expected
        if self.filled < self.size:
            return None
        floats, self._floats = self._floats, None
        self.filled = 0
        return [floats] if len(self._ends) == 1 else np.split(floats, self._ends[:-1])

    def _measure(self, values: np.ndarray) -> None:
        if self._measured:
            self.square += squared(values)


class Updates:
    """Decoder of one worker's updates, and of their sums, which are float32 in any run.

    Attributes:
        size: floats of each.
        square: squared norm of the newest one so far.
    """

    def __init__(self, size: int, pool: BufferPool, wire: Codec = FLOAT32, shared: bool = False):
        """`pool`: source of the vectors' memory; `wire`: the run's codec; `shared`: see
        `VectorStream`."""
        self.size, self._wire, self._pool = size, wire, pool
        self.square = 0.0
        self._shared = shared
        self._floats = VectorStream([size], pool, shared, measured=True)
        self._words = None if wire.lossless else VectorStream([wire.words(size)], pool)
        self._blocks: VectorStream | None = None  # of an update that is sent as blocks

    def add(self, offset: int, data: memoryview, size: int | None = None,
            again: bool = False) -> np.ndarray | Blocks | None:
        """Add one chunk of a push or, `again`, of a sum; return it, float32 [size], if complete.

        `size` and errors: see `VectorStream.add`. A `size` below that of an encoded update
        announces some blocks of one only, unless the codec is `topk`.
        """
        due = self._wire.words(self.size)
        if self._wire.in_blocks and not again and size is not None and 0 < size < due:
            return self._add_blocks(offset, data, size, due)
        if self._words is None or again:
            found = self._floats.add(offset, data, size)
            self.square = self._floats.square
            return None if found is None else found[0]
        words = self._words.add(offset, data, size)
        if words is None:
            return None
        try:
            vector = self._wire.decode(words[0], self.size, self._pool.take(self.size))
        except ValueError as error:
            raise WireError(f"an update of {error}") from None
        self.square = squared(vector)
        return vector

    def _add_blocks(self, offset: int, data: memoryview, size: int,
                    due: int) -> np.ndarray | Blocks | None:
        if self._blocks is None or not offset:
            self._blocks = VectorStream([size], shared=self._shared)
        words = self._blocks.add(offset, data, size)
        if words is None:
            return None
        self._blocks = None
        try:
            some = blocks.read(words[0], due)
            vector = None if self._wire.lossless else self._wire.decode(
                some.whole(), self.size, self._pool.take(self.size))
        except ValueError as error:
            raise WireError(f"an update of {error}") from None
        update = some if vector is None else blocks.found(vector) or vector
        self.square = squared(blocks.floats(update))
        return update


@dataclass
class _Range:
    """A range of a vector, and how much of it has arrived.

    Attributes:
        version, base, length: of the transfer, see `messages.Model`; floats, or words of
            differences.
        filled: floats or words that have arrived.
        words: stream of the differences, if any.
        in_blocks: see `messages.Model`.
    """

    start: int
    stop: int
    version: int = m.NONE
    base: int = m.NONE
    length: int = 0
    filled: int = 0
    words: VectorStream | None = None
    in_blocks: bool = False

    def begin(self, model: m.Model, length: int) -> None:
        """Expect a transfer of this length from its begin."""
        self.version, self.base, self.length, self.filled = model.version, model.base, length, 0
        self.words = None if model.base == m.NONE else VectorStream([length])
        self.in_blocks = model.in_blocks

    def fill(self, filled: int) -> None:
        self.filled = filled

    def end(self) -> None:
        """Expect no transfer."""
        self.version, self.words = m.NONE, None


class VectorAssembly:
    """Assembles versions of one vector from ranges, which arrive in any order.

    The chunks of a range arrive in order, from one sender. They hold its floats, or its differences
    from the version that was assembled before. A range may start again, also with another version.
    The vector is complete when all ranges are complete and of the same version.
    """

    def __init__(self, size: int, wire: Codec = FLOAT32, parts: int = 1):
        """
        size:  of the vector, in floats
        wire:  codec of differences; if it is lossless, differences are blocks of the version
        parts: number of ranges
        """
        self.size, self._wire = size, wire
        self._pool = BufferPool()
        self.held = m.NONE  # the version, with its floats, to which differences are added
        self._floats: np.ndarray | None = None
        self.divide(parts)

    def divide(self, parts: int) -> None:
        """Expect versions in this number of ranges from now on; drop an incomplete version."""
        self._ranges = [_Range(start, stop) for start, stop
                        in itertools.pairwise(bounds(self.size, parts)) if start < stop]
        self._starts = [one.start for one in self._ranges]
        self._vector: np.ndarray | None = None  # incomplete

    def add(self, model: m.Model, data: memoryview,
            keep: bool = False) -> tuple[np.ndarray, int] | None:
        """Add one chunk; with the last one of all ranges, return the version and its bytes.

        The version is float32 [size]; the bytes are those in which it was sent. A vector in one
        piece, such as one in shared memory, is a view of `data`. Chunks that continue an
        interrupted transfer are ignored. A version that is kept, as with a lossy codec, becomes
        `held` and is read-only. Raises WireError, without an effect, for a chunk that no correct
        server or shard sends.
        """
        one, whole = self._range(model), model.base == m.NONE
        offset, length = model.offset - one.start, one.stop - one.start if whole else model.size
        if offset and (model.version, model.base, length, offset) != (
                one.version, one.base, one.length, one.filled):
            return None
        rest = length - offset
        _check(model.offset, data, min(CHUNK, rest) if model.place is None else rest)
        if not offset:
            one.begin(model, length)
        if one.words is None:
            floats: np.ndarray | None = np.frombuffer(data, "<f4")
            one.fill(one.filled + data.nbytes // 4)
        else:
            floats = self._advanced(one, one.words, offset, data)
        if floats is None:
            return None
        if floats.size == self.size:
            self._vector = floats
        else:
            if self._vector is None:
                self._vector = self._pool.take(self.size)
            start = model.offset if whole else one.start
            self._vector[start:start + floats.size] = floats
        return self._joined(one.version, not self._wire.lossless or (
            keep and model.place is None))

    def _range(self, model: m.Model) -> _Range:
        """Return the range of this chunk. Raises WireError if no range has it."""
        one = self._ranges[bisect.bisect_right(self._starts, model.offset) - 1]
        if not one.start <= model.offset < one.stop:
            raise WireError(f"chunk at float {model.offset} of {self.size}")
        if model.base == m.NONE:
            if model.size != self.size:
                raise WireError(f"a vector of {model.size} floats was announced, the model has "
                                f"{self.size}")
        elif (model.base != self.held or self._floats is None
                or not 0 <= model.size <= one.stop - one.start):
            raise WireError(f"received version {model.version} as {model.size} words that change "
                            f"version {model.base}, but this process holds version {self.held} of "
                            f"{self.size} floats")
        return one

    def _advanced(self, one: _Range, words: VectorStream, offset: int,
                  data: memoryview) -> np.ndarray | None:
        """Return the range of the held version plus its differences, if all have arrived."""
        assert self._floats is not None
        found = words.add(offset, data)
        one.fill(words.filled)
        if found is None:
            return None
        alone = one.stop - one.start == self.size
        held = self._floats if alone else self._floats[one.start:one.stop]
        try:
            if self._wire.lossless:
                floats = self._pool.take(held.size) if alone else np.empty_like(held)
                np.copyto(floats, held)
                blocks.read(found[0], held.size).put_into(floats)
            else:
                floats = advanced(self._wire, held, found[0], one.in_blocks)
        except ValueError as error:
            raise WireError(f"version {one.version} as {error}") from None
        one.fill(one.length)
        return floats

    def _joined(self, version: int, keep: bool) -> tuple[np.ndarray, int] | None:
        """Return the vector, if all ranges are complete and of this version."""
        if any(one.filled < one.length or one.version != version for one in self._ranges):
            return None
        vector, nbytes = self._vector, 4 * sum(one.length for one in self._ranges)
        assert vector is not None
        self._vector = None
        for one in self._ranges:
            one.end()
        self.held, self._floats = m.NONE, None
        if keep:  # later differences are added to it
            vector.flags.writeable = False
            self.held, self._floats = version, vector
        return vector, nbytes
