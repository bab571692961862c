"""Variables of a live model that no step changes.

They are read and written only when a worker joins, one by one. All of them are copied only for a
worker that has other values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wbsp.replica.base import Part
from wbsp.tensors.frozen import FrozenValues, digest, joined
from wbsp.tensors.layout import TensorSpec, total_size


class Frozen:
    """The frozen variables of all parts that a worker trains.

    Attributes:
        layout: of a vector of their own.
    """

    def __init__(self, parts: Sequence[Part]):
        self._held = [(part, held) for part in parts for held in part.frozen]
        self.layout: list[TensorSpec] = [held.spec for _, held in self._held]
        self._digests: list[str] | None = None  # of the run's values

    @property
    def size(self) -> int:
        """Floats of all variables."""
        return total_size(self.layout)

    @property
    def digest(self) -> str:
        """Digest of their current values; "" without variables."""
        self._digests = [*self._now()]
        return joined(self._digests)

    def read(self) -> np.ndarray:
        """Return their values, float32 [size]."""
        return np.concatenate([np.empty(0, np.float32), *(
            part.read(held.it).reshape(-1) for part, held in self._held)])

    def take(self, vector: np.ndarray) -> list[str]:
        """Set them to the run's values, float32 [size]; return the names of changed variables."""
        found = []
        values = FrozenValues(self.layout, vector).parts()
        for (part, held), mine, theirs in zip(self._held, self._now(), values, strict=True):
            if mine != digest(theirs):
                part.write(held.it, theirs.reshape(held.spec.shape).copy())
                found.append(held.spec.name)
        self._digests = [*self._now()]
        return found

    def check(self) -> None:
        """Raise ValueError if a step has changed one of them."""
        if changed := self._changed():
            raise ValueError(
                f"the first step has changed {_some(changed)} frozen, but updates do not carry "
                "that. Give frozen=[] on all workers to train all variables together; compile a "
                "Keras model again if its layers were frozen after compile()")

    def finish(self) -> Iterator[str]:
        """Finish a run; yield what the user should know, a line each."""
        if changed := self._changed():
            yield (f"steps have changed {_some(changed)} frozen, but versions do not carry that. "
                   "Give frozen=[] on all workers to train all variables together")

    def _changed(self) -> list[str]:
        if self._digests is None:
            return []
        return [held.spec.name for (_, held), was, now
                in zip(self._held, self._digests, self._now(), strict=True) if was != now]

    def _now(self) -> Iterator[str]:
        return (digest(part.read(held.it)) for part, held in self._held)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more, which are" if names[1:] else ", which is"
    return f"{names[0]}{more}"
