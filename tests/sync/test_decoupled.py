"""Decoupled DiLoCo: no worker waits; a version is made by a quorum and a grace window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pushes import push
from random_clusters import Witness, granted_in, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.workloads.base import TimingWorkload
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import Accept, Commit, Grant, create
from wbsp.sync.decoupled import DecoupledDiLoCo


class Merged(Witness):
    """Knows who is in the merge, and that each version grants everyone."""

    def __init__(self, plan, model):
        self.inside, kept, weigh = set(), {}, model.weight_of  # as the last merges were then
        model.weight_of = lambda push: kept.setdefault(push, weigh(push))
        ring = model.tick

        def tick(now):
            if answer := ring(now):
                self.inside.clear()
            return answer

        model.tick = tick
        super().__init__(plan, model, Merged.judge, kept.get)
        self.assert_idle_for()

    def judge(self, outgoing, push):
        if push:
            self.inside.add(push.worker)
        self.inside &= self.clock.keys()
        assert set(granted_in(outgoing)) == (set(self.clock) if self.committed else set())
        if self.committed:
            assert len(self.inside) >= self.model.needed
            self.inside.clear()
        else:
            assert not self.inside or self.inside != set(self.clock), "it waits for nobody then"


OPTIONS = st.fixed_dictionaries({"tau": st.integers(1, 3), "quorum": st.integers(0, 6),
                                 "grace": st.sampled_from([0.0, 0.5, 2.0])})


@given(plans(), OPTIONS)
def test_random_clusters_keep_the_laws_and_no_worker_ever_waits(plan, options):
    Merged(plan, DecoupledDiLoCo(**options))


def model_with(n, **options):
    model = DecoupledDiLoCo(**options)
    for worker in range(n):
        assert model.join(worker, 0.0) == [Grant(worker)]
    return model


def grants(n):
    return [Grant(worker) for worker in range(n)]


def test_a_quorum_opens_the_window_and_its_end_makes_the_version():
    model = model_with(3, tau=8, quorum=2, grace=0.5)
    eight = [push(0, 0, steps=8), push(1, 0, steps=8, seconds=16.0),
             push(2, 0, steps=8, seconds=16.0)]
    assert model.push(eight[0], 8.0) == [Accept(eight[0], 1 / 3)]
    assert model.alarm is None
    again = push(0, 1, steps=8)
    assert model.push(again, 10.0) == [Accept(again, 1 / 3)]
    assert model.push(eight[1], 12.0) == [Accept(eight[1], 1 / 3)]
    # eight steps of the fastest take 8 s, and the quorum came after 4 s
    assert model.alarm == 12.0 + 0.5 * (8 - 4)
    assert model.tick(14.0) == [Commit(), *grants(3)] and model.alarm is None
    # a merge had three scores of 8 * 8 / 8: an update weighs a third; the third worker is late
    assert model.push(eight[2], 15.0) == [Accept(eight[2], pytest.approx(1 / 3))]
    more = push(0, 2, steps=8)
    assert model.push(more, 17.0) == [Accept(more, pytest.approx(1 / 3))]
    assert model.alarm == pytest.approx(17 + 0.5 * (8 - (0.7 * 4 + 0.3 * 2)))
    last = push(1, 1, steps=8, seconds=16.0)
    assert model.push(last, 18.0)[1:] == [Commit(), *grants(3)], "all are there before its end"
    assert model.alarm is None


def test_a_quorum_that_takes_longer_than_the_fastest_learners_steps_opens_no_window():
    model = model_with(3, tau=8, quorum=2, grace=1)
    model.push(push(0, steps=8), 8.0)
    assert Commit() in model.push(push(1, steps=8, seconds=16.0), 16.0)


def test_transfers_that_outlast_the_fastest_learners_steps_leave_no_window():
    model = model_with(3, tau=8, quorum=2, grace=1)
    model.push(push(0, steps=9), 9.0)
    assert Commit() in model.push(push(1, steps=8, seconds=16.0), 9.5)


def test_an_update_weighs_as_its_samples_squared_over_its_steps():
    model = model_with(2, quorum=2, grace=0)
    model.push(push(0, steps=8, samples=80), 1.0)  # 800
    assert Commit() in model.push(push(1, steps=2, samples=20), 2.0)  # 200
    assert model.weight_of(push(0, 1, steps=8, samples=80)) == 0.8
    assert model.weight_of(push(1, 1, steps=2, samples=20)) == 0.2
    assert model.weight_of(push(1, 1, steps=4, samples=20)) == 0.1


def test_a_new_quorum_is_awaited_when_the_old_one_leaves():
    model = model_with(4, tau=1, quorum=2, grace=1)
    for seq, now in enumerate((1.75, 2.0)):
        model.push(push(0, seq), now)
    model.push(push(1), 2.25)
    assert model.alarm == 2.75
    assert model.leave(1, 2.5) == []
    assert model.tick(2.75) == [] and model.alarm is None
    model.push(push(2), 2.25 + 0.5)
    assert model.alarm == pytest.approx(2.75 + 1 - (0.7 * 0.5 + 0.3 * 1))
    assert model.leave(3, 3.0) == [Commit(), Grant(0), Grant(2)], "all that are left are there"


def test_half_of_the_workers_are_a_quorum():
    assert [model_with(n).needed for n in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]


def test_a_worker_slower_than_the_versions_pushes_after_tau_steps():
    machines = [Machine(constant(0.01), latency=0.001)] * 4 + [Machine(constant(0.5))]
    slow = []

    def log(now, kind, /, **fields):
        if kind == "accept" and fields["worker"] == 4:
            slow.append(fields["steps"])

    Cluster(create("decoupled", tau=2), machines, TimingWorkload(), log=log).run(10.0)
    assert slow == [2] * len(slow) and len(slow) in (9, 10)
