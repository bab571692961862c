"""Who may serve: not two at a time, whatever the workers see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbsp.layout import TensorSpec
from wbsp.ps.contest import SERVER_STEP, STANDBY_STEP, Ballot
from wbsp.sync import create
from wbsp.wire import messages as m
from wbsp.worker.attachment import Attachment


def member(worker, epoch):
    """A worker that belongs to the server with that epoch."""
    attachment = Attachment()
    attachment.hello = m.Hello(m.PROTOCOL, worker, {})
    attachment.join = m.Join([TensorSpec("x", (1,))])
    attachment.welcomed(m.Welcome({"id": "ab"}, 0.0, create("bsp").rule))
    attachment.admitted(m.Joined(0, 0, False, 0.0, epoch))
    return attachment


@given(workers=st.integers(1, 9), epoch=st.integers(1, 5), data=st.data())
def test_a_server_and_its_standby_never_both_have_enough(workers, epoch, data):
    members = [member(worker, epoch) for worker in range(workers)]
    held = data.draw(st.sets(st.integers(0, workers - 1), min_size=1), "workers that it holds")
    newer = data.draw(st.sets(st.integers(0, workers - 1), min_size=1), "workers since then")
    server = Ballot(epoch, SERVER_STEP, [held, newer])
    standby = Ballot(epoch, STANDBY_STEP, [held])
    for _ in range(data.draw(st.integers(0, 4 * workers))):
        worker = data.draw(st.integers(0, workers - 1))
        ballot = data.draw(st.sampled_from([server, standby]))
        act = data.draw(st.sampled_from(["ask", "ask", "release"]))
        if act == "ask":
            if promise := members[worker].choose(m.Elect(ballot.epoch, ballot.since)):
                assert promise.epoch == ballot.epoch
                ballot.promised.add(worker)
        elif not ballot.won:  # who has won does not give back
            ballot.promised.discard(worker)
            members[worker].choose(m.NotServing("", ballot.epoch))
        assert not (server.won and standby.won)


@pytest.mark.parametrize(("workers", "server", "standby"), [
    (1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 2, 3), (8, 4, 5)])
def test_how_many_are_needed(workers, server, standby):
    for step, needed in ((SERVER_STEP, server), (STANDBY_STEP, standby)):
        ballot = Ballot(1, step, [range(workers)])
        ballot.promised.update(range(needed - 1))
        assert not ballot.won
        ballot.promised.add(needed - 1)
        assert ballot.won


def test_without_workers_the_server_stays_and_the_standby_waits():
    assert Ballot(1, SERVER_STEP, [()]).won and not Ballot(1, STANDBY_STEP, [()]).won


def test_a_worker_promises_itself_once_an_epoch():
    worker = member(0, 4)
    assert worker.choose(m.Elect(5, since=3)) is None, "it belongs to a later server"
    assert worker.choose(m.Elect(5, since=4)) == m.Elected(5)
    assert worker.choose(m.Elect(5, since=4)) == m.Elected(5), "the answer may have been lost"
    assert worker.choose(m.Elect(6, since=4)) is None
    worker.choose(m.NotServing("", 6))  # of a promise that it has not made
    assert worker.choose(m.Elect(6, since=4)) is None
    worker.choose(m.NotServing("", 5))
    assert worker.choose(m.Elect(6, since=4)) == m.Elected(6)
    worker.choose(m.Leading(6))
    assert worker.choose(m.Elect(7, since=6)) == m.Elected(7)
