"""Vectors with mostly zero blocks, and versions with mostly unchanged blocks.

Only the other blocks travel, with their indices. Nothing is lost: blocks are compared by their
bits, and -0.0 is not zero.

Words, as in `codecs`: the number of blocks, their indices in ascending order (unsigned, 32 bits),
their values. An incomplete block at the vector's end is filled with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCK = 16  # floats: an unaligned row of 64 takes 5 blocks; indices add a 16th
WORDS = 1 + BLOCK  # of a block
_LEAST = 1 << 10  # floats of a vector below which blocks gain nothing
_MOST = 0.5  # share of a vector's floats: more words than that do not pay
_SAMPLE = 64  # floats that are checked first
_PASS = 1 << 15  # floats that are checked in one go, and stay in a processor's cache


class Blocks:
    """A vector that is zero except in some blocks.

    Attributes:
        size: of the vector, in floats.
        where: indices of the blocks, uint32 [n], ascending.
        values: float32 [n, BLOCK].
    """

    def __init__(self, size: int, where: np.ndarray, values: np.ndarray):
        self.size, self.where, self.values = size, where, values

    def add_to(self, vector: np.ndarray) -> None:
        """vector += self, float32 [size], in these blocks."""
        rows, whole, rest = self._of(vector)
        rows[self.where[:whole]] += self.values[:whole]
        if rest.size:
            rest += self.values[-1, :rest.size]

    def put_into(self, vector: np.ndarray) -> None:
        """vector = self, float32 [size], in these blocks."""
        rows, whole, rest = self._of(vector)
        rows[self.where[:whole]] = self.values[:whole]
        if rest.size:
            rest[:] = self.values[-1, :rest.size]

    def plus(self, other: Blocks) -> Blocks:
        """Return the sum, in memory of its own."""
        where = union([self.where, other.where])
        values = np.zeros((where.size, BLOCK), np.float32)
        for one in (self, other):
            values[np.searchsorted(where, one.where)] += one.values
        return Blocks(self.size, where, values)

    def whole(self) -> np.ndarray:
        """Return the vector, float32 [size]."""
        vector = np.zeros(self.size, np.float32)
        self.put_into(vector)
        return vector

    @property
    def words(self) -> np.ndarray:
        """The words of these blocks: see the top of this file."""
        words = np.empty(WORDS * self.where.size + 1, np.float32)
        words[:1].view("<u4")[0] = self.where.size
        words[1:1 + self.where.size].view("<u4")[:] = self.where
        words[1 + self.where.size:] = self.values.reshape(-1)
        return words

    def _of(self, vector: np.ndarray) -> tuple[np.ndarray, int, np.ndarray]:
        """Return the vector's complete blocks [., BLOCK], the number of these blocks among them,
        and the part of the vector in the last, incomplete block, if it is one of these."""
        full = self.size // BLOCK
        whole = int(np.searchsorted(self.where, full))
        return (vector[:full * BLOCK].reshape(-1, BLOCK), whole,
                vector[full * BLOCK:] if whole < self.where.size else vector[:0])


def floats(vector: np.ndarray | Blocks) -> np.ndarray:
    """Return the floats of a vector, float32 [n]; of Blocks, those that may not be zero."""
    return vector.values.reshape(-1) if isinstance(vector, Blocks) else vector


def length(words: np.ndarray) -> int:
    """Return the number of words of the vector that these begin with."""
    return 1 + WORDS * int(words[:1].view("<u4")[0])


def read(words: np.ndarray, size: int) -> Blocks:
    """Decode the words of a vector of `size` floats. Raises ValueError for words that no peer
    encodes."""
    count = int(words[:1].view("<u4")[0]) if words.size else 0
    if words.size not in (1 + WORDS * count, 0):
        raise ValueError(f"{words.size} words of {count} blocks")
    where = words[1:1 + count].view("<u4")
    if count and not (where[-1] < -(-size // BLOCK) and (where[1:] > where[:-1]).all()):
        raise ValueError(f"blocks that do not ascend, or reach beyond {size} floats")
    return Blocks(size, where, words[1 + count:].reshape(-1, BLOCK))


def of(vector: np.ndarray, where: np.ndarray) -> Blocks:
    """Return these blocks of a vector, float32 [size]."""
    full = vector.size // BLOCK
    whole = int(np.searchsorted(where, full))
    values = np.zeros((where.size, BLOCK), np.float32)
    values[:whole] = vector[:full * BLOCK].reshape(-1, BLOCK)[where[:whole]]
    if whole < where.size:
        values[-1, :vector.size % BLOCK] = vector[full * BLOCK:]
    return Blocks(vector.size, where, values)


def of_all(vector: np.ndarray) -> Blocks:
    """Return all blocks of a vector, float32 [size]."""
    return of(vector, np.arange(-(-vector.size // BLOCK), dtype="<u4"))


def changed(vector: np.ndarray, before: np.ndarray | None = None) -> np.ndarray | None:
    """Return the indices of the blocks in which `vector`, float32 [size], differs from `before`, or
    from zero; None: they are too many to pay, of which a check of some floats may be enough.
    """
    if vector.size < _LEAST:
        return None
    every = slice(None, None, 1 + vector.size // _SAMPLE)
    sample = _difference(vector[every], None if before is None else before[every])
    if np.count_nonzero(sample) > _MOST * sample.size:
        return None
    where = []
    full = vector.size // BLOCK * BLOCK
    for start in range(0, full, _PASS):
        part = slice(start, min(start + _PASS, full))
        rows = _difference(vector[part], None if before is None else before[part])
        where.append(start // BLOCK + np.flatnonzero(
            np.bitwise_or.reduce(rows.reshape(-1, BLOCK), axis=1)))
    if _difference(vector[full:], None if before is None else before[full:]).any():
        where.append(np.array([full // BLOCK]))
    found = np.concatenate(where).astype("<u4")
    return found if is_worth(found.size, vector.size) else None


def _difference(vector: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """Return the bits in which two vectors differ, or those of the first."""
    bits = vector.view("<u4")
    return bits if before is None else bits ^ before.view("<u4")


def found(vector: np.ndarray) -> Blocks | None:
    """Return the blocks of `vector`, float32 [size], that are not zero; None as of `changed`."""
    where = changed(vector)
    return None if where is None else of(vector, where)


def encoded(vector: np.ndarray) -> np.ndarray:
    """Return the words of `vector`, float32 [size], if they are much fewer; else the vector."""
    some = found(vector)
    return vector if some is None else some.words


def is_worth(blocks: int, size: int) -> bool:
    """Return whether to send this number of blocks in place of all `size` floats of a vector."""
    return size >= _LEAST and 1 + WORDS * blocks <= _MOST * size


def union(several: Sequence[np.ndarray]) -> np.ndarray:
    """Return all of these block indices, each once, ascending; uint32."""
    return np.unique(np.concatenate([np.empty(0, "<u4"), *several]))
