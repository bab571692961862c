"""K-sync: the first N - b pushes make a version; later ones of that round are rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pushes import push
from quadratic import QuadraticWorkload, versions
from random_clusters import Witness, answer_in, granted_in, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant, lognormal
from wbsp.sync import Accept, Commit, Grant, Reject, create
from wbsp.sync.ksync import LATE, KSync


class Judge:
    """A round ends with the K-th fresh push; a late push is rejected and its worker granted."""

    def __init__(self, b):
        self.b, self.waiting = b, set()

    def __call__(self, witness, outgoing, push):
        latest = witness.cluster.engine.store.latest.version
        before = latest - witness.committed
        granted = set(granted_in(outgoing))
        self.waiting &= witness.clock.keys()
        if push:
            ack = answer_in(outgoing)
            assert ack.accepted == (push.base_version == before)
            if not ack.accepted:
                assert (ack.reason, ack.granted, granted) == (LATE, latest, {push.worker})
                return
            self.waiting.add(push.worker)
        assert witness.committed == (len(self.waiting) >= max(1, len(witness.clock) - self.b))
        assert granted == (self.waiting if witness.committed else set())
        if witness.committed:
            self.waiting = set()


@many
@given(plans(), st.integers(0, 5))
def test_random_clusters_keep_the_laws_and_no_accepted_update_is_stale(plan, b):
    model = KSync(b=b)
    Witness(plan, model, Judge(b), rejects=True,
            weight=lambda push: 1 / max(1, len(model.active) - b))


def unequal(model, n):
    """Every version of a run on unequal workers, in order."""
    return versions(model, [Machine(lognormal(1.0 + i, 0.5, seed=i)) for i in range(n)],
                    QuadraticWorkload(n), stop_samples=20 * n * 16)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_no_backups_are_bsp_bit_for_bit(n):
    assert unequal(KSync(b=0), n) == unequal(create("bsp"), n)


def test_a_straggler_delays_no_other_worker():
    seconds = [1.0, 1.0, 1.0, 2.5]
    cluster = Cluster(KSync(b=1), [Machine(constant(s)) for s in seconds])
    cluster.run(until=30.5)
    assert cluster.engine.store.latest.version == 30
    assert [m.rejected.get(LATE, 0) for m in cluster.engine.members.values()] == [0, 0, 0, 12]


def model_with(n, b):
    model = KSync(b=b)
    for worker in range(n):
        assert model.join(worker, 0.0) == [Grant(worker)]
    return model


def test_a_late_push_is_rejected_and_its_worker_continues_at_once():
    model = model_with(3, b=1)
    assert model.push(push(2), 1.0) == [Accept(push(2), 1 / 2)]
    assert model.push(push(0), 1.5) == [Accept(push(0), 1 / 2), Commit(), Grant(0), Grant(2)]
    assert model.push(push(1), 2.0) == [Reject(push(1), LATE), Grant(1)]
    assert model.push(push(1, base=1), 3.0) == [Accept(push(1, base=1), 1 / 2)]


def test_more_backups_than_workers_leave_one_push_a_version():
    model = model_with(2, b=5)
    assert model.push(push(0), 1.0) == [Accept(push(0), 1.0), Commit(), Grant(0)]
    assert model.push(push(1), 1.0) == [Reject(push(1), LATE), Grant(1)]


def test_a_worker_that_leaves_ends_a_round_that_needs_no_more():
    model = model_with(4, b=1)
    model.push(push(0), 1.0)
    model.push(push(1), 1.0)
    assert model.leave(2, 2.0) == [Commit(), Grant(0), Grant(1)]


def test_a_worker_that_pushed_and_left_is_not_waited_for_nor_granted():
    model = model_with(3, b=1)
    model.push(push(0), 1.0)
    assert model.leave(0, 2.0) == []
    assert model.push(push(1), 3.0) == [Accept(push(1), 1.0), Commit(), Grant(1)]


def test_a_resumed_run_resumes_from_its_version():
    model = model_with(2, b=1)
    assert Commit() in model.push(push(0, base=40), 1.0)
    assert model.push(push(1, base=40), 1.0) == [Reject(push(1, base=40), LATE), Grant(1)]
    assert Commit() in model.push(push(1, base=41), 2.0)
