"""Codecs: formats in which flat vectors travel.

An encoding is a vector of *words* of 4 bytes, held as float32 whatever they mean, so that all code
that carries a model's floats carries it, too. Encoders and decoders are pure functions: they give
the same bytes on every machine. This module knows no sockets, versions or workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

BLOCK = 256  # floats of one scale of int8
MOST_SENT = 0.25  # share of values above which their indices cost too much: half of float32
_PASS = 1 << 15  # floats that are encoded at a time, and stay in a processor's cache
_SMALLEST = np.finfo(np.float32).tiny


class Codec:
    """float32: the floats themselves.

    Attributes:
        in_blocks: the words of zeros are zeros, and their number depends on the size alone: they
            are sent as `blocks`, if most are zero.
    """

    name = "float32"
    lossless = True
    in_blocks = True

    @property
    def versions(self) -> Codec:
        """Codec of the difference between two versions."""
        return self

    def words(self, size: int, merged: int = 1) -> int:
        """Return the length of an encoded update of `size` floats, or the largest length of the
        difference that `merged` updates make."""
        return size

    def encode(self, vector: np.ndarray) -> np.ndarray:
        """Return the words of `vector`, float32 [size]; NaN and infinity decode as not finite."""
        return vector

    def decode(self, words: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
        """Return float32 [size], in the memory of `out` if given, except for the codec float32.

        Raises ValueError for words that no encoder makes.
        """
        self._check(words, self.words(size))
        return words

    def length(self, words: np.ndarray, size: int) -> int:
        """Return the length of the encoding of `size` floats that `words` begin with."""
        return self.words(size)

    def parts(self, words: np.ndarray) -> list[np.ndarray]:
        """Return the words for each receiver of a range, if there are ranges."""
        return []

    def _check(self, words: np.ndarray, due: int) -> None:
        if words.size != due:
            raise ValueError(f"{words.size} words of {self.name}, not {due}")


class BFloat16(Codec):
    """The upper half of each float32, rounded to the nearest, ties to even [known format].

    A finite value stays finite.
    """

    name = "bfloat16"
    lossless = False

    def words(self, size: int, merged: int = 1) -> int:
        return -(-size // 2)

    def encode(self, vector: np.ndarray) -> np.ndarray:
        words = np.zeros(self.words(vector.size), np.float32)
        halves = words.view("<u2")
        bits = np.ascontiguousarray(vector, "<f4").view("<u4")
        for start in range(0, vector.size, _PASS):
            part = bits[start:start + _PASS]
            rounded = part >> 16
            odd = rounded & 1
            np.add(part, odd, out=odd)
            odd += 0x7FFF
            odd >>= 16
            special = (odd & 0x7F80 == 0x7F80) | (rounded & 0x7F80 == 0x7F80)
            if special.any():
                odd = np.where(special, _rounded_special(part), odd)
            halves[start:start + part.size] = odd
        return words

    def decode(self, words: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
        self._check(words, self.words(size))
        vector = np.empty(size, np.float32) if out is None else out
        np.left_shift(words.view("<u2")[:size], 16, out=vector.view("<u4"), dtype=np.uint32,
                      casting="unsafe")
        return vector


def _rounded_special(bits: np.ndarray) -> np.ndarray:
    """Return bfloat16 of NaN, infinity, and finite values above its range, which become its largest
    value."""
    nan = bits & 0x7FFFFFFF > 0x7F800000
    infinite = bits & 0x7FFFFFFF == 0x7F800000
    upper = bits >> 16
    return np.where(nan, upper | 0x40, np.where(infinite, upper, (upper & 0x8000) | 0x7F7F))


class Int8(Codec):
    """A whole number from -127 to 127 for each value, times the scale of its block of 256.

        scale = largest |x| of the block / 127;  x ~ scale * round(x / scale)

    Words: the scales, then the numbers, four to a word. Block-wise absolute-maximum scales:
    Dettmers et al. 2022, arXiv 2110.02861 [known format; linear numbers here]. The scale of a block
    that is not finite is NaN. A scale below float32's normal values is 0, and sends nothing.
    """

    name = "int8"
    lossless = False

    def words(self, size: int, merged: int = 1) -> int:
        return -(-size // BLOCK) - (-size // 4)

    def encode(self, vector: np.ndarray) -> np.ndarray:
        words = np.zeros(self.words(vector.size), np.float32)
        scales, numbers = self._parts(words, vector.size)
        for start in range(0, vector.size - vector.size % BLOCK, _PASS):
            part = vector[start:min(start + _PASS, vector.size // BLOCK * BLOCK)]
            _quantize(part.reshape(-1, BLOCK), scales[start // BLOCK:][:part.size // BLOCK],
                      numbers[start:start + part.size].reshape(-1, BLOCK))
        if rest := vector.size % BLOCK:
            _quantize(vector[-rest:][None], scales[-1:], numbers[vector.size - rest:][None, :rest])
        return words

    def decode(self, words: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
        self._check(words, self.words(size))
        vector = np.empty(size, np.float32) if out is None else out
        scales, numbers = self._parts(words, size)
        if (scales < 0).any():
            raise ValueError("a scale below 0")
        rest = size % BLOCK
        np.multiply(numbers[:size - rest].reshape(-1, BLOCK), scales[:size // BLOCK, None],
                    out=vector[:size - rest].reshape(-1, BLOCK))
        np.multiply(numbers[size - rest:size], scales[-1:], out=vector[size - rest:])
        return vector

    def _parts(self, words: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scales, float32 [blocks], and numbers, int8 [size or a few more]."""
        blocks = -(-size // BLOCK)
        return words[:blocks], words[blocks:].view(np.int8)


def _quantize(values: np.ndarray, scales: np.ndarray, numbers: np.ndarray) -> None:
    """Fill `scales` [n] and `numbers` [n, m] for `values` [n, m]."""
    largest = np.maximum(values.max(axis=1), -values.min(axis=1))
    scale = largest / np.float32(127)
    with np.errstate(over="ignore"):  # 127 times a scale that was rounded up overflows
        scale = np.where(np.isinf(127 * scale), np.nextafter(scale, np.float32(0)), scale)
    finite = np.isfinite(largest)
    scale[scale < _SMALLEST] = 0
    scales[:] = np.where(finite, scale, np.float32(np.nan))
    divisor = np.where((scale > 0) & finite, scale, np.float32(1))
    if not (finite & (scale > 0)).all():
        values = np.where((finite & (scale > 0))[:, None], values, np.float32(0))
    scaled = values / divisor[:, None]
    np.rint(scaled, out=scaled)
    np.copyto(numbers, scaled, casting="unsafe")


class TopK(Codec):
    """The values of the largest magnitude, with their indices; the others are 0 [known format].

    Words: the number of values, their indices in ascending order (unsigned, 32 bits), the values.
    Of equal magnitudes the lower index goes first. An update sends a fixed share of the values. A
    version's difference sends all values that are not 0, at most a quarter of the model: it has as
    many values as the updates of several workers together, and goes out at once.
    """

    lossless = False
    in_blocks = False

    def __init__(self, share: float, dense: bool = False):
        """`share`: of the values that are sent; `dense`: encode a version's difference."""
        self.share = share
        self._dense = dense
        self.name = f"topk:{share:g}"

    @property
    def versions(self) -> Codec:
        return TopK(self.share, dense=True)

    def words(self, size: int, merged: int = 1) -> int:
        return 1 + 2 * self._most(size, self.share * merged)

    def encode(self, vector: np.ndarray) -> np.ndarray:
        count = self._most(vector.size, self.share)
        if self._dense:
            count = min(int(np.count_nonzero(vector)), self._most(vector.size, MOST_SENT))
        indices = _largest(vector, count)
        words = np.empty(1 + 2 * count, np.float32)
        words[:1].view("<u4")[0] = count
        words[1:1 + count].view("<u4")[:] = indices
        words[1 + count:] = vector[indices]
        return words

    def decode(self, words: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
        self._check(words, self.length(words, size))
        count = words.size // 2
        indices = words[1:1 + count].view("<u4")
        if count and not (indices[-1] < size and (indices[1:] > indices[:-1]).all()):
            raise ValueError(f"indices that do not ascend, or reach beyond {size} values")
        vector = np.empty(size, np.float32) if out is None else out
        vector[:] = 0
        vector[indices] = words[1 + count:]
        return vector

    def length(self, words: np.ndarray, size: int) -> int:
        count = int(words[:1].view("<u4")[0]) if words.size else 0
        if count > self._most(size, MOST_SENT):
            raise ValueError(f"{count} values of {size} in {self.name}")
        return 1 + 2 * count

    @staticmethod
    def _most(size: int, share: float) -> int:
        return min(size, max(1, math.ceil(min(share, MOST_SENT) * size)))


def _largest(vector: np.ndarray, count: int) -> np.ndarray:
    """Return the indices, ascending, of the `count` values of the largest magnitude; NaN counts as
    infinite."""
    if count == vector.size:
        return np.arange(count)
    if not count:
        return np.empty(0, np.intp)
    magnitude = np.abs(vector)
    if np.isnan(magnitude).any():
        magnitude = np.nan_to_num(magnitude, nan=np.inf, posinf=np.inf)
    least = np.partition(magnitude, vector.size - count)[vector.size - count]
    above = np.flatnonzero(magnitude > least)
    equal = np.flatnonzero(magnitude == least)[:count - above.size]
    return np.sort(np.concatenate([above, equal]))


class Ranges(Codec):
    """A format that encodes each range of a vector by itself, one after the other."""

    def __init__(self, wire: Codec, ends: Sequence[int]):
        """`ends`: start of each range, and end of the last one."""
        self.wire = wire
        self.name = wire.name
        self.lossless, self.in_blocks = wire.lossless, wire.in_blocks
        self._ends = ends
        self._sizes = [b - a for a, b in itertools.pairwise(ends)]

    @property
    def versions(self) -> Codec:
        return Ranges(self.wire.versions, self._ends)

    def words(self, size: int, merged: int = 1) -> int:
        return sum(self.wire.words(part, merged) for part in self._sizes)

    def encode(self, vector: np.ndarray) -> np.ndarray:
        return np.concatenate([self.wire.encode(vector[start:start + part])
                               for start, part in zip(self._ends, self._sizes, strict=False)])

    def decode(self, words: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
        self._check(words, self.length(words, size))
        vector = np.empty(size, np.float32) if out is None else out
        for start, part, encoded in zip(self._ends, self._sizes, self.parts(words), strict=False):
            self.wire.decode(encoded, part, vector[start:start + part])
        return vector

    def length(self, words: np.ndarray, size: int) -> int:
        at = 0
        for part in self._sizes:
            at += self.wire.length(words[at:], part)
        return at

    def parts(self, words: np.ndarray) -> list[np.ndarray]:
        found = []
        at = 0
        for part in self._sizes:
            found.append(words[at:at + self.wire.length(words[at:], part)])
            at += found[-1].size
        return found


FLOAT32 = Codec()
CODECS: dict[str, Codec] = {one.name: one for one in (FLOAT32, BFloat16(), Int8())}
KNOWN = f"{', '.join(CODECS)} or topk:0.01"


def parse(text: str) -> Codec:
    """Return the codec of that name. Raises ValueError in one line."""
    if text in CODECS:
        return CODECS[text]
    kind, _, share = text.partition(":")
    try:
        part = float(share) if kind == "topk" else math.nan
    except ValueError:
        part = math.nan
    if not 0 < part <= MOST_SENT:
        raise ValueError(f"wire={text!r} is not a format: give {KNOWN}, where the number is the "
                         f"share of the values that is sent, above 0 and at most {MOST_SENT:g}")
    return TopK(part)
