"""Versions of which each shard sends its range, whole or as differences."""

import numpy as np
import pytest

from wbsp.tensors.codecs import parse
from wbsp.tensors.ops import bounds
from wbsp.wire.assembly import VectorAssembly, split
from wbsp.wire.messages import codec as m

INT8, SIZE = parse("int8"), 1001
ENDS = bounds(SIZE, 2)
HELD = np.ones(SIZE, np.float32)  # version 3


def holding(version=3, vector=HELD):
    """Of two ranges, and a version is here."""
    assembly = VectorAssembly(SIZE, INT8, 2)
    for index in (0, 1):
        found = assembly.add(*chunk(index, version, vector[ENDS[index]:ENDS[index + 1]].copy()))
    assert found[1] == 4 * SIZE
    return assembly


def change(seed, index):
    """Words of a range's difference, and what they mean."""
    size = ENDS[index + 1] - ENDS[index]
    words = INT8.encode(np.random.default_rng(seed).standard_normal(size).astype(np.float32))
    return words, INT8.decode(words, size)


def chunk(index, version, words, base=m.NONE, **wrong):
    """The only chunk of a range."""
    ((_, data),) = split(words)
    size = SIZE if base == m.NONE else words.size
    return m.Model(**{"request": 5, "version": version, "offset": ENDS[index], "size": size,
                      "base": base, **wrong}), data


def test_one_range_may_come_whole_and_the_other_as_a_difference():
    parts, (words, meaning) = holding(), change(0, 1)
    first = np.full(ENDS[1], 7, np.float32)
    assert parts.add(*chunk(1, 4, words, 3)) is None
    vector, nbytes = parts.add(*chunk(0, 4, first))
    assert nbytes == 4 * (first.size + words.size)
    assert vector.tobytes() == np.concatenate([first, HELD[ENDS[1]:] + meaning]).tobytes()


def test_ranges_of_two_versions_are_no_model():
    parts = holding()
    (old, _), (left, a), (right, b) = change(0, 0), change(1, 0), change(2, 1)
    assert parts.add(*chunk(0, 4, old, 3)) is None
    assert parts.add(*chunk(1, 5, right, 3)) is None
    vector, _ = parts.add(*chunk(0, 5, left, 3))
    assert vector.tobytes() == (HELD + np.concatenate([a, b])).tobytes()
    assert parts.add(*chunk(0, 6, left[:0], 5)) is None
    again, nbytes = parts.add(*chunk(1, 6, right[:0], 5))
    assert again.tobytes() == vector.tobytes() and nbytes == 0


@pytest.mark.parametrize("wrong", [
    chunk(0, 4, change(0, 0)[0], 2), chunk(0, 4, change(0, 0)[0][:-1], 3),
    chunk(0, 4, change(0, 0)[0], 3, size=-1), chunk(0, 4, change(0, 0)[0], 3, size=SIZE),
    chunk(0, 4, change(0, 0)[0], 3, offset=-1), chunk(0, 4, change(0, 0)[0], 3, offset=SIZE),
    chunk(0, 4, -change(0, 0)[0], 3), chunk(0, 4, HELD[:9])])
def test_a_range_outside_of_the_version_is_refused(wrong):
    parts = holding()
    with pytest.raises(m.WireError):
        parts.add(*wrong)
    left, right = change(0, 0)[0], change(0, 1)[0]
    assert parts.add(*chunk(0, 4, left, 3)) is None
    assert parts.add(*chunk(1, 4, right, 3)) is not None, "it changed nothing"
