"""The layout of the flat vector: which variables of a model it holds, in which order.

Trainable float variables first, then the float non-trainable ones (BatchNorm statistics).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class TensorSpec(NamedTuple):
    """One variable."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def total_size(layout: Sequence[TensorSpec]) -> int:
    """Number of floats in the flat vector. Raises ValueError for a negative dimension."""
    for spec in layout:
        if any(n < 0 for n in spec.shape):
            raise ValueError(f"variable {spec.name} has shape {spec.shape}")
    return sum(spec.size for spec in layout)


def difference(mine: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> str | None:
    """The first thing in which two layouts differ, in words; None if they agree.

    Names are not compared: Keras numbers them by what else was built in the same process.
    """
    for index, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if tuple(a.shape) != tuple(b.shape):
            return (f"variable {index} is {a.name}{list(a.shape)} here and "
                    f"{b.name}{list(b.shape)} there")
    if len(mine) != len(theirs):
        return f"{len(mine)} variables here and {len(theirs)} there"
    return None
