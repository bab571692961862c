"""Shares in the work: they sum to one, follow the work, and are equal where it is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbsp.sync import Push
from wbsp.sync.shares import TimeShares, WorkShares

EVENTS = st.lists(st.tuples(st.sampled_from(["push", "push", "push", "round", "join", "leave"]),
                            st.integers(0, 4), st.integers(1, 64)), max_size=60)


def counted(shares, worker, samples, steps=1, now=0.0):
    shares.count(Push(worker, 0, 0, steps, samples, 1.0), now)


def shared(samples, rounds=1):
    """Shares after `rounds` whole rounds in which worker k trained samples[k]."""
    shares = WorkShares()
    for worker in range(len(samples)):
        shares.join(worker, 0.0)
    for _ in range(rounds):
        for worker, count in enumerate(samples):
            counted(shares, worker, count)
        shares.end_round()
    return [shares.of(worker) for worker in range(len(samples))]


@given(EVENTS)
def test_the_shares_of_active_workers_always_sum_to_one(events):
    shares, active = WorkShares(), set()
    for kind, worker, samples in events:
        if kind == "join" and worker not in active:
            active.add(worker)
            shares.join(worker, 0.0)
        elif kind == "leave" and worker in active:
            active.discard(worker)
            shares.leave(worker)
        elif kind == "push" and worker in active:
            counted(shares, worker, samples)
        elif kind == "round":
            shares.end_round()
        weights = [shares.of(worker) for worker in active]
        assert all(0 < weight <= 1 for weight in weights)
        assert not active or math.isclose(sum(weights), 1, rel_tol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 49])
def test_by_equal_work_weights_are_exactly_those_of_equal_workers(n):
    assert shared(n * [32], rounds=3) == n * [1 / n]


def test_shares_follow_the_work():
    assert shared([26, 1]) == pytest.approx([26 / 27, 1 / 27])


def test_the_newest_round_counts_most():
    shares = WorkShares()
    shares.join(0, 0.0), shares.join(1, 0.0)
    for a, b in ((10, 10), (20, 10)):
        counted(shares, 0, a), counted(shares, 1, b)
        shares.end_round()
    assert shares.of(0) == pytest.approx(17 / 27)


def test_a_newcomer_has_an_equal_share_until_a_whole_round_is_known():
    shares = WorkShares()
    shares.join(0, 0.0), shares.join(1, 0.0)
    counted(shares, 0, 30), counted(shares, 1, 10)
    shares.end_round()
    counted(shares, 0, 30)
    shares.join(2, 0.0)
    counted(shares, 2, 999)  # of a round that it has not seen from its begin
    assert [shares.of(w) for w in range(3)] == pytest.approx([1 / 2, 1 / 6, 1 / 3])
    counted(shares, 1, 10)
    shares.end_round()
    assert shares.of(2) == pytest.approx(1 / 3)
    counted(shares, 0, 30), counted(shares, 1, 10), counted(shares, 2, 40)
    shares.end_round()
    assert [shares.of(w) for w in range(3)] == pytest.approx([3 / 8, 1 / 8, 1 / 2])


def test_a_worker_without_work_in_its_first_rounds_does_not_lose_its_next_push():
    """With weight 0, what it has trained would be in no version."""
    assert shared([12, 0]) == [1 / 2, 1 / 2]
    assert shared([10, 30, 0], rounds=2) == pytest.approx([1 / 6, 1 / 2, 1 / 3])
    shares = WorkShares()
    shares.join(0, 0.0), shares.join(1, 0.0)
    for samples in (0, 4):
        counted(shares, 0, 12), counted(shares, 1, samples)
        shares.end_round()
    assert shares.of(1) == 4 / 16


def test_by_time_each_worker_moves_the_model_equally_fast():
    """Steps of 1 s and 4 s; the fast one hands over one step or several."""
    shares = TimeShares()
    shares.join(0, 10.0), shares.join(1, 10.0)
    counted(shares, 0, 8, now=11.0)
    assert shares.of(0) == 1 / 2, "of the other nothing is known"
    counted(shares, 0, 8, steps=3, now=14.0)
    counted(shares, 1, 8, now=14.0)
    assert [shares.of(worker) for worker in (0, 1)] == [1 / 5, 4 / 5]
    counted(shares, 1, 8, now=20.0)  # 6 s; on average 4 + 0.3 * 2
    assert shares.of(1) == pytest.approx(4.6 / 5.6)
    shares.join(2, 20.0)
    assert [shares.of(worker) for worker in range(3)] == pytest.approx(
        [2 / 3 / 5.6, 2 / 3 * 4.6 / 5.6, 1 / 3])
    shares.leave(1)
    assert [shares.of(worker) for worker in (0, 2)] == [1 / 2, 1 / 2]


def test_a_worker_that_returns_starts_again():
    shares = WorkShares()
    shares.join(0, 0.0), shares.join(1, 0.0)
    counted(shares, 0, 30), counted(shares, 1, 10)
    shares.end_round()
    shares.leave(0), shares.join(0, 0.0)
    assert (shares.of(0), shares.of(1)) == (0.5, 0.5)


def test_before_any_measurement_all_weights_are_equal():
    assert shared([1, 2, 3], rounds=0) == [1 / 3, 1 / 3, 1 / 3]
