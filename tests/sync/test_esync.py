"""ESync: local steps until the slowest worker is there, then a barrier."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quadratic import QuadraticWorkload, versions
from random_clusters import Witness, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import Accept, Commit, Direct, Grant, Push, create
from wbsp.sync.esync import ESync


class Checked(ESync):
    """Compares every answer with the rule, by full searches over its own books."""

    def __init__(self, **options):
        super().__init__(**options)
        self.heard = {}  # worker -> (seconds, end) of its last step
        self.told = set()  # to cut, in this round
        self.began, self.going = 0.0, False  # the round; somebody has made a step in it

    def leave(self, worker, now):
        self.heard.pop(worker, None)
        self.told.discard(worker)
        return self._committed(super().leave(worker, now), now)

    def push(self, push, now):
        return self._committed(super().push(push, now), now)

    def query(self, worker, steps, seconds, now):
        assert worker in self.active and steps >= 1
        self.heard[worker] = seconds, now
        slowest = max(self.heard, key=lambda w: (self.heard[w][0], -w))
        if steps == 1 and not self.going:
            self.began, self.going = max(self.began, now - seconds), True
        takes, end = self.heard[slowest]
        left = max(end, self.began) + takes - now
        cut = worker == slowest or slowest in self.told or seconds + self.epsilon > left
        actions = super().query(worker, steps, seconds, now)
        assert actions == [Direct(worker, cut=cut)]
        if cut:
            self.told.add(worker)
        return actions

    def _committed(self, actions, now):
        if any(type(a) is Commit for a in actions):
            self.told, self.began, self.going = set(), now, False
        return actions


class Barrier(Witness):
    def starts(self, worker, now):
        assert worker in self.missing, "started a step after its push of this round"


def commits_when_all_have_pushed(witness, outgoing, push):
    assert witness.committed == witness.round_complete
    if witness.committed:
        witness.restart_round()


@many
@given(plans(), st.sampled_from([0.0, 0.5, 3.0]))
def test_random_clusters_keep_the_laws_the_barrier_and_the_rule(plan, epsilon):
    Barrier(plan, Checked(epsilon=epsilon), commits_when_all_have_pushed)


@pytest.mark.parametrize("n, latency", [(1, 0.0), (2, 0.0), (3, 0.25), (5, 0.0)])
def test_equal_speeds_give_the_trajectory_of_bsp_bit_for_bit(n, latency):
    runs = [versions(model, [Machine(constant(1.0), latency=latency)] * n, QuadraticWorkload(n),
                     stop_samples=20 * n * 16) for model in (ESync(), create("bsp"))]
    assert len(runs[0]) == 20 and runs[0] == runs[1]


def test_one_worker_is_plain_sgd():
    workload, plain = QuadraticWorkload(1, seed=5), QuadraticWorkload(1, seed=5)
    cluster = Cluster(ESync(), [Machine(constant(0.1), latency=0.07)], workload,
                      stop_samples=50 * 16)
    cluster.run()
    for _ in range(cluster.reports[0].steps):
        plain.step(0)
    assert np.allclose(cluster.engine.store.latest.vector, plain.x[0], rtol=0, atol=1e-6)


def test_fast_workers_make_as_many_steps_as_fit_before_the_slowest():
    steps = {0: [], 1: [], 2: []}

    def log(now, kind, **fields):
        if kind == "accept":
            steps[fields["worker"]].append(fields["steps"])
    cluster = Cluster(ESync(), [Machine(constant(s)) for s in (1.0, 1.5, 4.0)], log=log)
    cluster.run(until=41.0)
    assert {w: s[1:9] for w, s in steps.items()} == {0: [4] * 8, 1: [2] * 8, 2: [1] * 8}


def model_with(n, **options):
    model = ESync(**options)
    for worker in range(n):
        assert model.join(worker, 0.0) == [Grant(worker)]
    return model


def query(model, worker, seconds, now):
    (answer,) = model.query(worker, 1, seconds, now)
    assert answer.worker == worker and answer.cut is not None
    return answer.cut


def push(worker, seq=0):
    return Push(worker, seq, 0, 1, 1, 1.0)


def second_round(n=2, **options):
    """Workers 0 .. n - 2 take 1 s a step, the last 10 s; round 2 has begun at 10 s."""
    model = model_with(n, **options)
    for worker in range(n - 1):
        assert query(model, worker, 1.0, 1.0)
        model.push(push(worker), 1.0)
    assert query(model, n - 1, 10.0, 10.0)
    assert Commit() in model.push(push(n - 1), 10.0)
    return model


def test_a_fast_worker_continues_until_another_step_would_end_too_late():
    model = second_round()
    assert [query(model, 0, 1.0, 10.0 + s) for s in range(1, 10)] == [False] * 9
    assert query(model, 0, 1.0, 20.0)


def test_epsilon_ends_the_local_steps_earlier():
    model = second_round(epsilon=3.0)
    assert [query(model, 0, 1.0, 10.0 + s) for s in (1, 6, 7)] == [False, False, True]


def test_no_worker_continues_after_the_slowest_is_directed_to_cut():
    model = second_round()
    assert not query(model, 0, 1.0, 11.0)
    assert query(model, 1, 10.0, 12.0)
    assert query(model, 0, 1.0, 12.5)


def test_the_slowest_that_leaves_leaves_no_worker_asking_for_ever():
    model = second_round(3)
    assert not query(model, 0, 1.0, 11.0)
    assert not query(model, 1, 1.0, 11.0)
    model.leave(2, 11.5)
    assert query(model, 0, 1.0, 12.0) and query(model, 1, 1.0, 12.0)
    assert model.push(push(0, 1), 12.0) == [Accept(push(0, 1), 1 / 2)]
    assert model.push(push(1, 1), 12.0)[1:] == [Commit(), Grant(0), Grant(1)]


def test_a_silent_slowest_worker_delays_others_only_until_its_timeout():
    model = second_round()
    assert not query(model, 0, 1.0, 15.0), "the version came at 14 s"
    assert not query(model, 0, 1.0, 22.5)
    assert query(model, 0, 1.0, 23.5)


def test_a_worker_that_joins_is_the_slowest_only_once_it_has_asked():
    model = second_round()
    model.join(2, 12.0)
    assert not query(model, 0, 1.0, 13.0)
    assert query(model, 2, 20.0, 14.0)
    assert query(model, 0, 1.0, 14.5)
