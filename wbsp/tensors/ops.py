"""Flat vectors: their ranges, and passes over them in blocks that stay in a processor's cache."""

from __future__ import annotations

import math

import numpy as np

_ROUNDED = 1e-18  # a smaller value may become 0 in a sum of squares
_BLOCK = 1 << 16  # floats; they stay in the second-level cache


def bounds(size: int, parts: int) -> list[int]:
    """Return the start of each of `parts` ranges of `size` floats, and the end of the last one."""
    return [part * size // parts for part in range(parts + 1)]


def magnitude(vector: np.ndarray) -> float:
    """Return an upper bound of |x| over `vector`, float32 [size].

    It is at most the norm of one of the vector's blocks; infinite if a value is NaN or infinite.
    """
    most = _ROUNDED
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, vector.size, _BLOCK):
            block = vector[start:start + _BLOCK]
            # One pass without a temporary: NaN and infinity survive a sum of squares, which may
            # also overflow.
            square = float(np.dot(block, block))
            if math.isfinite(square):
                most = max(most, 1.01 * math.sqrt(square))
            elif np.isfinite(block).all():
                most = max(most, float(np.abs(block).max()))
            else:
                return math.inf
    return most


def is_finite(vector: np.ndarray) -> bool:
    """Return whether no value of `vector`, float32 [size], is NaN or infinite."""
    return math.isfinite(magnitude(vector))


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
