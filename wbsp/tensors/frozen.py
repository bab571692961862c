"""Variables that no step changes: the flat vector, updates and versions do not contain them.

All workers of a run have equal values of them, which they compare by a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from wbsp.tensors.layout import TensorSpec, canonical_names, difference, slices


class FrozenValues(NamedTuple):
    """The frozen values of a run; `vector`: float32 [size], which is not written to."""

    layout: list[TensorSpec] = []
    vector: np.ndarray = np.empty(0, np.float32)

    @property
    def digest(self) -> str:
        """Digest of all values; "" if there are none."""
        return joined(digest(values) for values in self.parts())

    def parts(self) -> list[np.ndarray]:
        """Return the values of each variable, flat."""
        return [self.vector[where] for where in slices(self.layout)]


NOTHING = FrozenValues()


def digest(values: np.ndarray) -> str:
    """Return the digest of one variable's values."""
    flat = np.ascontiguousarray(values, "<f4").reshape(-1)
    return hashlib.blake2b(flat.view(np.uint8).data, digest_size=16).hexdigest()


def joined(digests: Iterable[str]) -> str:
    """Return the digest of several variables; "" if there are none."""
    text = " ".join(digests)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() if text else ""


def other_model(mine: Sequence[TensorSpec], frozen: Sequence[TensorSpec],
                theirs: Sequence[TensorSpec], their_frozen: Sequence[TensorSpec]) -> str | None:
    """Return the first difference of two models, in words; None if they agree. The layouts are
    those of the vectors, and of the frozen variables beside them."""
    reason = difference(mine, theirs) or difference(frozen, their_frozen)
    if reason is None or len(mine) == len(theirs):
        return reason
    names = [spec.name for spec in (*mine, *frozen)]
    here, there = (dict(zip(canonical_names([spec.name for spec in (*trained, *still)]),
                            [False] * len(trained) + [True] * len(still), strict=True))
                   for trained, still in ((mine, frozen), (theirs, their_frozen)))
    if here.keys() == there.keys() and len(here) == len(names):
        name, key = next((name, key) for name, key in zip(names, here, strict=True)
                         if here[key] != there[key])
        return f"{name} is {_said(here[key])} here and {_said(there[key])} there"
    return reason


def _said(frozen: bool) -> str:
    return "frozen" if frozen else "trained"
