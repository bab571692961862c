"""Rennala: S updates of the newest version make the next one, whoever made them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pushes import push
from quadratic import QuadraticWorkload, versions
from random_clusters import Witness, answer_in, granted_in, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import Accept, Commit, Grant, Reject, create
from wbsp.sync.rennala import STALE, Rennala


class Gathered(Witness):
    """Knows which push is stale, and when a version is full."""

    def __init__(self, plan, model):
        super().__init__(plan, model, Gathered.judge, lambda push: 1 / model.needed, rejects=True)
        self.assert_idle_for("push", "pull", "data")

    def judge(self, outgoing, push):
        latest = self.cluster.engine.store.latest.version
        if push:
            ack = answer_in(outgoing)
            assert ack.accepted == (push.base_version == latest - self.committed)
            assert granted_in(outgoing) == {push.worker: latest}
        assert not (self.committed and self.weights), "nothing is pending behind a version"
        assert len(self.weights) < max(1, self.model.needed)


@given(plans(), st.integers(0, 6))
def test_random_clusters_keep_the_laws_and_no_accepted_update_is_stale(plan, s):
    Gathered(plan, Rennala(s=s))


def model_with(n, **options):
    model = Rennala(**options)
    for worker in range(n):
        assert model.join(worker, 0.0) == [Grant(worker)]
    return model


def test_a_fast_worker_gives_several_updates_to_one_version():
    model = model_with(2, s=3)
    assert model.push(push(0), 1.0) == [Accept(push(0), 1 / 3), Grant(0)]
    assert model.push(push(0, 1), 2.0) == [Accept(push(0, 1), 1 / 3), Grant(0)]
    assert model.push(push(0, 2), 3.0) == [Accept(push(0, 2), 1 / 3), Commit(), Grant(0)]
    assert model.push(push(1), 4.0) == [Reject(push(1), STALE), Grant(1)]
    assert model.push(push(1, 1, base=1), 5.0) == [Accept(push(1, 1, base=1), 1 / 3), Grant(1)]


def test_a_worker_that_leaves_completes_a_version_of_as_many_updates_as_workers():
    model = model_with(3)
    assert model.push(push(0), 1.0) == [Accept(push(0), 1 / 3), Grant(0)]
    assert model.push(push(0, 1), 2.0) == [Accept(push(0, 1), 1 / 3), Grant(0)]
    assert model.leave(2, 3.0) == [Commit()]
    assert model.leave(1, 4.0) == []


def test_rennala_resumes_from_the_version_of_the_checkpoint():
    model = model_with(2, s=1)
    assert Commit() in model.push(push(0, base=40), 1.0)
    assert model.push(push(1, base=40), 1.0) == [Reject(push(1, base=40), STALE), Grant(1)]


def test_one_update_of_one_worker_a_version_is_plain_sgd():
    def run(model):
        return versions(model, [Machine(constant(1.0))], QuadraticWorkload(1), stop_samples=320)

    assert run(Rennala()) == run(create("bsp"))


def test_returning_to_the_same_version_costs_no_transfer():
    """Steps of 1 s and pushes of 0.3 s; a version that follows an answer takes 0.2 s."""
    machine = Machine(constant(1.0), latency=0.1, up=100.0, down=50.0)
    cluster = Cluster(Rennala(s=4), [machine], model_bytes=10.0, stop_samples=12)
    times = []
    cluster.engine.log = lambda now, kind, **f: times.append(now) if kind == "accept" else None
    cluster.run()
    report = cluster.reports[0]
    assert report.steps == 12
    assert report.pulls == 1 + 2 + 1, "the first, one for each version before the stop, the last"
    between = [b - a for a, b in itertools.pairwise(times)]
    back, on = 0.1 + 1.0 + 0.2, 0.3 + 1.0 + 0.2
    assert between == pytest.approx([back, back, back, on, back, back, back, on, back, back, back])
