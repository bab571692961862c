"""WBSP and its overlapped form: fast workers stay busy, the slowest makes the version."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pushes import push
from quadratic import QuadraticWorkload, versions
from random_clusters import Judge, Witness, many, plans

from wbsp.core.engine import Engine
from wbsp.core.store import Store
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import Accept, Commit, Grant, create

OTHERS = st.sampled_from([("slowest", "slowest"), ("every_push", "all_pushed"),
                          ("every_push", "slowest")])


@many
@given(plans())
def test_random_clusters_keep_the_laws_of_wbsp(plan):
    Witness(plan, create("wbsp"), Judge()).assert_waits_for_itself_only()


@many
@given(plans(), OTHERS)
def test_random_clusters_keep_the_laws_of_every_variant(plan, variant):
    commit, trigger = variant
    model = create("wbsp", commit=commit, trigger=trigger)
    Witness(plan, model, Judge(commit, trigger)).assert_waits_for_itself_only()


@many
@given(plans())
def test_random_clusters_keep_the_laws_of_the_overlapped_form(plan):
    Witness(plan, create("pcc"), Judge()).assert_idle_for()


@many
@given(plans(), OTHERS)
def test_random_clusters_keep_the_laws_of_every_overlapped_variant(plan, variant):
    commit, trigger = variant
    model = create("pcc", commit=commit, trigger=trigger)
    Witness(plan, model, Judge(commit, trigger)).assert_idle_for()


class Losing(Witness):
    """A run whose workers lose the steps that they make while a version is fetched, and no other.

    lost: worker -> its steps that no push holds
    """

    def __init__(self, plan):
        self.lost = [0] * len(plan.workers)
        super().__init__(plan, create("pcc", adopt="replace"), Judge())
        self.assert_idle_for()

    def run(self):
        self.cluster.run()
        assert self.cluster.engine.done
        assert self.equal(self.cluster.engine.store.latest.vector)
        for worker, report in enumerate(self.cluster.reports):
            member = self.cluster.engine.members.get(worker)
            pushed = member.steps if member else 0
            assert worker in self.lossy or report.steps == pushed + self.lost[worker]

    def adopt(self, worker, now, version, how):
        super().adopt(worker, now, version, how)
        assert how == "replace"
        pushed = self.cluster.engine.members[worker].steps  # a push and a fetch are never at once
        self.lost[worker] = self.cluster.reports[worker].steps - pushed


@given(plans())
def test_random_clusters_that_lose_steps_keep_all_other_laws(plan):
    Losing(plan)


class ByWork(Witness):
    """A run whose pushes weigh their worker's share in the work, which is counted here once more.

    rounds: worker -> its samples in each round that it has seen from the first push on
    """

    def __init__(self, plan, name, trigger):
        self.rounds, self.now = {}, {}
        super().__init__(plan, create(name, weight="work", trigger=trigger),
                         Judge(trigger=trigger), self.share)

    def log(self, now, kind, **f):
        if kind == "join" and self.cluster.engine.stop_reason is None:
            self.rounds[f["worker"]] = []
            if not self.weights:
                self.now[f["worker"]] = 0
        elif kind == "leave" and not self._stops(f["finished"]):
            self.rounds.pop(f["worker"], None)
            self.now.pop(f["worker"], None)
        super().log(now, kind, **f)
        if kind == "accept" and f["worker"] in self.now:
            self.now[f["worker"]] += f["samples"]
        elif kind == "commit":
            for worker, samples in self.now.items():
                self.rounds[worker].append(samples)
            self.now = dict.fromkeys(self.rounds, 0)

    def share(self, push):
        average = {}
        for worker, samples in self.rounds.items():
            for newer in samples:
                old = average.get(worker)
                if new := newer if old is None else 0.7 * newer + 0.3 * old:
                    average[worker] = new  # 0 is no measurement: its next push would be lost
        n = len(self.rounds)
        if push.worker not in average:
            return 1 / n
        share = average[push.worker] / sum(average.values()) * len(average) / n
        return pytest.approx(share, rel=1e-9)


@many
@given(plans(), st.sampled_from(["wbsp", "pcc"]), st.sampled_from(["all_pushed", "slowest"]))
def test_random_clusters_weighted_by_work_keep_the_laws(plan, name, trigger):
    witness = ByWork(plan, name, trigger)
    assert all(0 <= weight <= 1 for weight in witness.weights)


@pytest.mark.parametrize("name", ["wbsp", "pcc"])
def test_equal_work_and_time_give_the_trajectory_of_equal_weights_bit_for_bit(name):
    runs = [versions(create(name, weight=weight), [Machine(constant(1.0))] * 3,
                       QuadraticWorkload(3), stop_samples=20 * 3 * 16)
            for weight in ("equal", "work", "time")]
    assert len(runs[0]) >= 20 and runs[0] == runs[1] == runs[2]


@given(plans(), st.sampled_from(["wbsp", "pcc"]))
def test_random_clusters_weighted_by_time_keep_the_laws(plan, name):
    model = create(name, weight="time")
    witness = Witness(plan, model, Judge(), lambda push: model.shares.of(push.worker))
    assert all(0 <= weight <= 1 for weight in witness.weights)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_equal_speeds_give_the_trajectory_of_bsp_bit_for_bit(n):
    runs = [versions(create(name), [Machine(constant(1.0))] * n, QuadraticWorkload(n),
                       stop_samples=20 * n * 16) for name in ("wbsp", "bsp")]
    assert len(runs[0]) == 20 and runs[0] == runs[1]


@pytest.mark.parametrize("name", ["bsp", "asp", "ssp", "wbsp", "pcc"])
def test_one_worker_is_plain_sgd(name):
    workload, plain = QuadraticWorkload(1, seed=5), QuadraticWorkload(1, seed=5)
    cluster = Cluster(create(name), [Machine(constant(0.1), latency=0.07)], workload,
                      stop_samples=50 * 16)
    cluster.run()
    steps = cluster.reports[0].steps
    for _ in range(steps):
        plain.step(0)
    assert steps >= 50
    assert np.allclose(cluster.engine.store.latest.vector, plain.x[0], rtol=0, atol=1e-6)


def test_a_version_is_the_mean_of_the_live_models_when_nothing_is_in_flight():
    workload, engine = QuadraticWorkload(3), Engine(create("wbsp"), Store(np.zeros(8)), 3)
    for worker in range(3):
        engine.join(worker, 0.0)
    seq = [0, 0, 0]
    for version in range(1, 6):
        for worker, steps in ((1, 5), (2, 2), (0, 1)):  # the slowest last
            for _ in range(steps):
                workload.step(worker)
                engine.push(push(worker, seq[worker]), workload.cut(worker), float(version))
                seq[worker] += 1
        latest = engine.store.latest
        assert latest.version == version
        assert np.allclose(latest.vector, np.mean(workload.x, axis=0), rtol=0, atol=1e-6)
        for worker in range(3):
            workload.adopt(worker, latest.vector, "replace")


def model_with(n, **options):
    model = create("wbsp", **options)
    for worker in range(n):
        assert model.join(worker, 0.0) == [Grant(worker)]
    return model


def test_the_slowest_leaves_in_mid_round_and_the_rest_commit():
    model = model_with(3)
    first, second = push(0), push(1)
    assert model.push(first, 1.0) == [Accept(first, 1 / 3)]
    assert model.push(second, 1.0) == [Accept(second, 1 / 3)]
    assert model.leave(2, 2.0) == [Commit(), Grant(0), Grant(1)]


def test_a_fast_worker_pushes_many_times_in_a_round():
    model = model_with(2)
    for seq in range(5):
        assert model.push(push(0, seq), 1.0) == [Accept(push(0, seq), 1 / 2)]
    assert model.push(push(1), 2.0)[1:] == [Commit(), Grant(0), Grant(1)]


def test_trigger_slowest_waits_until_everyone_was_measured():
    model = model_with(2, trigger="slowest")
    assert Commit() not in model.push(push(0, seconds=9.0), 1.0)
    assert Commit() not in model.push(push(1, seconds=1.0), 2.0)
    assert Commit() in model.push(push(0, 1, seconds=9.0), 3.0)


def test_commit_every_push_applies_at_once_and_grants_at_the_rounds_end():
    model = model_with(2, commit="every_push")
    assert model.push(push(0), 1.0) == [Accept(push(0), 1 / 2), Commit()]
    assert model.push(push(1), 1.0) == [Accept(push(1), 1 / 2), Commit(), Grant(0), Grant(1)]
