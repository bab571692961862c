"""What a worker keeps for a server that may die: sums by mark, at most two."""

import weakref

import numpy as np
import pytest

from wbsp.core.resend_buffer import ResendBuffer
from wbsp.core.stats import AnsweredWork
from wbsp.sync.base import Push


def add(kept, seq, value, mark, saved=0, weight=0.5, reason=None):
    push = Push(3, seq, 10 + seq, 2, 64, 0.5)
    kept.add(push, np.full(2, value, np.float32), weight, mark, saved, reason)


def work(first, last, rejected=None):
    count = last - first + 1
    return AnsweredWork(first, last, 2 * count, 64 * count, 0.5 * count, 10 + last, rejected or {},
                        unused=64 * sum((rejected or {}).values()))


def kept_since(kept, seq):
    found = kept.since(seq)
    return found and (found[0], None if found[1] is None else found[1].tolist())


def test_pushes_of_one_mark_are_one_sum():
    kept = ResendBuffer(4)
    assert (kept.answered, kept.vectors, kept.since(4)) == (4, 0, None)
    add(kept, 4, 2.0, 7)
    add(kept, 5, 4.0, 7, weight=0.25)
    assert (kept.answered, kept.vectors) == (6, 1)
    assert kept_since(kept, 4) == (work(4, 5), [2.0, 2.0])


def test_the_newest_push_counts_at_once_and_is_added_later():
    """Adding takes a while; a request during it includes the added push."""
    kept = ResendBuffer()
    update = np.full(2, 4.0, np.float32)
    kept.add(Push(3, 0, 10, 2, 64, 0.5), update, 0.5, 1, 0)
    assert kept.answered == 1 and kept.unsettled and update.tolist() == [4.0, 4.0]
    kept.settle()
    assert not kept.unsettled and update.tolist() == [2.0, 2.0], "its memory is the sum's"
    for ask, told in ((lambda: kept.first, 0), (lambda: kept.vectors, 1),
                      (lambda: kept_since(kept, 0)[1], [5.0, 5.0])):
        add(kept, kept.answered, 2.0, 1)
        assert kept.unsettled
        assert ask() == told
        assert not kept.unsettled
    assert kept_since(kept, 0) == (work(0, 3), [5.0, 5.0])


def test_a_durable_push_leaves_the_resend_buffer():
    kept = ResendBuffer()
    for seq, mark in enumerate([1, 1, 2, 2]):
        add(kept, seq, 2.0, mark)
    assert kept.vectors == 2
    kept.drop(2)
    assert kept_since(kept, 2) == (work(2, 3), [2.0, 2.0])
    add(kept, 4, 2.0, 2, saved=3)  # the answer came late
    assert kept.vectors == 0 and kept.answered == 5


def test_memory_of_sums_is_reused():
    """Where an update cannot be written to, as those of JAX, and where there is a standby."""
    kept, update, seen = ResendBuffer(), np.full(2, 2.0, np.float32), []
    update.flags.writeable = False
    for seq in range(12):
        kept.add(Push(3, seq, 10, 2, 64, 0.5), update, 0.5, mark=seq, saved=seq - 1)
        seen.append(weakref.ref(kept.since(seq)[1]))
        assert kept_since(kept, seq) == (AnsweredWork(seq, seq, 2, 64, 0.5, 10, {}), [1.0, 1.0])
    assert all(one() is not None for one in seen) and len({id(one()) for one in seen}) == 2


def test_checkpoints_that_failed_divide_nothing():
    kept = ResendBuffer()
    for seq in range(10):
        add(kept, seq, 2.0, mark=seq)
        assert kept.vectors <= 2
    kept.drop(9)  # the last was written
    assert kept_since(kept, 9) == (work(9, 9), [1.0, 1.0])


@pytest.mark.parametrize("seq, sum_", [(0, [2.0, 2.0]), (1, [1.0, 1.0]), (2, None)])
def test_a_server_receives_the_pushes_that_its_checkpoint_lacks(seq, sum_):
    kept = ResendBuffer()
    add(kept, 0, 2.0, 1)
    add(kept, 1, 2.0, 2)
    assert kept_since(kept, seq) == (sum_ and (work(seq, 1), sum_))


def test_resent_pushes_have_the_new_servers_mark():
    kept = ResendBuffer()
    add(kept, 0, 2.0, 8)
    add(kept, 1, 2.0, 9)
    kept.replayed(1, 4)
    add(kept, 2, 2.0, 4)
    kept.drop(4)
    assert kept_since(kept, 1) == (work(1, 2), [2.0, 2.0])
    kept.drop(5)
    assert kept.vectors == 0


def test_rejected_pushes_are_counted_and_take_no_memory():
    kept = ResendBuffer()
    add(kept, 0, np.nan, 1, weight=0.0, reason="not finite")
    assert kept.vectors == 0
    assert kept_since(kept, 0) == (work(0, 0, {"not finite": 1}), None)
    add(kept, 1, 2.0, 1)
    add(kept, 2, np.nan, 1, weight=0.0, reason="not finite")
    assert kept_since(kept, 0) == (work(0, 2, {"not finite": 2}), [1.0, 1.0])


def test_pushes_to_a_server_without_an_answer_stay_separate():
    """A worker may continue with the earlier server. The other one then serves with the pushes that
    it was sent, and requests the rest."""
    kept = ResendBuffer()
    for seq in range(2):
        add(kept, seq, 2.0, mark=1)
    assert kept_since(kept, 0) == (work(0, 1), [2.0, 2.0])
    for seq in range(2, 8):
        add(kept, seq, 2.0, mark=seq // 2)
        assert kept.vectors <= 3
    assert kept_since(kept, 2) == (work(2, 7), [6.0, 6.0])


def test_a_server_that_accepted_no_sent_push_receives_all_again():
    kept = ResendBuffer()
    add(kept, 0, 2.0, mark=1)
    assert kept_since(kept, 0) == (work(0, 0), [1.0, 1.0])
    add(kept, 1, 2.0, mark=1)
    assert kept_since(kept, 0) == (work(0, 1), [2.0, 2.0])
    kept.replayed(0, 5)
    add(kept, 2, 2.0, mark=5)
    assert kept.vectors == 1 and kept_since(kept, 0) == (work(0, 2), [3.0, 3.0])
