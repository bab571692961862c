"""FedAsync: every push is a version, and weighs the less the staler it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quadratic import QuadraticWorkload
from random_clusters import Witness, answer_in, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant, trace
from wbsp.sync import Accept, Commit, Grant, Push, create
from wbsp.sync.fedasync import FedAsync
from wbsp.testing import IntegerWorkload, laws

test_laws = laws(lambda: FedAsync(tau=3))

OPTIONS = st.fixed_dictionaries({
    "tau": st.integers(1, 4), "alpha": st.sampled_from([0.3, 0.6, 1.0]),
    "staleness": st.sampled_from(["constant", "polynomial", "hinge"]),
    "hinge_b": st.sampled_from([0, 1.5, 4]), "weight": st.sampled_from(["settled", "plain"])})


class Mixed(Witness):
    """Knows what each push must weigh: the lag comes from the store's versions."""

    def __init__(self, plan, model):
        super().__init__(plan, model, Mixed.judge, self.weighs)
        self.assert_idle_for("push", "pull", "data")

    def weighs(self, push):
        """What an accepted push must weigh; asked before its commit."""
        model, lag = self.model, self.cluster.engine.store.latest.version - push.base_version
        share = model.alpha * {
            "constant": 1, "polynomial": (1 + lag) ** -0.5,
            "hinge": 1 / (10 * max(0, lag - model.hinge_b) + 1)}[model.staleness]
        return share / (1 + share * lag) if model.weight == "settled" else share

    def judge(self, outgoing, push):
        assert self.committed == (push is not None)
        if push:
            assert answer_in(outgoing).granted == len(self.bytes) - 1
            assert self.merged[-1] == 1
            assert push.steps == self.model.tau or (push.steps < self.model.tau
                                                    and self.finishing)


@many
@given(plans(), OPTIONS)
def test_random_clusters_keep_the_laws_and_no_worker_waits_for_others(plan, options):
    Mixed(plan, FedAsync(**options))


def push(worker=0, seq=0, base=0, steps=10):
    return Push(worker, seq, base, steps, steps, float(steps))


LAGS = 0, 1, 3, 4, 5, 8


@pytest.mark.parametrize("options, expected", [
    # alpha s(lag), by hand
    ({"staleness": "constant", "weight": "plain"}, [0.6] * 6),
    ({"weight": "plain"}, [0.6, 0.4243, 0.3, 0.2683, 0.2449, 0.2]),
    ({"poly_a": 1, "weight": "plain"}, [0.6, 0.3, 0.15, 0.12, 0.1, 0.0667]),
    ({"staleness": "hinge", "weight": "plain"}, [0.6, 0.6, 0.6, 0.6, 0.0545, 0.0146]),
    ({"staleness": "hinge", "hinge_a": 1, "hinge_b": 1, "alpha": 1, "weight": "plain"},
     [1, 1, 0.3333, 0.25, 0.2, 0.125]),
    # a / (1 + a lag)
    ({"staleness": "constant"}, [0.6, 0.375, 0.2143, 0.1765, 0.15, 0.1034]),
    ({}, [0.6, 0.2979, 0.1579, 0.1294, 0.1101, 0.0769]),
    ({"staleness": "constant", "alpha": 1}, [1, 0.5, 0.25, 0.2, 0.1667, 0.1111]),
    ({"staleness": "hinge"}, [0.6, 0.375, 0.2143, 0.1765, 0.0429, 0.0131]),
])
def test_weights_by_the_lag(options, expected):
    model = FedAsync(**options)
    model.join(0, 0.0)
    for seq in range(8):
        model.push(push(seq=seq, base=seq), 1.0)  # eight versions
    weights = [model.weight_of(push(base=8 - lag)) for lag in LAGS]
    assert weights == pytest.approx(expected, abs=5e-5)


def test_every_push_is_a_version_and_a_late_one_is_weighed_by_the_versions_since():
    model = FedAsync(staleness="constant")
    assert [model.join(worker, 0.0) for worker in (0, 1)] == [[Grant(0)], [Grant(1)]]
    assert model.push(push(0), 1.0) == [Accept(push(0), 0.6), Commit(), Grant(0)]
    late = push(1)
    assert model.push(late, 2.0) == [Accept(late, 0.6 / 1.6), Commit(), Grant(1)]
    assert model.leave(0, 3.0) == []


def test_the_lag_of_a_resumed_run_begins_at_its_first_version():
    model = FedAsync()
    for worker in (0, 1):
        model.join(worker, 0.0)
    assert model.push(push(0, 7, 100), 1.0)[0].weight == 0.6
    assert model.push(push(1, 9, 100), 2.0)[0].weight == pytest.approx(0.2979, abs=5e-5)


@given(st.floats(0.05, 1), st.integers(0, 12))
def test_settled_is_what_mixing_leaves_of_an_update_in_the_end(alpha, lag):
    """One update of 1 among updates of 0, all of the same lag, under the paper's rule."""
    w = [0.0] * (lag + 1)
    for n in range(400):
        x = w[-1 - lag] + (n == 0)
        w.append((1 - alpha) * w[-1] + alpha * x)
    model = FedAsync(staleness="constant", alpha=alpha)
    model.version = lag
    assert np.mean(w[-lag - 1:]) == pytest.approx(model.weight_of(push()), rel=0.02)


class Walk(IntegerWorkload):
    """Every step of every worker moves x by 1: what is reached is how much of it was kept."""

    def step(self, worker, samples=None, start=None):
        self.x[worker] = self.x[worker] + 1
        return 1, 0.0


@pytest.mark.parametrize("n", [1, 2, 8])
def test_equal_workers_go_as_far_as_by_mixing_and_plain_ones_many_times_as_far(n):
    reached, mixed = {}, [0.0]
    for weight in ("settled", "plain"):
        bases = []

        def log(now, kind, bases=bases, **fields):
            if kind == "accept":
                bases.append(fields["base"])
        cluster = Cluster(FedAsync(staleness="constant", weight=weight),
                          [Machine(constant(1.0))] * n, Walk(n), log=log, stop_samples=1000 * n)
        cluster.run()
        reached[weight] = cluster.engine.store.latest.vector[0]
    for base in bases:
        mixed.append(0.4 * mixed[-1] + 0.6 * (mixed[base] + 10))
    assert reached["settled"] == pytest.approx(mixed[-1], rel=0.05)
    assert reached["plain"] == pytest.approx((1 + 0.6 * (n - 1)) * mixed[-1], rel=0.05)


def test_a_fresh_model_is_mixed_in_as_in_the_paper():
    """One worker, whose lag is always 0: W' = 0.4 W + 0.6 x after tau steps from W."""
    workload, plain = QuadraticWorkload(1, seed=5), QuadraticWorkload(1, seed=5)
    cluster = Cluster(FedAsync(tau=4), [Machine(constant(0.1), latency=0.07)], workload,
                      stop_samples=40 * 16)
    cluster.run()
    w = plain.initial()
    steps = cluster.reports[0].steps
    for done in range(0, steps, 4):
        plain.adopt(0, w, "replace")
        for _ in range(min(4, steps - done)):
            plain.step(0)
        w = 0.4 * w + 0.6 * plain.x[0]
    assert steps >= 40
    assert np.allclose(cluster.engine.store.latest.vector, w, rtol=0, atol=1e-6)


def test_equal_workers_that_take_models_over_whole_are_asp():
    """alpha = 1 and one step a push: the weights 1/N, but for a worker's first."""
    weights = {}
    for model in (create("asp"), FedAsync(tau=1, alpha=1, staleness="constant")):
        heard = weights[model.name] = []

        def log(now, kind, heard=heard, **fields):
            if kind == "accept":
                heard.append(fields["weight"])
        workers = [Machine(trace([1.0]), latency=0.25)] * 4
        Cluster(model, workers, IntegerWorkload(4), log=log, stop_samples=40).run()
    assert weights["fedasync"][4:] == weights["asp"][4:] and len(weights["asp"]) >= 40


def error(rule, workers, seconds=60.0, rate=0.15, tau=10):
    """Mean distance of a noisy quadratic's last versions to its minimum, under a rule."""
    rng = np.random.default_rng(0)
    curvature = np.linspace(0.05, 1, 20)
    due = rng.uniform(0.5, 1, workers)
    base, versions, model = [0] * workers, [np.full(20, 3.0)], FedAsync(staleness="constant")
    while due.min() < seconds:
        worker = due.argmin()
        x = w = versions[base[worker]]
        for _ in range(tau):
            x = x - rate * (curvature * x + rng.standard_normal(20))
        model.version = len(versions) - 1
        kept = {"mixing": 0, "settled": model.weight_of(push(base=base[worker])), "plain": 0.6}
        versions.append(0.4 * versions[-1] + 0.6 * x if rule == "mixing"
                        else versions[-1] + kept[rule] * (x - w))
        base[worker] = len(versions) - 1
        due[worker] += rng.uniform(0.9, 1.1)
    return np.mean([np.linalg.norm(w) for w in versions[-5 * workers:]])


@pytest.mark.parametrize("workers", [8, 16])
def test_settled_converges_where_mixing_does_and_plain_diverges(workers):
    mixing, settled = error("mixing", workers), error("settled", workers)
    assert 0.5 * mixing < settled < mixing
    assert error("plain", workers) > 1000
