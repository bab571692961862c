"""A worker's share of the run's data: what it hands out, trains, asks for, and holds."""

import threading

import pytest

from wbsp.core.messages import AskWork, Range, Work, WorkHeld, WorkPlace
from wbsp.worker.share import LOOK, NOTHING, Share


@pytest.fixture
def share():
    """Of 20 examples in batches of 4, three epochs; this worker's sequence begins at 100."""
    return begun()


def begun(ahead=True, epoch=0):
    share = Share(20, 4)
    share.wants(3)
    share.begin(WorkPlace(share.data, 100, epoch), ahead)
    return share


def answered(share, to, start=None):
    """The positions in a push up to `to`, which the server has answered."""
    work = share.sequence
    spans = work.spans(work.answered if start is None else start, to)
    work.answer(to)
    return [*spans]


def given(share, start, stop, epoch=0):
    at = share.question(7).have
    share.received(Work(at, start, stop, epoch))
    return at


def test_batches_come_in_order_and_are_counted_when_they_are_trained(share):
    given(share, 30, 40)
    assert [share.take() for _ in range(3)] == [
        Range(100, 30, 34), Range(104, 34, 38), Range(108, 38, 40)]
    assert share.held() == WorkHeld(share.data, 100, [Range(100, 30, 40)])
    assert [share.step_done(0.1) for _ in range(2)] == [4, 4]
    assert share.epoch == 1 and share.ready
    assert answered(share, 108) == [(30, 38)]
    assert share.held() == WorkHeld(share.data, 108, [Range(108, 38, 40)])
    assert share.step_done(0.1) == 2 and not share.ready and not share.handed_out
    assert answered(share, 110) == [(38, 40)] and share.held() == WorkHeld(share.data, 110, [])


def test_dropped_examples_are_in_no_push(share):
    given(share, 30, 40)
    for _ in range(3):
        share.take(), share.step_done(0.1)
    assert answered(share, 110, 104) == [(34, 40)]
    assert share.held() == WorkHeld(share.data, 110, [])


def test_a_worker_that_has_ended_holds_what_it_has_trained_and_no_more(share):
    given(share, 0, 8)
    share.take(), share.take()
    share.step_done(0.1)
    assert share.held() == WorkHeld(share.data, 100, [Range(100, 0, 8)])
    share.end()
    assert share.held() == WorkHeld(share.data, 100, [Range(100, 0, 4)])
    assert answered(share, 104) == [(0, 4)] and share.held() == WorkHeld(share.data, 104, [])


def test_a_push_over_the_end_of_a_range_has_parts_of_two(share):
    given(share, 0, 4)
    share.take()
    share.step_done(0.1)
    assert share.question(7).have == 104
    share.received(Work(104, 8, 16, 0))
    share.take()
    share.step_done(0.1)
    assert answered(share, 108) == [(0, 4), (8, 12)]


def test_a_range_that_comes_twice_or_does_not_follow_is_nothing_new(share):
    given(share, 0, 4)
    share.received(Work(100, 0, 4, 0))
    share.received(Work(108, 4, 8, 0))
    assert share.take() == Range(100, 0, 4)
    assert not share.dry and share.held() == WorkHeld(share.data, 100, [Range(100, 0, 4)])


def test_a_question_is_asked_once_until_it_is_answered_or_the_server_is_another(share):
    assert share.question(7) == AskWork(100, 7)
    assert share.question(7) is None
    share.reattached()
    assert share.question(7) == AskWork(100, 7)
    share.received(Work(100, 0, 0, 0))
    assert share.question(7) is None and share.dry, "the server says by itself when there is more"
    share.received(Work(100, 0, 8, 0))
    assert share.ready and not share.dry and share.question(7) is None
    share.stop()
    share.take(), share.take(), share.step_done(1.0), share.step_done(1.0)
    assert share.question(7) is None, "of a run that ends"


def test_a_worker_that_waits_for_versions_asks_when_all_is_trained_and_others_in_time():
    waits, busy = begun(ahead=False), begun(ahead=True)
    for share in (waits, busy):
        given(share, 0, 16)
        share._requests.trip = 0.02  # seconds of a question and its answer
        for _ in range(2):
            share.take()
            share.step_done(0.05)
    assert waits.question(7) is None and busy.question(7) is None, "0.1 s left: two batches"
    for share in (waits, busy):
        share.take()
        share.step_done(0.01)
    assert waits.question(7) is None and busy.question(7) == AskWork(116, 7, ahead=6)
    for share in (waits, busy):
        share.take()
        share.step_done(0.01)
    assert waits.question(7) == AskWork(116, 7)


def test_the_next_epoch_is_known_before_its_first_batch_is_taken(share):
    given(share, 16, 20)
    share.take()
    share.step_done(0.1)
    assert (share.epoch, share.next_epoch) == (0, 0)
    given(share, 20, 24)
    assert (share.epoch, share.next_epoch) == (0, 1)
    share.take()
    assert (share.epoch, share.next_epoch) == (0, 1)
    share.step_done(0.1)
    given(share, 4, 8)  # a lost worker's
    assert (share.epoch, share.next_epoch, share.untaken_epoch) == (1, 1, 1)


def test_an_epoch_never_falls_although_work_of_an_earlier_one_returns(share):
    given(share, 20, 24)
    share.received(Work(104, 4, 8, 0))  # a lost worker's
    share.received(Work(108, 40, 44, 0))
    assert (share.next_epoch, share.untaken_epoch) == (1, 1)
    share.take()
    assert (share.next_epoch, share.untaken_epoch) == (1, 1), "before the first is trained"
    share.take()
    assert (share.next_epoch, share.untaken_epoch) == (1, 2)
    for _ in range(2):
        share.step_done(0.1)
    assert (share.epoch, share.next_epoch, share.untaken_epoch) == (1, 2, 2)


def test_a_late_joiner_begins_in_the_epoch_that_the_run_is_in():
    assert begun(epoch=2).epoch == 2


def test_outside_a_run_and_at_its_end_there_is_a_look_and_no_worker_waits():
    share = Share(20, 4)
    assert list(share) == [LOOK] and share.take() == LOOK
    share = begun()
    reader = iter(share)
    threading.Timer(0.1, share.stop).start()
    assert next(one for one in reader if one != NOTHING) == LOOK
    share.end()
    assert list(reader) == []


def test_a_reader_gets_nothing_now_and_then_while_nothing_comes(share):
    assert next(iter(share)) == NOTHING


def test_a_second_reader_is_refused(share):
    given(share, 0, 8)
    next(iter(share))
    with pytest.raises(RuntimeError, match="read once"):
        next(iter(share))


@pytest.mark.parametrize("numbers, named", [
    ((0, 4), "n=0"), ((20, 0), "batch_size=0"), ((20, 2.5), "batch_size=2.5"),
    ((True, 4), "n=True"), ((20, 4, -1), "seed=-1")])
def test_numbers_that_cannot_be_are_refused(numbers, named):
    with pytest.raises(ValueError, match=f"{named}: it must be"):
        Share(*numbers)
