"""A version that comes in parts, of each shard its range: whole, or as differences from another."""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np

from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.codecs import Format
from wbsp.tensors.error_feedback import advanced
from wbsp.tensors.ops import bounds
from wbsp.wire.assembly import Reassembler
from wbsp.wire.messages import codec as m


class _Part(NamedTuple):
    """A range on its way."""

    version: int
    base: int
    words: Reassembler


class Parts:
    """Puts versions together; a range may begin anew, of another version perhaps."""

    def __init__(self, size: int, parts: int, wire: Format):
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
