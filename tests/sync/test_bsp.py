"""BSP: everyone waits for everyone."""

import numpy as np
import pytest
from hypothesis import given
from quadratic import QuadraticWorkload
from random_clusters import Witness, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import Accept, Commit, Grant, Push, create


class Barrier(Witness):
    def starts(self, worker, now):
        assert self.clock[worker] <= min(self.clock.values()), "started ahead of the slowest"


def commits_when_all_have_pushed(witness, outgoing, push):
    assert witness.committed == witness.round_complete
    if witness.committed:
        witness.restart_round()


@many
@given(plans())
def test_random_clusters_keep_the_laws_and_the_barrier(plan):
    Barrier(plan, create("bsp"), commits_when_all_have_pushed)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_n_workers_are_sgd_on_the_union_of_their_batches(n):
    workload = QuadraticWorkload(n, seed=3)
    cluster = Cluster(create("bsp"), [Machine(constant(1.0 + i)) for i in range(n)], workload,
                      stop_samples=20 * n * workload.batch)
    cluster.run()
    again = QuadraticWorkload(n, seed=3)
    x = again.initial().astype(float)
    for _ in range(20):
        rows = np.concatenate([again.draw(worker) for worker in range(n)])
        x -= again.rate * ((again.a[rows] @ x - again.b[rows]) @ again.a[rows]) / len(rows)
    assert cluster.engine.store.latest.version == 20
    assert np.allclose(cluster.engine.store.latest.vector, x, rtol=0, atol=1e-6)


def test_a_worker_that_leaves_in_mid_round_lets_the_rest_commit():
    model = create("bsp")
    for worker in range(3):
        model.join(worker, 0.0)
    first, second = (Push(worker, 0, 0, 1, 1, 1.0) for worker in range(2))
    assert model.push(first, 1.0) == [Accept(first, 1 / 3)]
    assert model.leave(2, 2.0) == []
    assert model.push(second, 3.0) == [Accept(second, 1 / 2), Commit(), Grant(0), Grant(1)]


def test_the_last_missing_worker_that_leaves_ends_the_round():
    model = create("bsp")
    model.join(0, 0.0)
    model.join(1, 0.0)
    model.push(Push(0, 0, 0, 1, 1, 1.0), 1.0)
    assert model.leave(1, 2.0) == [Commit(), Grant(0)]


def pushed(model, worker):
    """Who is granted after another push of this worker."""
    push = Push(worker, 0, 0, 1, 1, 1.0)
    accept, *rest = model.push(push, 0.0)
    assert accept == Accept(push, 1 / len(model.active))
    assert rest[:1] in ([], [Commit()])
    return [grant.worker for grant in rest[1:]]


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_worker_that_has_pushed_before_a_restart_waits_for_the_others(ahead):
    model = create("bsp")
    assert model.rejoin(0, 0, 0.0) == [Grant(0)]
    assert model.rejoin(1, ahead, 0.0) == []
    for _ in range(ahead - 1):
        assert pushed(model, 0) == [0]
    assert pushed(model, 0) == [0, 1]
    assert pushed(model, 1) == []
    assert pushed(model, 0) == [0, 1], "from here on as ever"


def test_a_push_for_the_next_round_counts_there():
    """Of a worker that was in mid-step when the server died: another lacks the version of it."""
    model = create("bsp")
    for worker, ahead in enumerate((0, 1, 0)):
        model.rejoin(worker, ahead, 0.0)
    assert pushed(model, 1) == []
    assert pushed(model, 0) == []
    assert pushed(model, 2) == [0, 2]
    assert pushed(model, 2) == []
    assert pushed(model, 0) == [0, 1, 2]


def test_no_worker_waits_for_one_that_lagged_behind_and_is_lost():
    model = create("bsp")
    model.rejoin(0, 0, 0.0)
    model.rejoin(1, 2, 0.0)
    assert model.leave(0, 1.0) == [Commit(), Grant(1)]
