"""Layout of the flat vector: the variables of a model, in a fixed order.

Trainable float variables first, then the float non-trainable ones (BatchNorm statistics).
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from wbsp.limits import DIMENSIONS, MAX_FLOATS, NAME, VARIABLES, Id, Name, Real, Shape, one_line

_DEPTH = 32  # components of a name that are compared one by one
STATES = 256  # of layers, at most
_NEAR = 1e-5  # relative difference up to which sums count as equal
MOST_ENTRY = 1 << 15  # bytes of an `Entry`'s values
_TYPES = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64"})  # of these
_MOST_ENTRIES = 1 << 12  # of a model
_MOST_BYTES = 1 << 18  # of all entries with their names
_DIGITS = 18  # of a number that Keras appends, at most
# How frameworks name the statistics of layers such as BatchNorm: PyTorch, Keras; Flax's collection.
_STATISTICS = re.compile(r"(^|\W)((running|moving)_\w+\W*$|batch_stats\W)")


class TensorSpec(NamedTuple):
    """One variable."""

    name: Name
    shape: Shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class LayerState(NamedTuple):
    """Digest of the state that versions do not carry, of a layer or a non-float variable."""

    name: Name  # "layer ..." or "variable ..."
    digest: Id  # of all but its real numbers
    sums: tuple[Real, Real, Real]  # of its real numbers: root of their squares, two weighted sums

    def same(self, other: LayerState) -> bool:
        """Return whether both have equal values up to rounding, whatever their names."""
        near = _NEAR * max(self.sums[0], other.sums[0])
        return self.digest == other.digest and all(
            abs(mine - theirs) <= near for mine, theirs in zip(self.sums, other.sums, strict=True))


class Entry(NamedTuple):
    """An entry of a model's file that is no variable of a version.

    It is another name of the variable `of`, or a tensor of other numbers than floats, as it was
    when training began.
    """

    name: Name
    of: Name = ""
    type: Id = ""  # of its numbers: "int64", "bool", ...
    shape: Shape = ()
    data: Annotated[bytes, Meta(max_length=MOST_ENTRY)] = b""  # little endian; empty: not kept

    @property
    def values(self) -> np.ndarray | None:
        """The tensor; None: it is another name, or was not kept."""
        if self.type not in _TYPES:
            return None
        kind = np.dtype(self.type).newbyteorder("<")
        whole = math.prod(self.shape) * kind.itemsize == len(self.data)
        return np.frombuffer(self.data, kind).reshape(self.shape) if whole else None


Layout = Annotated[list[TensorSpec], Meta(max_length=VARIABLES)]  # as a peer sends it
LayerStates = Annotated[list[LayerState], Meta(max_length=STATES)]
Names = Annotated[list[Name], Meta(max_length=VARIABLES)]
Entries = Annotated[list[Entry], Meta(max_length=_MOST_ENTRIES)]


def kept_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Return the first of these entries, as many as a checkpoint keeps."""
    sizes = accumulate(len(one.name) + len(one.of) + len(one.data) for one in entries)
    return [one for one, size in zip(entries[:_MOST_ENTRIES], sizes, strict=False)
            if size <= _MOST_BYTES and max(len(one.name), len(one.of)) <= NAME
            and len(one.shape) <= DIMENSIONS]


def total_size(layout: Sequence[TensorSpec]) -> int:
    """Return the number of floats in the flat vector. Raises ValueError for a negative dimension.
    """
    for name, shape in layout:
        if shape and min(shape) < 0:
            raise ValueError(f"variable {name[:NAME]!r} has shape {shape}")
    return sum(math.prod(shape) for _, shape in layout)


def slices(layout: Sequence[TensorSpec]) -> list[slice]:
    """Return the range of each variable in the flat vector."""
    ends = accumulate((spec.size for spec in layout), initial=0)
    return [slice(*pair) for pair in pairwise(ends)]


def statistics(layout: Sequence[TensorSpec]) -> list[slice]:
    """Return the ranges of the statistics of layers such as BatchNorm, by their frameworks' names.

    They are averages of what a layer has seen: no gradient changes them, so that a step which
    goes beyond their mean over the workers, as an outer step does, could make a variance negative.
    """
    found: list[slice] = []
    for spec, at in zip(layout, slices(layout), strict=True):
        if not _STATISTICS.search(spec.name):
            continue
        if found and found[-1].stop == at.start:
            at = slice(found.pop().start, at.stop)
        found.append(at)
    return found


def check_layout(layout: Sequence[TensorSpec], frozen: Sequence[TensorSpec] = ()) -> None:
    """Raise ValueError, in one line, for a layout, or a layout of frozen variables, that no server
    accepts."""
    size, layout = total_size(layout), [*layout, *frozen]
    whole = total_size(layout)
    if len(layout) > VARIABLES:
        raise ValueError(f"the model has {len(layout):,} variables; at most {VARIABLES:,} can be "
                         "trained together")
    for spec in layout:
        if len(spec.name) > NAME or len(spec.shape) > DIMENSIONS:
            raise ValueError(f"the variable {spec.name[:40]!r}... has a name of {len(spec.name):,} "
                             f"characters and {len(spec.shape)} dimensions; at most {NAME:,} and "
                             f"{DIMENSIONS} are allowed: give it a shorter name")
    if not 0 < size <= whole <= MAX_FLOATS:
        raise ValueError(f"the model has {whole:,} float values; 1 to {MAX_FLOATS:,} can be "
                         "trained")


def difference(mine: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> str | None:
    """Return the first difference of two layouts, in words; None if they agree.

    Variables are compared by shape and canonical name.
    """
    if mine == theirs:
        return None
    if len(mine) != len(theirs):
        return f"{len(mine)} variables here and {len(theirs)} there" + next(
            (f"; variable {index} is {_said(a)} here and {_said(b)} there"
             for index, (a, b) in enumerate(zip(mine, theirs, strict=False))
             if tuple(a.shape) != tuple(b.shape)), "")
    ours, others = _keys(mine), _keys(theirs)
    unlike = [i for i, (a, b) in enumerate(zip(ours, others, strict=True)) if a != b]
    if unlike:
        # if models differ, one variable may have two canonical names
        index = next((i for i in unlike if _said(mine[i]) != _said(theirs[i])), unlike[0])
        text = f"variable {index} is {_said(mine[index])} here and {_said(theirs[index])} there"
        if Counter(ours) == Counter(others):
            text += ("; both have the same variables, but in another order, such as with other "
                     "`trainable` flags of layers")
        return text
    return None


def places(mine: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> list[int] | None:
    """Return the index in `theirs` of each variable of `mine`; None if the models differ.

    The orders may differ. Variables are compared as in `difference`.
    """
    if len(mine) != len(theirs):
        return None
    if difference(mine, theirs) is None:
        return [*range(len(mine))]
    found = defaultdict(list)
    for index, key in enumerate(_keys(theirs)):
        found[key].append(index)
    there = [found[key].pop(0) if found[key] else None for key in _keys(mine)]
    return None if None in there else [place for place in there if place is not None]


def _keys(layout: Sequence[TensorSpec]) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(spec.shape)) for name, spec in
            zip(canonical_names([spec.name for spec in layout]), layout, strict=True)]


def other_state(mine: Sequence[LayerState], theirs: Sequence[LayerState]) -> str | None:
    """Return the first difference of two models' layer states, in words; None if they agree."""
    for here, there in zip(mine, theirs, strict=False):
        if not here.same(there):
            other = "in the run" if here.name == there.name else f"{there.name} of the run"
            return f"{here.name} has other values than {other}"
    if len(mine) != len(theirs):
        more = max(mine, theirs, key=len)[min(len(mine), len(theirs))]
        return f"{more.name} is {'not in the run' if len(mine) > len(theirs) else 'missing'}"
    return None


def canonical_names(names: Sequence[str]) -> list[str]:
    """Return names that do not depend on the process that built the model, in the order of `names`.

    Keras numbers layers by the layers that the process has built before: dense_7/kernel and
    dense_8/kernel of one process are dense/kernel and dense_1/kernel of another. So a number counts
    only by its rank among the numbers of its word at its depth. Leading components that all paths
    share (the model's own name, for example) are left out. The canonical name of a variable does
    not depend on the order of `names`.
    """
    return [*_canonical(tuple(names))]


@lru_cache(maxsize=2)  # a server compares the names of many workers, up to 100,000, with its own
def _canonical(names: tuple[str, ...]) -> list[str]:
    paths = [name.split("/", _DEPTH) for name in names]
    if paths:
        shared = min(len(os.path.commonprefix(paths)), min(map(len, paths)) - 1)
        paths = [path[shared:] for path in paths]
    ranked = [_ranked({path[depth] for path in paths if depth < len(path)})
              for depth in range(max(map(len, paths), default=0))]
    return ["/".join([known[component] for known, component in zip(ranked, path, strict=False)])
            for path in paths]


def _ranked(components: Collection[str]) -> dict[str, str]:
    """Return the canonical name of each component of one depth."""
    words = defaultdict(list)  # those that are numbered -> the numbers, and the components
    for component in components:
        if component[-1:].isdigit() and "_" in component:
            word, number = _split(component)
            words[word].append((number, component))
    ranked = {component: f"{component}_0" for component in components}
    for word, numbered in words.items():
        if word in ranked and ((), word) not in numbered:
            numbered.append(((), word))
        for index, (_, component) in enumerate(sorted(numbered)):
            ranked[component] = f"{word}_{index}"
    return ranked


def subject(names: Sequence[str], one: str = "is", more: str = "are") -> str:
    """Return names as the subject of a line: "a is", or "a and 2 more are"."""
    others = len(names) - 1
    return f"{names[0]} and {others} more {more}" if others else f"{names[0]} {one}"


def namesakes(mine: Sequence[str], theirs: Sequence[str], some: Container[str]) -> list[str]:
    """Return those of `mine` that have the canonical names of `some` of `theirs`."""
    meant = dict(zip(canonical_names(theirs), theirs, strict=True))
    return [name for name, key in zip(mine, canonical_names(mine), strict=True)
            if key in meant and meant[key] in some]


def _split(component: str) -> tuple[str, tuple[int, ...]]:
    """Split "block_2_1" into "block", (2, 1); a user's own number may precede Keras's."""
    parts = component.split("_")
    end = len(parts)
    while end > 1 and _is_number(parts[end - 1]):
        end -= 1
    return "_".join(parts[:end]), tuple(map(int, parts[end:]))


def _is_number(text: str) -> bool:
    """Return whether this is a whole number as Keras writes it."""
    return (text.isascii() and text.isdigit() and len(text) <= _DIGITS
            and (text == "0" or text[0] != "0"))


def _said(spec: TensorSpec) -> str:
    return f"{one_line(spec.name, NAME)}{list(spec.shape)}"
