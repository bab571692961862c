"""Machines: step times, their changes, stalls, shares of a mini-batch."""

import statistics

import pytest

from wbsp.simulate.world.machine import Machine, changing, constant, lognormal, trace


def test_lognormal_has_the_given_mean_and_repeats_with_its_seed():
    draw, again = lognormal(2.0, 0.5, seed=7), lognormal(2.0, 0.5, seed=7)
    times = [draw(i, 0.0) for i in range(20_000)]
    assert statistics.fmean(times) == pytest.approx(2.0, rel=0.02)
    assert times[:50] == [again(i, 0.0) for i in range(50)]


def test_a_trace_repeats_at_its_end():
    seconds = trace([1.0, 2.0, 4.0])
    assert [seconds(i, 0.0) for i in range(5)] == [1.0, 2.0, 4.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="at least one"):
        trace([])


def test_the_latest_change_counts():
    seconds = changing(constant(1.0), [(200, 1.0), (100, 4.0)])
    assert [seconds(0, t) for t in (0, 99.9, 100, 199, 200)] == [1.0, 1.0, 4.0, 4.0, 1.0]


def test_a_stalled_machine_does_the_rest_of_its_step_afterwards():
    machine = Machine(constant(2.0), stalls=((3.0, 6.0), (9.0, 9.5)))
    assert machine.seconds(0, 0.0) == 2.0
    assert machine.seconds(0, 2.0) == 5.0  # 1 s before and 1 s after
    assert machine.seconds(0, 4.0) == 4.0  # begins in it
    assert machine.seconds(0, 7.5) == 2.5
    assert machine.seconds(0, 2.5, share=0.25) == 0.5  # ends as it begins to stand still


def test_only_the_work_of_a_step_grows_with_its_examples():
    machine = Machine(constant(2.0), fixed=0.5)
    assert machine.seconds(0, 0.0) == 2.5
    assert machine.seconds(0, 0.0, share=0.25) == 1.0
    assert machine.seconds(0, 0.0, share=0.25, parts=4) == 0.625
