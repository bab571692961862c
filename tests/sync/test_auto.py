"""auto: no worker waits, and a worker that is much slower than the others holds up no version."""

import json

import numpy as np
import pytest
from hypothesis import given
from random_clusters import Witness, granted_in, many, plans

from wbsp.core.outer_optimizer import create_outer, outer_of
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.runs import Plan, simulate
from wbsp.simulate.study.spec import Group, published
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import MODELS, Accept, Commit, Grant, Push
from wbsp.sync.auto import Auto


class Share:
    """Any weight that a push may have."""

    def __eq__(self, weight):
        return 0 < weight <= 1


def judge(witness, outgoing, push):
    """A version is made when all have pushed, at the latest, and then all are granted it."""
    assert witness.committed or not witness.round_complete
    assert granted_in(outgoing).keys() == (witness.clock.keys() if witness.committed else set())
    if witness.committed:
        witness.restart_round()


@many
@given(plans())
def test_random_clusters_keep_the_laws_and_no_worker_of_auto_waits(plan):
    Witness(plan, Auto(), judge, lambda push: Share()).assert_idle_for()


def run(seconds_a_step, seconds=20.0, latency=0.001):
    made = Cluster(Auto(), [Machine(constant(step), latency=latency) for step in seconds_a_step])
    made.run(seconds)
    return made


def test_a_much_slower_worker_holds_up_no_version_and_all_of_its_pushes_count():
    alone, beside = run([0.02, 0.02]), run([0.02, 0.02, 0.5])
    versions = [one.engine.store.latest.version for one in (alone, beside)]
    assert versions[1] >= 0.95 * versions[0] > 800
    slow = beside.engine.members[2]
    assert not slow.rejected
    assert slow.steps == pytest.approx(20 / 0.5, abs=2)


def test_a_little_slower_worker_is_in_every_version():
    cluster = run([0.02, 0.03])
    versions = cluster.engine.store.latest.version
    assert all(member.pushes >= versions - 1 for member in cluster.engine.members.values())
    assert versions > 500


def test_a_worker_makes_as_many_steps_between_two_pushes_as_its_transfers_last():
    near, far = (run([0.02, 0.02], latency=latency) for latency in (0.0, 0.1))
    for cluster, steps in ((near, 1), (far, 20)):
        member = cluster.engine.members[0]
        assert member.steps / member.pushes == pytest.approx(steps, rel=0.15)


def push(worker, samples, base=0):
    return Push(worker, 0, base, 1, samples, 0.0)


def accepted(model, *event):
    return next(action.weight for action in model.push(*event) if isinstance(action, Accept))


def test_every_push_weighs_the_same():
    model = Auto()
    for worker in range(4):
        assert model.join(worker, 0.0) == [Grant(worker)]
    for at in range(1, 30):  # worker 3 does half of all work
        for worker in (3, 0, 1, 2):
            one = push(worker, 300 if worker == 3 else 100, at)
            assert accepted(model, one, float(at)) == 1 / 4
    model.leave(3, 40.0)
    assert accepted(model, push(0, 100, 30), 41.0) == 1 / 3


def committed(model, *event):
    return Commit() in model.push(*event)


def started(workers=4):
    """A model with so many workers, of which each has pushed 100 examples at seconds 1, 2 and 3."""
    model = Auto()
    for worker in range(workers):
        model.join(worker, 0.0)
    for at in (1.0, 2.0, 3.0):
        assert [committed(model, push(worker, 100), at) for worker in range(workers)] == [
            False] * (workers - 1) + [True]
    return model


def test_a_worker_that_is_late_is_in_no_version_until_it_pushes_again():
    model = started()
    for worker in range(3):
        assert not committed(model, push(worker, 100), 4.0)
    assert model.alarm == pytest.approx(3.0 + 4 * 1.0), "four times as long as a version takes"
    assert model.tick(7.0) == [Commit(), *map(Grant, range(4))]
    assert model.alarm is None
    assert [committed(model, push(worker, 100), 8.0) for worker in range(3)] == [
        False, False, True]
    assert not committed(model, push(3, 600), 9.0)
    assert [committed(model, push(worker, 100), 9.0) for worker in range(3)] == [
        False, False, True], "it has pushed, and was not needed"
    assert [committed(model, push(worker, 100), 10.0) for worker in range(4)] == [
        False, False, False, True]


def test_auto_does_not_wait_for_a_worker_that_left():
    model = started(3)
    model.push(push(0, 100), 4.0)
    assert model.leave(2, 4.0) == []
    assert model.leave(1, 4.0) == [Commit(), Grant(0)]
    assert model.leave(0, 5.0) == []


def test_auto_waits_for_a_joiner_in_the_next_version():
    model = started()
    assert model.join(4, 3.5) == [Grant(4)]
    assert not any(committed(model, push(worker, 100), 4.0) for worker in range(4))
    assert committed(model, push(4, 100), 4.5)


@pytest.mark.parametrize("outer, wire, says", [
    (None, None, {"outer": {"name": "qhm", "rate": 2.0, "momentum": 0.95, "nu": 0.5,
                            "outlast": 20.0}, "wire": "int8"}),
    ("identity", "float32", {}),
    ("nesterov", "bfloat16", {"outer": {"name": "nesterov", "rate": 0.7, "momentum": 0.9},
                              "wire": "bfloat16"})])
def test_the_outer_step_and_the_format_are_the_models_unless_they_are_named(tmp_path, outer, wire,
                                                                           says):
    plan = Plan(published(2, "H1", Group(step_seconds=0.02)), None, 128, until=1.0, outer=outer,
                wire=wire)
    simulate(plan, Auto, {}, 0, tmp_path, Progress())
    settings = json.loads((tmp_path / "run.json").read_text())
    assert {key: settings[key] for key in ("outer", "wire") if key in settings} == says


def test_options_of_the_outer_step_go_before_the_models():
    assert outer_of(Auto, 8, None, {"rate": "0.5"}).settings()["outer"] == {
        "name": "qhm", "rate": 0.5, "momentum": 0.95, "nu": 0.875, "outlast": 80.0}
    assert outer_of(MODELS["pcc"], 2, None, {}).settings() == {}
    assert np.array_equal(outer_of(MODELS["pcc"], 2, None, {}).step(np.ones(2)), np.ones(2))


def test_the_outer_step_moves_by_the_sum_of_the_workers_updates():
    change = np.full(1, 1.0, np.float32)
    for workers, sums in ((1, 1), (2, 2), (4, 4), (8, 8), (20, 8)):
        outer = outer_of(Auto, workers, None, {})
        steps = [outer.step(change.copy()) for _ in range(600)]
        assert np.allclose(steps[-1], sums, rtol=1e-3), "of a mean of 1 by N workers, at most 8"
        assert 1 <= steps[0] <= 1.4, "once at once, the rest as momentum"
        assert workers > 1 or sum(steps) == 600.0, "a worker alone trains as without a server"


def test_a_version_of_fewer_workers_takes_the_step_of_that_many():
    """Of eight workers four are much slower: the others step as if they were alone."""
    eight, four = (outer_of(Auto, workers, None, {}) for workers in (8, 4))
    random = np.random.default_rng(0)
    for _ in range(300):
        mean = random.standard_normal(16).astype(np.float32)
        for steps in (0, 2):
            assert np.allclose(eight.step(mean / 2, 0.5, steps),
                               four.step(mean.copy(), 1.0, steps), atol=1e-4)
    one = outer_of(Auto, 4, None, {}).step(np.ones(1, np.float32), 1 / 4)
    assert one == 4, "a single worker's, which weighs a quarter, counts once at once"


def noise(outer, part, late=True, versions=3000):
    """The variance of W about its goal, in directions in which a worker goes the `part` of the way
    between two versions: docs/explanation/outer-step.md."""
    random = np.random.default_rng(0)
    w, before, p = np.zeros((3, 16), np.float32)
    total = 0.0
    for version in range(versions):
        start = before + p if late else w
        p = -part * start + np.sqrt(part * (2 - part)) * random.standard_normal(16)
        before, w = w, w + outer.step(p.astype(np.float32))
        total += float((w**2).mean()) if version >= 500 else 0.0
    return total / (versions - 500)


@pytest.mark.parametrize("part", [0.3, 0.5, 0.8, 1.0, 1.3])
def test_the_outer_step_lets_little_noise_through_though_updates_are_late(part):
    ours = noise(outer_of(Auto, 8, None, {}), part)
    assert ours < 0.5 * noise(create_outer("nesterov", rate=1, momentum=0.8), part)
    assert ours < 1.15 * noise(create_outer("nesterov", rate=0.7, momentum=0.9), part, late=False)
