"""A worker's floats: over sockets in chunks, or through shards, which report what they hold."""

from types import SimpleNamespace

import numpy as np
import pytest

from wbsp.core.store import Snapshot
from wbsp.ps.sessions.data_plane import DataPlanes, ShardedPlanes
from wbsp.ps.sessions.session import WorkerSession
from wbsp.sync.base import Push
from wbsp.tensors.codecs import FLOAT32
from wbsp.wire.liveness import WORKER, Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.shm.lender import Lending

SIZE = m.CHUNK + 3
MODEL = np.arange(SIZE, dtype=np.float32)


class Shards:
    """Two shards; records the messages to them."""

    def __init__(self):
        self.told = []

    def __len__(self):
        return 2

    def admit(self, worker):
        return m.ShardGroup(77, [("", 1), ("", 2)])

    def tell(self, message):
        self.told.append(message)


def planes(shards=None):
    """With queues that note what they send."""
    queues = SimpleNamespace(sent=[], transfer=lambda *facts: queues.sent.append(facts),
                             drop_transfer=lambda identity: None)
    parts = Lending("a test"), queues, lambda: 3.0, None, FLOAT32
    return DataPlanes(*parts) if shards is None else ShardedPlanes(shards, *parts)


def member(of):
    session = WorkerSession(b"w", Liveness(WORKER, 0.0), 4)
    session.attach(of, SIZE, "wbsp-" + 32 * "0")
    return session


def update(seq=0, offset=0):
    return m.Update(Push(4, seq, 0, 1, 1, 0.5), offset, SIZE)


def test_over_sockets_updates_and_versions_travel_in_chunks():
    of = planes()
    plane = member(of).plane
    assert (plane.name, plane.group, plane.inbox) == ("TCP (a test)", None, 0)
    data = MODEL.data.cast("B")
    assert plane.put(update(), data[:4 * m.CHUNK], 0) is None
    arrived = plane.put(update(offset=m.CHUNK), data[4 * m.CHUNK:], 0)
    assert np.array_equal(arrived.vector, MODEL)
    assert arrived.square == pytest.approx(float(MODEL @ MODEL))
    assert plane.lend_version(1, Snapshot(7, MODEL)) is None, "no memory is shared"
    plane.send_version(1, Snapshot(7, MODEL), m.NONE)
    ((identity, messages, now),) = of.queues.sent
    assert (identity, now) == (b"w", 3.0)
    assert [m.decode(m.FromServer, head) for head, _ in messages] == [
        m.Model(1, 7, offset, SIZE) for offset in (0, m.CHUNK)]
    with pytest.raises(m.WireError):
        plane.held(0, s.Holds(77, 0, False, 1.0))


def test_with_shards_a_push_is_complete_with_its_head_and_all_slices():
    plane = member(planes(Shards())).plane
    assert plane.heads and plane.group.secret == 77
    assert plane.held(0, s.Holds(77, 0, False, 1.0)) is None
    assert plane.put(update(), None, 0) is None
    assert plane.held(0, s.Holds(77, 0, False, 1.0)) is None, "the same one again"
    arrived = plane.held(1, s.Holds(77, 0, False, 2.0))
    assert (arrived.head, arrived.vector, arrived.square) == (update(), None, 3.0)
    assert plane.put(update(), None, 1).head == update(), "decided: the shards have no part in it"


def test_notices_of_another_push_do_not_count():
    plane = member(planes(Shards())).plane
    assert plane.put(update(1), None, 0) is None
    assert plane.held(0, s.Holds(77, 1, False, 1.0)) is None
    assert plane.held(1, s.Holds(77, 2, False, 1.0)) is None
    assert plane.put(update(1), None, 0) is None
    assert plane.held(1, s.Holds(77, 1, False, 1.0)) is None


def test_shards_send_versions_and_learn_of_a_sessions_end():
    shards = Shards()
    of = planes(shards)
    session = member(of)
    assert of.worker_of(77) == 4
    session.plane.send_version(5, Snapshot(7, None), 6)
    of.close(session)
    assert shards.told == [s.Send(4, 5, 7, 6), s.Dismiss(4, 77)]
    assert of.worker_of(77) is None


def test_more_shards_than_floats_are_refused_in_one_line():
    with pytest.raises(ValueError, match="a model of 1 floats cannot be split among 2 shards"):
        planes(Shards()).check(1)
    planes(Shards()).check(2)
    planes().check(1)
