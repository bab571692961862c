"""Models that come in from shards: whole, of one version and of one start of the server."""

import numpy as np

from wbsp.wire import messages as m
from wbsp.worker.membership import Membership

OLD, NEW = m.Group(1, [("", 1), ("", 2)]), m.Group(2, [("", 3), ("", 4)])


def chunk(version, offset, request=5):
    """A chunk of half a model of four floats, all of them `version`."""
    return m.Model(request, version, offset, 4), memoryview(np.full(2, version, "<f4").tobytes())


def test_ranges_of_two_starts_of_a_server_are_no_model():
    """The later one may give a number again that was given before it died."""
    member = Membership(None, 4)
    assert member.take(*chunk(7, 0), OLD) is None
    assert member.take(*chunk(7, 2), NEW) is None
    assert member.take(*chunk(7, 0), NEW).tolist() == [7.0] * 4
    assert member.chunks == 3


def test_a_shard_may_be_faster_than_the_answer_that_grants_a_version():
    member = Membership(None, 4)
    member.put_by(*chunk(6, 0, request=4), OLD)
    member.put_by(*chunk(7, 0), OLD)
    member.put_by(*chunk(7, 2), NEW)
    assert member.early(5, NEW) == [chunk(7, 2)], "of this request and these shards alone"
    assert member.early(5, NEW) == [], "once"
    member.put_by(*chunk(7, 0), None)
    assert member.early(5, None) == [], "a server's answer comes before its version"
