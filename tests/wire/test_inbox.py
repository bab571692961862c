"""Models that come in: from shards whole, of one version and of one start of the server; in a
format that loses something, as differences from the one that is here."""

import numpy as np
import pytest

from wbsp.tensors.codecs import parse
from wbsp.wire.assembly import split
from wbsp.wire.client import Inbox
from wbsp.wire.messages import codec as m

OLD, NEW = m.ShardGroup(1, [("", 1), ("", 2)]), m.ShardGroup(2, [("", 3), ("", 4)])


def chunk(version, offset, request=5):
    """A chunk of half a model of four floats, all of them `version`."""
    return m.Model(request, version, offset, 4), memoryview(np.full(2, version, "<f4").tobytes())


def test_ranges_of_two_starts_of_a_server_are_no_model():
    """The later one may give a number again that was given before it died."""
    inbox = Inbox(4)
    assert inbox.take(*chunk(7, 0), OLD) is None
    assert inbox.take(*chunk(7, 2), NEW) is None
    vector, nbytes = inbox.take(*chunk(7, 0), NEW)
    assert (vector.tolist(), nbytes) == ([7.0] * 4, 16)
    assert inbox.chunks == 3


def test_a_shard_may_be_faster_than_the_answer_that_grants_a_version():
    inbox = Inbox(4)
    inbox.put_by(*chunk(6, 0, request=4), OLD)
    inbox.put_by(*chunk(7, 0), OLD)
    inbox.put_by(*chunk(7, 2), NEW)
    assert inbox.early(5, NEW) == [chunk(7, 2)], "of this request and these shards alone"
    assert inbox.early(5, NEW) == [], "once"
    inbox.put_by(*chunk(7, 0), None)
    assert inbox.early(5, None) == [], "a server's answer comes before its version"


INT8, SIZE = parse("int8"), 600


def model(version, words, base=m.NONE, **wrong):
    """The only chunk of a version."""
    ((offset, data),) = split(words)
    return m.Model(**{"request": 5, "version": version, "offset": offset, "size": words.size,
                      "base": base, **wrong}), data


def difference(seed):
    return INT8.encode(np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32))


@pytest.fixture
def inbox():
    """A worker that has version 3."""
    inbox = Inbox(SIZE, INT8)
    assert inbox.take(*model(3, np.ones(SIZE, np.float32)), None)[1] == 4 * SIZE
    return inbox


def test_a_difference_is_added_to_the_held_version(inbox):
    first, second = difference(0), difference(1)
    after, nbytes = inbox.take(*model(4, first, 3), None)
    assert nbytes == 4 * first.size < 0.27 * 4 * SIZE
    expected = np.ones(SIZE, np.float32) + INT8.decode(first, SIZE)
    assert after.tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        after[0] = 0
    twice, _ = inbox.take(*model(6, np.concatenate([second, first]), 4), None)
    expected = (expected + INT8.decode(second, SIZE)) + INT8.decode(first, SIZE)
    assert twice.tobytes() == expected.tobytes()
    same, nbytes = inbox.take(*model(6, first[:0], 6), None)
    assert same is twice and nbytes == 0


@pytest.mark.parametrize("wrong", [
    model(4, difference(0), base=2), model(4, difference(0), base=4),
    model(4, difference(0)[:-1], 3), model(4, np.zeros(SIZE + 1, np.float32), 3),
    model(4, difference(0), 3, size=SIZE),
    model(4, difference(0), 3, size=-1), model(4, -difference(0), 3)])
def test_a_difference_from_another_version_is_refused(inbox, wrong):
    with pytest.raises(m.WireError):
        inbox.take(*wrong, None)
    assert inbox.take(*model(4, difference(0), 3), None) is not None, "it changed nothing"


def test_without_a_version_no_difference_can_be_added():
    with pytest.raises(m.WireError, match="this process holds version -1"):
        Inbox(SIZE, INT8).take(*model(4, difference(0), 3), None)
