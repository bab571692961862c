"""A worker's share of the run's data: the batches that its input pipeline takes, and the epochs."""

import threading

import pytest

from wbsp.core.messages import Ack, Granted, Range, SharedData, Work, WorkHeld, WorkPlace
from wbsp.core.participant import Participant
from wbsp.sync import WorkerRule
from wbsp.worker.share import LOOK, NOTHING, Share


@pytest.fixture
def share():
    """Of 20 examples in batches of 4, three epochs; this worker's sequence begins at 100."""
    return begun()


RULE = WorkerRule("when_idle", "never", "rebase")


def begun(epoch=0):
    share, place = Share(20, 4), WorkPlace(SharedData(20, 4, 3), 100, epoch)
    one = Participant(0, RULE, place=place)
    one.received(Granted(0), 0.0), one.fetched(0)
    share.begin(place, one)
    share.one = one
    return share


def given(share, start, stop):
    share.one.received(Work(share.one.work.end, start, stop, 0), 0.0)


def train(share):
    """Train the oldest batch; return its size."""
    share.one.step_begins()
    size = share.step_done()
    share.one.step_done(size, 0.1)
    return size


def test_batches_come_in_order_and_are_counted_when_they_are_trained(share):
    given(share, 30, 40)
    assert [share.take() for _ in range(3)] == [
        Range(100, 30, 34), Range(104, 34, 38), Range(108, 38, 40)]
    assert share.held() == WorkHeld(share.data, 100, [Range(100, 30, 40)])
    assert [train(share) for _ in range(2)] == [4, 4]
    assert share.epoch == 1 and share.ready
    share.one.received(Ack(0, True), 0.0)
    assert share.held() == WorkHeld(share.data, 104, [Range(104, 34, 40)])
    assert train(share) == 2 and not share.ready and not share.handed_out
    share.one.received(Ack(1, True), 0.0)
    assert share.held() == WorkHeld(share.data, 110, [])


def test_a_worker_that_has_ended_holds_what_it_has_trained_and_no_more(share):
    given(share, 0, 8)
    share.take(), share.take()
    train(share)
    assert share.held() == WorkHeld(share.data, 100, [Range(100, 0, 8)])
    share.one.finish(), share.end()
    assert share.held() == WorkHeld(share.data, 100, [Range(100, 0, 4)])
    share.one.received(Ack(0, True), 0.0)
    assert share.held() == WorkHeld(share.data, 104, [])


def test_a_share_that_has_not_begun_holds_nothing():
    assert Share(20, 4).held() == WorkHeld(SharedData(20, 4, 1), 0, [])


def test_the_next_epoch_is_known_before_its_first_batch_is_taken(share):
    given(share, 16, 20)
    share.take()
    train(share)
    assert (share.epoch, share.next_epoch) == (0, 0)
    given(share, 20, 24)
    assert (share.epoch, share.next_epoch) == (0, 1)
    share.take()
    assert (share.epoch, share.next_epoch) == (0, 1)
    train(share)
    given(share, 4, 8)  # a lost worker's
    assert (share.epoch, share.next_epoch, share.untaken_epoch) == (1, 1, 1)


def test_an_epoch_never_falls_although_work_of_an_earlier_one_returns(share):
    given(share, 20, 24)
    given(share, 4, 8)  # a lost worker's
    given(share, 40, 44)
    assert (share.next_epoch, share.untaken_epoch) == (1, 1)
    share.take()
    assert (share.next_epoch, share.untaken_epoch) == (1, 1), "before the first is trained"
    share.take()
    assert (share.next_epoch, share.untaken_epoch) == (1, 2)
    for _ in range(2):
        train(share)
    assert (share.epoch, share.next_epoch, share.untaken_epoch) == (1, 2, 2)


def test_a_late_joiner_begins_in_the_epoch_that_the_run_is_in():
    assert begun(epoch=2).epoch == 2


def test_outside_a_run_the_data_yield_an_untrained_batch_without_waiting():
    share = Share(20, 4)
    assert list(share) == [LOOK] and share.take() == LOOK
    share = begun()
    reader = iter(share)
    threading.Timer(0.1, share.stop).start()
    assert next(one for one in reader if one != NOTHING) == LOOK
    share.end()
    assert list(reader) == []


def test_a_reader_is_woken_at_intervals_while_no_batch_arrives(share):
    assert next(iter(share)) == NOTHING


def test_a_second_reader_is_refused(share):
    given(share, 0, 8)
    next(iter(share))
    with pytest.raises(RuntimeError, match="read once"):
        next(iter(share))


@pytest.mark.parametrize("numbers, named", [
    ((0, 4), "n=0"), ((20, 0), "batch_size=0"), ((20, 2.5), "batch_size=2.5"),
    ((True, 4), "n=True"), ((20, 4, -1), "seed=-1")])
def test_impossible_numbers_are_refused(numbers, named):
    with pytest.raises(ValueError, match=f"{named}: it must be"):
        Share(*numbers)
