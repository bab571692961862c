"""Flat vectors: their ranges, and passes over them in blocks that stay in a processor's cache."""

from __future__ import annotations

import math

import numpy as np

_ROUNDED = 1e-18  # a smaller value may become 0 in a sum of squares
_BLOCK = 1 << 16  # floats; they stay in the second-level cache
_ROW = 256  # floats whose squares are added in float32


def bounds(size: int, parts: int) -> list[int]:
    """Return the start of each of `parts` ranges of `size` floats, and the end of the last one."""
    return [part * size // parts for part in range(parts + 1)]


def squared(vector: np.ndarray) -> float:
    """Return the squared norm of `vector`, float32 [size]; infinite if a value is NaN or infinite.

    Rows of 256 squares are added in float32, and the rows in float64. So it takes one pass at the
    speed of a dot product, and its rounding errors are about 1e-8 of the sum, on any machine and
    for any parts of a vector.
    """
    rows = vector[:vector.size // _ROW * _ROW].reshape(-1, _ROW)
    rest = vector[rows.size:]
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.add.reduce(np.vecdot(rows, rows), dtype=np.float64))
        if rest.size:
            square += float(np.dot(rest, rest))
    if math.isfinite(square):
        return square
    if not np.isfinite(vector).all():
        return math.inf
    blocks = (vector[start:start + _BLOCK].astype(np.float64)
              for start in range(0, vector.size, _BLOCK))
    return sum(float(np.dot(block, block)) for block in blocks)


def bound(square: float) -> float:
    """Return an upper bound of |x| over a vector of this squared norm, as `squared` returns it."""
    return 1.01 * math.sqrt(square) + _ROUNDED


def is_finite(vector: np.ndarray) -> bool:
    """Return whether no value of `vector`, float32 [size], is NaN or infinite."""
    return math.isfinite(squared(vector))


def largest(vector: np.ndarray | None) -> float:
    """Return the largest magnitude in `vector`, float32 [size]; 0 if it has no values."""
    if vector is None:
        return 0.0
    return max((float(np.abs(vector[start:start + _BLOCK]).max())
                for start in range(0, vector.size, _BLOCK)), default=0.0)


def add_weighted(total: np.ndarray, update: np.ndarray, weight: float) -> None:
    """total += weight * update, in one pass over the memory of both."""
    if weight == 1.0:
        np.add(total, update, out=total)
        return
    factor = np.float32(weight)
    product = np.empty(min(_BLOCK, update.size), np.float32)
    for start in range(0, update.size, _BLOCK):
        part = update[start:start + _BLOCK]
        weighted = np.multiply(part, factor, out=product[:part.size])
        total[start:start + _BLOCK] += weighted
