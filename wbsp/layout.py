"""Layout of the flat vector: the variables of a model, in a fixed order.

Trainable float variables first, then the float non-trainable ones (BatchNorm statistics).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

_NUMBERED = re.compile(r"(.*?)((?:_(?:0|[1-9][0-9]*))*)", re.DOTALL)  # "dense_7": "dense", "_7"


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
    """The first difference of two layouts, in words; None if they agree.

    Variables are compared by shape and canonical name.
    """
    ours, others = (
        [(name, tuple(spec.shape)) for name, spec in
         zip(canonical_names([spec.name for spec in layout]), layout, strict=True)]
        for layout in (mine, theirs))
    unlike = [i for i, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b]
    if unlike:
        # in models that differ, the same variable may have two canonical names
        index = next((i for i in unlike if _said(mine[i]) != _said(theirs[i])), unlike[0])
        text = f"variable {index} is {_said(mine[index])} here and {_said(theirs[index])} there"
        if sorted(ours) == sorted(others):
            text += ("; all are there, but in another order, as where the layers' `trainable` "
                     "flags differ")
        return text
    if len(mine) != len(theirs):
        return f"{len(mine)} variables here and {len(theirs)} there"
    return None


def canonical_names(names: Sequence[str]) -> list[str]:
    """Names that do not depend on the process that built the model, in the order of `names`.

    Keras numbers layers by the layers that the process has built before: dense_7/kernel and
    dense_8/kernel of one process are dense/kernel and dense_1/kernel of another. So a number counts
    only by its rank among the numbers of the same word at the same depth. Components that all paths
    begin with (the model's own name, for example) are left out. The canonical name of a variable
    does not depend on the order of `names`.
    """
    paths = [name.split("/") for name in names]
    while len({path[0] for path in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [path[1:] for path in paths]
    numbers = defaultdict(set)  # (depth, word) -> the numbers behind that word
    for path in paths:
        for depth, component in enumerate(path):
            word, number = _split(component)
            numbers[depth, word].add(number)
    rank = {key: {number: index for index, number in enumerate(sorted(found))}
            for key, found in numbers.items()}
    return ["/".join(f"{word}_{rank[depth, word][number]}"
                     for depth, (word, number) in enumerate(map(_split, path)))
            for path in paths]


def _split(component: str) -> tuple[str, tuple[int, ...]]:
    """"block_2_1" -> "block", (2, 1); a user's own number may stand before Keras's."""
    found = _NUMBERED.fullmatch(component)
    assert found is not None  # every text matches
    word, number = found.groups()
    return word, tuple(map(int, number.split("_")[1:]))


def _said(spec: TensorSpec) -> str:
    return f"{spec.name}{list(spec.shape)}"
