"""One model in two frameworks: a worker's variables under the run's names, in the run's order, and
with the run's order of axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wbsp import given
from wbsp.replica.base import Variables
from wbsp.tensors.layout import TensorSpec, slices

# The run's name -> this worker's, or (this worker's, axes): np.transpose(mine, axes) is the run's.
Names = Mapping[str, str | tuple[str, Sequence[int]]]


class Map:
    """The position of each of the run's variables among this worker's.

    Attributes:
        layout: of the run.
    """

    def __init__(self, mine: Sequence[TensorSpec], names: Names):
        """Raises ValueError, in one line, unless `names` has each of `mine` once."""
        here = dict(zip((spec.name for spec in mine), slices(mine), strict=True))
        specs = {spec.name: spec for spec in mine}
        self.layout: list[TensorSpec] = []
        self._parts: list[tuple[slice, tuple[int, ...], Sequence[int]]] = []
        if not isinstance(names, Mapping):
            raise ValueError(f"names={given.shown(names)}: give a dict, the run's name -> the name "
                             "here, or (the name here, axes)")
        for name, said in names.items():
            own, axes = _said(name, said)
            spec = specs.pop(own, None)
            if spec is None:
                raise ValueError(f"names={{{name!r}: {said!r}}}: " + (
                    f"{own!r} is named twice" if own in here else
                    f"there is no variable {own!r}; there are: {', '.join(here)}"))
            axes = [*range(len(spec.shape))] if axes is None else axes
            if sorted(axes) != [*range(len(spec.shape))]:
                raise ValueError(f"names={{{name!r}: {said!r}}}: {own} is of shape {spec.shape}; "
                                 f"give each of its axes, {[*range(len(spec.shape))]}, once")
            self.layout.append(TensorSpec(name, tuple(spec.shape[axis] for axis in axes)))
            self._parts.append((here[own], tuple(spec.shape), axes))
        if specs:
            raise ValueError(f"names= lacks {', '.join(specs)}: give each variable a name of the "
                             "run")
        self._here = slices(self.layout)

    def to_run(self, mine: np.ndarray) -> np.ndarray:
        """Return a new vector, float32 [size], in the run's order, of one in this worker's order.
        """
        return np.concatenate([mine[at].reshape(shape).transpose(axes).reshape(-1)
                               for at, shape, axes in self._parts])

    def from_run(self, vector: np.ndarray) -> np.ndarray:
        """Return a new vector in this worker's order: the reverse of `to_run`."""
        mine = np.empty_like(vector)
        for (at, shape, axes), here, spec in zip(self._parts, self._here, self.layout, strict=True):
            mine[at].reshape(shape).transpose(axes)[...] = vector[here].reshape(spec.shape)
        return mine


class Mapped(Variables):
    """Variables in the run's order, in this machine's memory."""

    def __init__(self, inner: Variables, by: Map):
        self._inner = inner
        self._map = by

    def gather(self) -> np.ndarray:
        return self._map.to_run(np.asarray(self._inner.send(self._inner.gather())))

    def scatter(self, vector: np.ndarray) -> None:
        self._inner.scatter(self._inner.bring(self._map.from_run(vector)))

    def bring(self, vector: np.ndarray) -> np.ndarray:
        return vector


def _said(name: object, said: Any) -> tuple[str, list[int] | None]:
    """Return the name and the axes of an entry of `names`. Raises ValueError."""
    try:
        own, axes = (said, None) if isinstance(said, str) else said
        if isinstance(name, str) and isinstance(own, str):
            return own, None if axes is None else [int(axis) for axis in axes]
    except (TypeError, ValueError):
        pass
    raise ValueError(f"names={{{given.shown(name)}: {given.shown(said)}}}: give the run's name -> "
                     "the name here, or (the name here, axes)")
