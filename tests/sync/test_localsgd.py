"""Local SGD: the mean of the workers' models after tau steps each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quadratic import QuadraticWorkload, versions
from random_clusters import Witness, many, plans

from wbsp.simulate.world.machine import Machine, lognormal
from wbsp.sync import create
from wbsp.sync.localsgd import LocalSGD


class Barrier(Witness):
    def starts(self, worker, now):
        assert worker in self.missing, "started a step after its push of this round"


def a_round_is_tau_steps_of_all(witness, outgoing, push):
    assert witness.committed == witness.round_complete
    if push:
        leaving = witness.cluster.workers[push.worker].agent.finished or (
            witness.cluster.workers[push.worker].agent._finishing)
        assert push.steps == witness.model.tau or (leaving and push.steps < witness.model.tau)
    if witness.committed:
        witness.restart_round()


@many
@given(plans(), st.integers(1, 4))
def test_random_clusters_keep_the_laws_and_the_barrier(plan, tau):
    Barrier(plan, LocalSGD(tau=tau), a_round_is_tau_steps_of_all)


def unequal(model, n, rounds, tau=1):
    """Every version of a run on unequal workers, in order."""
    workload = QuadraticWorkload(n, seed=3)
    workers = [Machine(lognormal(1.0 + i, 0.5, seed=i), latency=0.1 * i) for i in range(n)]
    return versions(model, workers, workload, stop_samples=rounds * tau * n * workload.batch)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_tau_1_is_bsp_bit_for_bit(n):
    local, bsp = unequal(LocalSGD(tau=1), n, 20), unequal(create("bsp"), n, 20)
    assert len(local) >= 20
    assert local == bsp


@pytest.mark.parametrize("n, tau", [(1, 3), (2, 4), (4, 8)])
def test_a_version_is_the_mean_of_tau_steps_of_every_worker(n, tau):
    seen, again = unequal(LocalSGD(tau=tau), n, 6, tau), QuadraticWorkload(n, seed=3)
    mean = again.initial()
    for version in seen[:6]:
        for worker in range(n):
            again.adopt(worker, mean, "replace")
            for _ in range(tau):
                again.step(worker)
        mean = np.mean(again.x, axis=0)
        assert np.allclose(np.frombuffer(version, np.float32), mean, rtol=0, atol=1e-6)


def test_tau_below_one_is_refused():
    with pytest.raises(ValueError, match="localsgd: option tau=0 is below 1"):
        LocalSGD(tau=0)
