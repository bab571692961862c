"""Outer steps: the recurrences of their papers, and states that resume where they were."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbsp.core.outer_optimizer import OUTER_OPTIMIZERS, create_outer
from wbsp.core.store import Store

RNG = np.random.default_rng(0)
SUMS = [RNG.standard_normal(5).astype(np.float32) for _ in range(12)]


def versions(outer, sums, initial=None):
    """The versions that a store makes of these sums."""
    store = Store(np.ones(5) if initial is None else initial, outer=outer)
    made = []
    for pending in sums:
        store.accept(pending.copy(), 1.0)
        made.append(store.commit().vector)
    return made


def test_identity_adds_the_sum():
    assert np.allclose(versions(create_outer("identity"), SUMS)[-1], 1 + np.sum(SUMS, axis=0),
                       atol=1e-5)


@pytest.mark.parametrize("rate, momentum", [(0.7, 0.9), (1.0, 0.0), (0.5, 0.5)])
def test_nesterov_is_the_outer_optimizer_of_diloco(rate, momentum):
    w, m, expected = np.ones(5), np.zeros(5), []
    for pending in SUMS:  # the gradient is the negative sum
        m = momentum * m + pending
        w = w + rate * (pending + momentum * m)
        expected.append(w)
    made = versions(create_outer("nesterov", rate=rate, momentum=momentum), SUMS)
    assert np.allclose(made, expected, atol=1e-5)


def test_nesterov_agrees_with_the_sgd_of_keras():
    keras = pytest.importorskip("keras")
    variable = keras.Variable(np.ones(5, np.float32))
    optimizer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    for pending, made in zip(SUMS, versions(create_outer("nesterov"), SUMS), strict=True):
        optimizer.apply_gradients([(-pending, variable)])
        assert np.allclose(variable.numpy(), made, atol=1e-4)


@pytest.mark.parametrize("rate, momentum, nu", [(1.0, 0.999, 0.7), (5.0, 0.9, 0.8),
                                                (0.5, 0.0, 1.0)])
def test_qhm_is_quasi_hyperbolic_momentum(rate, momentum, nu):
    w, m, expected = np.ones(5), np.zeros(5), []
    for pending in SUMS:  # the gradient is the negative sum
        m = momentum * m + (1 - momentum) * pending
        w = w + rate * ((1 - nu) * pending + nu * m)
        expected.append(w)
    made = versions(create_outer("qhm", rate=rate, momentum=momentum, nu=nu), SUMS)
    assert np.allclose(made, expected, atol=1e-5)


def test_a_version_of_less_weight_pays_more_at_once_and_nothing_is_lost():
    outer = create_outer("qhm", rate=4, momentum=0.98, nu=0.75)
    owed, moved = np.zeros(5), np.zeros(5)
    sums = [*SUMS * 25, *[np.zeros(5, np.float32)] * 900]
    for version, pending in enumerate(sums):
        weight = (1.0, 0.5, 0.1)[version % 3]
        at_once = min(1.0, 0.25 / weight)
        owed += 4 * (1 - at_once) * pending
        expected = 4 * at_once * pending + 0.02 * owed
        owed *= 0.98
        step = outer.step(pending.copy(), weight)
        assert np.allclose(step, expected, atol=1e-3)
        moved += step
    assert np.allclose(moved, 4 * np.sum(sums, axis=0, dtype=float), atol=1e-2)


@pytest.mark.parametrize("weight, steps, lasts", [
    (1, 0, 20), (1, 0.25, 80), (1, 1, 80), (1, 4, 40), (1, 15.9, 20.06), (1, 16, 20), (1, 64, 20),
    (0.5, 1, 40), (0.5, 4, 20), (0.1, 1, 20)])
def test_the_memory_of_qhm_outlasts_the_momentum_of_updates_of_few_steps(weight, steps, lasts):
    """Nothing is lost when it changes."""
    outer = create_outer("qhm", rate=8, momentum=0.95, nu=0.875, outlast=80)
    fixed = create_outer("qhm", rate=8, momentum=1 - 1 / lasts, nu=0.875)
    for pending in SUMS:
        expected = fixed.step(pending.copy(), weight)
        assert np.allclose(outer.step(pending.copy(), weight, steps), expected, atol=1e-3)
    moved = sum(outer.step(pending.copy(), weight, n)
                for n, pending in enumerate([SUMS[0], *[np.zeros(5, np.float32)] * 900]))
    assert np.allclose(moved, 8 * SUMS[0] + fixed.state()["owed"], atol=1e-2)


def test_the_outer_step_receives_the_mean_steps_of_a_version():
    """By weight; and of the next version alone."""
    outer = create_outer("qhm", nu=1, momentum=0.5, outlast=20)
    store = Store(np.zeros(1, np.float32), outer=outer)
    means = {(10, 34): 0.2, (4, 4): 0.1, (0, 16): 0.1, (0, 0): 0.5}  # 16, 4, 4 and 0
    for (first, second), paid in means.items():
        store.accept(np.zeros(1, np.float32), 0.75, steps=first)
        store.accept(np.full(1, 40, np.float32), 0.25, steps=second)
        before = store.latest.vector.copy()
        owed = 10 + float(store.state().get("owed", np.zeros(1))[0])
        assert float((store.commit().vector - before)[0]) == pytest.approx(owed * paid)


def test_nesterovs_momentum_is_that_of_qhm_where_nu_is_the_momentum():
    """Ma and Yarats, table 1: Nesterov's momentum is QHM with nu = momentum."""
    sums = SUMS[:8]
    nesterov = versions(create_outer("nesterov", rate=0.7, momentum=0.9), sums)
    qhm = versions(create_outer("qhm", rate=7, momentum=0.9, nu=0.9), sums)
    assert np.allclose(nesterov, qhm, atol=1e-4)


@pytest.mark.parametrize("delay", [1, 3, 4])
def test_delayed_nesterov_moves_as_far_in_a_period_as_nesterov_on_the_periods_sum(delay):
    made = versions(create_outer("delayed-nesterov", delay=delay), SUMS)
    periods = [np.sum(SUMS[i:i + delay], axis=0) for i in range(0, len(SUMS), delay)]
    at_once = versions(create_outer("nesterov"), periods)
    assert np.allclose(made[delay - 1::delay], at_once, atol=1e-4)


def test_between_two_periods_delayed_nesterov_has_no_momentum():
    made = versions(create_outer("delayed-nesterov", delay=100), SUMS)
    assert np.allclose(made[-1], 1 + 0.7 * np.sum(SUMS, axis=0), atol=1e-5)


@pytest.mark.parametrize("name", OUTER_OPTIMIZERS)
@given(st.integers(0, len(SUMS)))
def test_a_restored_step_continues_as_if_nothing_had_been(name, cut):
    whole = versions(create_outer(name), SUMS)
    first, second = create_outer(name), create_outer(name)
    before = versions(first, SUMS[:cut])
    second.restore({key: value.copy() for key, value in first.state().items()})
    after = versions(second, SUMS[cut:], before[-1] if before else None)
    assert [v.tobytes() for v in before + after] == [v.tobytes() for v in whole]


@pytest.mark.parametrize("name", OUTER_OPTIMIZERS)
def test_a_state_that_was_handed_out_is_never_written(name):
    outer = create_outer(name)
    versions(outer, SUMS[:2])
    state = {key: (value, value.copy()) for key, value in outer.state().items()}
    versions(outer, SUMS[2:])
    assert all((held == copy).all() for held, copy in state.values())


@pytest.mark.parametrize("name, options, wrong", [
    ("adam", {}, "unknown outer optimizer 'adam'; known: identity, nesterov, qhm, "
     "delayed-nesterov"),
    ("nesterov", {"lr": 1}, "nesterov: unknown option 'lr'; known: rate, momentum"),
    ("nesterov", {"momentum": 2}, "option momentum=2 is above 1"),
    ("qhm", {"nu": 2}, "option nu=2 is above 1"),
    ("delayed-nesterov", {"delay": 0}, "option delay=0 is below 1"),
])
def test_bad_options_are_refused_in_one_line(name, options, wrong):
    with pytest.raises(ValueError, match=wrong):
        create_outer(name, **options)
