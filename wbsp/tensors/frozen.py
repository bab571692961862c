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
        """Digest of all values; "" without any."""
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
    """Return the digest of several variables; "" without any."""
    text = " ".join(digests)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() if text else ""


class Division(NamedTuple):
    """The variables of a model, by what is done with them.

    Attributes:
        trained: layout of the vector.
        frozen: layout of the variables that no step changes.
        local: names of the variables that each worker keeps for itself.
    """

    trained: Sequence[TensorSpec]
    frozen: Sequence[TensorSpec] = ()
    local: Sequence[str] = ()

    def kinds(self) -> dict[str, tuple[str, str]]:
        """Return canonical name -> name, and "trained", "frozen" or "local"."""
        named = [*((spec.name, "trained") for spec in self.trained),
                 *((spec.name, "frozen") for spec in self.frozen),
                 *((name, "local") for name in self.local)]
        return dict(zip(canonical_names([name for name, _ in named]), named, strict=True))


def other_model(mine: Division, theirs: Division) -> str | None:
    """Return the first difference of two models, in words; None if they agree. Local variables
    must have equal names; their shapes may differ."""
    reason = difference(mine.trained, theirs.trained) or difference(mine.frozen, theirs.frozen)
    if reason is not None and ([*map(len, mine[:2])] == [*map(len, theirs[:2])]
                               or sum(map(len, mine)) != sum(map(len, theirs))):
        return reason  # names of another number of variables, of a peer, are not compared
    here, there = mine.kinds(), theirs.kinds()
    if here.keys() == there.keys() and len(here) == sum(map(len, mine)):
        for key, (name, kind) in here.items():
            if kind != there[key][1]:
                return f"{name} is {kind} here and {there[key][1]} there"
        return reason
    if reason is None:
        for one, other, where in ((here, there, "here"), (there, here, "there")):
            for key, (name, _) in one.items():
                if key not in other:
                    return f"{name}, which is local, is only {where}"
    return reason
