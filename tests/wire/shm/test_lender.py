"""Messages to workers of its machine: what one does not take yet waits, and nothing else."""

import pytest
import zmq

from wbsp.wire.shm.lender import Lending
from wbsp.wire.shm.link import Door, Link


def test_messages_that_a_worker_does_not_read_wait_in_order():
    lending, ends = Lending(None), []
    slow, other = (_linked(lending, ends, name) for name in (b"slow", b"other"))
    sent = 0
    while not lending.post(slow, b"%d" % sent, 0.0):
        sent += 1
    assert lending.post(slow, b"%d" % (sent + 1), 0.0) == 2, "two wait"
    assert lending.post(other, b"at once", 0.0) == 0, "nobody else's message does"
    assert _read(ends[1]) == [b"at once"]
    assert _read(ends[0]) == [b"%d" % i for i in range(sent)]
    lending.flush(0.0)
    assert _read(ends[0]) == [b"%d" % sent, b"%d" % (sent + 1)]
    lending.flush(0.0)
    assert _read(ends[0]) == []
    lending.close()


def test_waiting_messages_are_dropped_with_their_link():
    lending, ends = Lending(None), []
    slow = _linked(lending, ends, b"slow")
    while not lending.post(slow, b"lost", 0.0):
        pass
    lending.end(slow)
    lending.flush(0.0)  # touches no socket that is closed
    assert len(slow.queue) == 1, "it was not sent"
    lending.close()


def _linked(lending: Lending, ends: list[Link], identity: bytes):
    """The server's end of a new link; the worker's is appended to `ends`."""
    door = Door(True)
    link, how = lending.link(identity, door.name, 1)
    assert link is not None, how
    end = door.link(link.inbox)
    assert end is not None
    door.close()
    ends.append(end)
    return link


def _read(end: Link) -> list[bytes]:
    """All messages that are there."""
    messages = []
    while True:
        try:
            (frame,) = end.recv_multipart()
        except zmq.Again:
            return messages
        messages.append(bytes(frame.buffer))


def test_segments_that_a_lost_worker_may_read_are_unmapped_by_the_others():
    """Each life of another worker costs the one that stays a segment, for as long as it is told."""
    lending, ends = Lending(None), []
    stays = _linked(lending, ends, b"stays")
    known = []
    for life in range(10):
        goes = _linked(lending, ends, b"goes")
        version = lending.pool.take(1)
        for link in (stays, goes):
            assert link.lend(life, version)
        del version
        stays.returned(life + 1)
        lending.end(goes)  # which has returned nothing
        lending.flush(0.0)
        ends[0].catch_up()
        known.append(len(ends[0].segments))
    assert max(known) <= 3, "its own, and those that are in use"
    lending.close()


def test_a_worker_with_a_full_queue_receives_releases_later():
    lending, ends = Lending(None), []
    stays, goes = (_linked(lending, ends, name) for name in (b"stays", b"goes"))
    version = lending.pool.take(1)
    assert stays.lend(0, version) and goes.lend(0, version)
    del version
    while not lending.post(stays, b"full", 0.0):
        pass
    waiting = len(stays.queue)
    stays.returned(1)
    lending.end(goes)
    lending.flush(0.0)
    assert len(stays.queue) == waiting + 1
    _read(ends[0])
    lending.flush(0.0)
    _read(ends[0])
    lending.flush(0.0)
    assert not stays.queue
    ends[0].catch_up()
    assert list(ends[0].segments) == [stays.inbox]
    lending.close()


def test_the_last_messages_of_a_worker_that_has_closed_its_link_are_read():
    """It has left while the server was about to lend it a version."""
    lending, ends = Lending(None), []
    leaves = _linked(lending, ends, b"leaves")
    for message in (b"fetch", b"leaving"):
        ends[0].send_multipart([message])
    ends[0].close()
    assert bytes(leaves.receive()[0].buffer) == b"fetch"
    assert leaves.lend(1, lending.pool.take(1)) is None and leaves.ended
    assert [*lending.readable()] == [leaves]
    assert bytes(leaves.receive()[0].buffer) == b"leaving"
    with pytest.raises(ConnectionError):
        leaves.receive()
    lending.close()
