"""Random choices that are the same in each process, whatever makes the batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LOWEST, HIGHEST = 0.2, 1.8  # contrast of an augmented image


def keys(seed: int | Sequence[int], count: int) -> list[int]:
    """Return independent seeds, for the order and for other draws."""
    return [int(key) for key in np.random.SeedSequence(seed).generate_state(count)]


def subset(size: int, count: int | None) -> np.ndarray:
    """Return a fixed subset of `count` of `size` examples, shuffled; None: all, in order.

    int64 [n]
    """
    if count is None:
        return np.arange(size)
    return np.random.default_rng(0).permutation(size)[:count]
