"""Predictors of speed, and the part of a step that does not depend on its batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import many

from wbsp.sync.predict import PREDICTORS, Ema, Last, Narx, Overhead


def error(predictor, speeds, cpu=None, judged=100):
    """Root mean square error of the last `judged` predictions, each made before its speed."""
    misses = []
    for k, speed in enumerate(speeds):
        misses.append(predictor.value - speed)
        predictor.observe(speed, None if cpu is None else cpu[k], 0.5)
    return np.mean(np.square(misses[-judged:])) ** 0.5


def driven_by_load(length=300, seed=0):
    """(speeds, cpu): how busy the processors are after step k decides the speed of step k + 1."""
    random = np.random.default_rng(seed)
    cpu = random.uniform(0, 1, length)
    speeds = 100 * (1 - 0.8 * np.roll(cpu, 1)) * (1 + 0.02 * random.standard_normal(length))
    return speeds, cpu


@pytest.mark.parametrize("name", PREDICTORS)
@pytest.mark.parametrize("after", [25.0, 400.0])
def test_a_step_change_is_followed(name, after):
    random = np.random.default_rng(1)
    predictor = PREDICTORS[name]()
    for speed in [*[100.0] * 60, *[after] * 25]:
        predictor.observe(speed * (1 + 0.01 * random.standard_normal()), 0.5, 0.5)
    assert abs(predictor.value / after - 1) < 0.05


def test_the_average_is_calmer_than_the_last_on_noise():
    speeds = 100 * (1 + 0.1 * np.random.default_rng(2).standard_normal(300))
    assert error(Ema(), speeds) < 0.9 * error(Last(), speeds)


@pytest.mark.parametrize("seed", range(3))
def test_the_network_predicts_better_where_the_load_announces_the_next_speed(seed):
    speeds, cpu = driven_by_load(seed=seed)
    network, average, last = (error(PREDICTORS[name](), speeds, cpu)
                              for name in ("narx", "ema", "last"))
    assert network < 0.3 * min(average, last)


def test_the_network_learns_from_past_speeds_alone():
    speeds = [50.0, 100.0] * 100
    assert error(Narx(), speeds) < 0.2 * min(error(Ema(), speeds), error(Last(), speeds))


def test_the_network_is_the_average_until_it_has_proved_better():
    speeds, cpu = driven_by_load(60)
    network, average = Narx(), Ema()
    for k, (speed, busy) in enumerate(zip(speeds, cpu, strict=True), 1):
        network.observe(speed, busy, 0.5)
        average.observe(speed)
        assert network.value == average.value or (k >= 2 * Narx.LEAST and network.believed)
    assert network.believed
    steady = Narx()
    for _ in range(60):
        steady.observe(100.0, 0.5, 0.5)
    assert not steady.believed and steady.value == 100.0


def test_the_same_past_gives_the_same_prediction():
    speeds, cpu = driven_by_load(120)
    one, other = Narx(), Narx()
    for speed, busy in zip(speeds, cpu, strict=True):
        one.observe(speed, busy)
        other.observe(speed, busy)
        assert one.value == other.value


@many
@given(st.sampled_from(list(PREDICTORS)),
       st.lists(st.tuples(st.floats(1e-3, 1e9), st.one_of(st.none(), st.floats(0, 1))),
                min_size=1, max_size=48))
def test_a_prediction_stays_near_the_observations(name, series):
    predictor = PREDICTORS[name]()
    for k, (speed, cpu) in enumerate(series, 1):
        predictor.observe(speed, cpu, cpu)
        seen = [speed for speed, _ in series[:k]]
        assert min(seen) / 2.001 <= predictor.value <= 2.001 * max(seen)


@many
@given(st.floats(1.0, 1e4), st.floats(0.0, 0.85), st.integers(1, 500),
       st.lists(st.integers(1, 500), min_size=1, max_size=6))
def test_two_sizes_reveal_the_overhead(speed, share, batch, others):
    """`share`: the overhead's of the shortest step"""
    q = share / (1 - share) * min([batch, *others]) / speed
    overhead = Overhead()
    for x in (batch, *others):
        overhead.observe(x, x / speed + q)
    if len({batch, *others}) > 1:
        assert overhead.seconds == pytest.approx(q, rel=1e-6, abs=1e-6 / speed)
    else:
        assert overhead.seconds == 0.0


@many
@given(st.lists(st.tuples(st.integers(1, 9), st.floats(1e-9, 1e3)), min_size=1, max_size=20))
def test_the_overhead_is_less_than_the_step(steps):
    overhead = Overhead()
    for batch, seconds in steps:
        overhead.observe(batch, seconds)
        assert 0 <= overhead.seconds <= 0.9 * seconds


def test_an_overhead_that_vanished_is_forgotten():
    overhead = Overhead()
    overhead.observe(10, 0.6)
    overhead.observe(20, 0.7)
    assert overhead.seconds == pytest.approx(0.5)
    overhead.observe(20, 0.2)
    assert overhead.seconds == 0.0


def test_sizes_that_follow_noise_reveal_no_overhead():
    """A batch chosen by the last speed is large after a fast step: no line lies in that."""
    random = np.random.default_rng(3)
    overhead, batch = Overhead(), 100.0
    found = []
    for _ in range(400):
        speed = 100 * (1 + 0.1 * random.standard_normal())
        seconds = batch / speed
        overhead.observe(batch, seconds)
        found.append(overhead.seconds / seconds)
        batch = speed
    assert np.mean(found) < 0.1
