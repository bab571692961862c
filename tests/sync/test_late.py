"""Pushes just in time: one a round where there is time to spare, and no version lost by it."""

import pytest
from hypothesis import given
from random_clusters import Judge, Witness, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant, lognormal
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import Accept, Commit, Direct, Grant, Push, create
from wbsp.sync.late import JustInTime


@many
@given(plans())
def test_random_clusters_keep_the_laws_and_no_worker_waits(plan):
    witness = Witness(plan, create("pcc", late=True), Judge())
    witness.assert_idle_for()


def run(machines, late, seconds=30.0, size=0.0, line=float("inf")):
    made = Cluster(create("pcc", late=late), machines, server=ServerSpec(line, line),
                   model_bytes=size)
    made.run(seconds)
    made.versions = made.engine.store.latest.version
    made.pushes = sum(report.pushes for report in made.reports)
    return made


def halves(slow, workers, **link):
    """Half of the workers take 20 ms for a step, the others `slow` seconds more."""
    return [Machine(lognormal(0.02, 0.1, seed=i), latency=0.001, fixed=slow if i % 2 else 0.0,
                    **link) for i in range(workers)]


@pytest.mark.parametrize("slow", [0.5, 1.5])
@pytest.mark.parametrize("workers", [2, 4])
def test_a_fast_worker_pushes_once_a_round_and_no_version_is_lost(slow, workers):
    often, late = (run(halves(slow, workers), late) for late in (False, True))
    assert late.versions >= often.versions
    assert late.pushes <= 1.05 * workers * late.versions
    assert often.pushes >= 5 * workers * often.versions
    assert late.reports[0].steps == often.reports[0].steps, "it computed all the time"


@pytest.mark.parametrize(("slow", "size", "line"), [
    (0.5, 4.3e6, 125e6), (0.5, 0.6e6, 12.5e6), (0.5, 0.135e6, 2.5e6), (1.5, 0.6e6, 12.5e6)])
def test_on_a_shared_line_as_many_versions_come_from_fewer_pushes(slow, size, line):
    often, late = (run(halves(slow, 8, up=line, down=line), late, 60.0, size, line)
                   for late in (False, True))
    assert late.versions >= 0.95 * often.versions
    assert late.pushes <= 0.8 * often.pushes
    assert late.pushes <= 1.1 * 8 * late.versions


def test_on_a_full_line_a_fast_worker_rests_though_its_response_takes_a_round():
    """Half of a round is fetches and half is pushes, of all at once."""
    often, late = (run(halves(0.5, 8, up=2.5e6, down=2.5e6), late, 60.0, 0.6e6, 2.5e6)
                   for late in (False, True))
    assert late.versions >= 0.9 * often.versions
    assert late.pushes <= 1.06 * 8 * late.versions


def test_equal_workers_that_rest_by_chance_cost_no_version():
    machines = [Machine(lognormal(0.02, 0.1, seed), latency=0.001, up=125e6, down=125e6)
                for seed in range(8)]
    often, late = (run(machines, late, 20.0, 0.6e6, 125e6) for late in (False, True))
    assert late.versions >= 0.99 * often.versions


@pytest.mark.parametrize("line", [float("inf"), 12.5e6])
def test_with_equal_speeds_no_worker_rests(line):
    machines = [Machine(constant(0.02), latency=0.001, up=line, down=line) for _ in range(2)]
    often, late = (run(machines, late, 10.0, 0.6e6, line) for late in (False, True))
    assert (late.versions, late.pushes) == (often.versions, often.pushes)


def test_most_of_a_fast_workers_round_is_in_the_version():
    late = run(halves(0.5, 2), late=True)
    member = late.engine.members[0]
    assert member.steps >= 0.95 * late.reports[0].steps
    assert member.seconds / member.pushes >= 0.9 * 30.0 / late.versions


def push(worker, seq=0):
    return Push(worker, seq, 0, 1, 1, 0.02)


START = 1e6  # a real server's clock does not begin at 0


def started(**options):
    model = create("pcc", late=True, **options)
    assert [model.join(w, START) for w in (0, 1)] == [[Grant(0)], [Grant(1)]]
    return model


def test_a_worker_that_reports_twice_in_a_round_rests_until_shortly_before_its_end():
    model = started()
    assert model.push(push(0), START + 0.1) == [Accept(push(0), 1 / 2)]
    again = push(0, 1)
    assert model.push(again, START + 0.2) == [Direct(0, cut=False), Accept(again, 1 / 2)]
    assert model.alarm is None
    assert model.push(push(1), START + 1.0) == [Accept(push(1), 1 / 2), Commit(), Grant(0),
                                                Grant(1)]
    assert model.alarm == pytest.approx(START + 1.8)  # a round takes 1.0, worker 0 responds in 0.1
    assert model.tick(START + 1.8) == [Direct(0, cut=True)]
    assert model.alarm is None


def test_in_a_short_round_it_pushes_at_once():
    model = started()
    model.push(push(0), START + 0.3), model.push(push(0, 1), START + 0.5)
    model.push(push(1), START + 1.0), model.tick(model.alarm), model.push(push(1, 1), START + 2)
    third = push(0, 2)  # its response is 0.7 now, a round takes 1.0
    assert model.push(third, START + 2.3) == [
        Direct(0, cut=False), Accept(third, 1 / 2), Commit(), Grant(0), Grant(1),
        Direct(0, cut=True)]


def test_no_worker_waits_for_a_resting_worker():
    model = started()
    model.push(push(0), START + 0.1), model.push(push(0, 1), START + 0.2)
    model.push(push(1), START + 1.0)
    second = push(1, 1)
    assert model.push(second, START + 1.3) == [Accept(second, 1 / 2), Direct(0, cut=True)]


def test_the_round_ends_when_the_last_active_worker_leaves():
    model = started()
    model.push(push(0), START + 0.1), model.push(push(0, 1), START + 0.2)
    model.push(push(1), START + 1.0)
    assert model.leave(1, START + 1.1) == [Direct(0, cut=True)]


def test_a_worker_whose_response_grows_beyond_a_round_rests_no_more():
    times = JustInTime()
    times.join(0, 0.0), times.join(1, 0.0)
    assert not times.arrived(0, 1, 0.1) and times.arrived(0, 1, 0.2)
    assert not times.arrived(1, 1, 1.0)
    times.end_round(1.0)
    assert times.next_due == pytest.approx(1.8) and times.due(1.8) == [0]
    assert not times.arrived(1, 1, 2.0) and not times.arrived(0, 1, 3.0)  # 1.2 s, in rounds of 1 s


def test_a_returned_workers_speed_is_measured_anew():
    times = JustInTime()
    times.join(0, 0.0), times.join(1, 0.0)
    assert not times.arrived(0, 1, 0.1) and times.arrived(0, 1, 0.2)
    times.arrived(1, 1, 1.0)
    times.end_round(1.0)
    times.leave(0)
    assert times.due(1.8) == []
    times.join(0, 1.9)
    assert not times.arrived(0, 1, 1.95)


def test_late_needs_a_trigger_that_waits_for_all_workers():
    with pytest.raises(ValueError, match="late=true needs trigger=all_pushed"):
        create("pcc", late=True, trigger="slowest")
