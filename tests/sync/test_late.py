"""Pushes just in time: one a round where there is time to spare, and no version lost by it."""

import pytest
from clusters import Witness, many, plans
from hypothesis import given
from test_wbsp import Judge

from wbsp.simulate.cluster import Cluster
from wbsp.simulate.machine import Machine, constant
from wbsp.sync import Accept, Commit, Direct, Grant, Push, create
from wbsp.sync.late import JustInTime


@many
@given(plans())
def test_random_clusters_keep_the_laws_and_nobody_waits(plan):
    witness = Witness(plan, create("pcc", late=True), Judge())
    for worker in set(range(len(plan.workers))) - witness.lossy:
        if len(plan.workers[worker]["incarnations"]) == 1:
            assert witness.idle(worker) == set()


def cluster(late, slow=0.5, workers=2):
    machines = [Machine(constant(0.02), latency=0.001, fixed=slow if i % 2 else 0.0)
                for i in range(workers)]
    made = Cluster(create("pcc", late=late), machines)
    made.run(30.0)
    return made


@pytest.mark.parametrize("slow", [0.5, 1.5])
@pytest.mark.parametrize("workers", [2, 4])
def test_a_fast_worker_pushes_once_or_twice_a_round_and_no_version_is_lost(slow, workers):
    often, late = cluster(False, slow, workers), cluster(True, slow, workers)
    versions = late.engine.store.latest.version
    assert versions >= often.engine.store.latest.version - 2
    assert sum(r.pushes for r in late.reports) <= 2.1 * workers * versions
    assert sum(r.pushes for r in often.reports) >= 5 * workers * versions
    assert late.reports[0].steps == often.reports[0].steps, "it computed all the time"


def test_most_of_a_fast_workers_round_is_in_the_version():
    late = cluster(True)
    member = late.engine.members[0]
    round_ = 30.0 / late.engine.store.latest.version
    assert member.steps >= 0.95 * late.reports[0].steps
    assert member.seconds / member.pushes >= 0.3 * round_


def push(worker, seq=0):
    return Push(worker, seq, 0, 1, 1, 0.02)


def test_without_a_measurement_a_worker_is_directed_at_once():
    model = create("pcc", late=True)
    assert model.join(0, 0.0) == [Grant(0), Direct(0, cut=True)]
    assert model.join(1, 0.0) == [Grant(1), Direct(1, cut=True)]
    assert model.alarm is None


def test_a_fast_worker_is_directed_when_the_slow_one_is_about_to_report():
    model = create("pcc", late=True)
    model.join(0, 0.0), model.join(1, 0.0)
    assert model.push(push(0), 0.1) == [Accept(push(0), 1 / 2)]
    assert model.push(push(1), 1.0) == [Accept(push(1), 1 / 2), Commit(), Grant(0), Grant(1),
                                        Direct(1, cut=True)]
    assert model.alarm == pytest.approx(1.9)  # a round takes 1.0, worker 0 responds in 0.1
    assert model.tick(1.9) == [Direct(0, cut=True)]
    assert model.alarm is None


def test_it_forgets_who_leaves_and_measures_who_comes_back_anew():
    times = JustInTime()
    times.join(0), times.join(1)
    assert times.due(0.0) == [0, 1]
    times.arrived(0, 0.1), times.arrived(1, 1.0)
    times.end_round(1.0)
    times.leave(0)
    assert times.due(1.0) == [1] and times.next_due is None
    times.join(0)
    assert times.due(1.2) == [0]
