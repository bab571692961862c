"""A task of four functions in virtual time: each worker has its own values, state and order."""

import numpy as np
import pytest

from wbsp.simulate.workloads.task import Order, TaskExperiment, TaskWorkload

N = 10


class Recording:
    """Adds the rate to all values, and notes what each step was given."""

    def __init__(self):
        self.steps = []

    def make(self, seed):
        return np.full(3, seed, np.float32), N

    def make_state(self):
        return 0

    def step(self, values, state, indices, rate):
        self.steps.append((values.tolist(), state, indices.tolist(), rate))
        return values + np.float32(rate), state + 1, np.float32(0.5)

    def evaluate(self, values):
        return {"loss": float(values.sum())}


def workload(rate=lambda worker: 1.0):
    task = Recording()
    return task, TaskWorkload(task, 7, 2, 4, rate)


def test_each_worker_has_its_own_values_and_state():
    task, work = workload(lambda worker: 1.0 + worker)
    assert work.step(0) == (4, 0.5)
    work.step(0), work.step(1)
    assert [(values, state, rate) for values, state, _, rate in task.steps] == [
        ([7.0] * 3, 0, 1.0), ([8.0] * 3, 1, 1.0), ([7.0] * 3, 0, 2.0)]
    assert work.cut(0).tolist() == [2.0] * 3 and work.cut(0).tolist() == [0.0] * 3
    assert work.initial().tolist() == [7.0] * 3


def test_a_version_replaces_the_values_or_keeps_what_is_uncut():
    task, work = workload()
    version = np.full(3, 100, np.float32)
    work.step(0)
    work.adopt(0, version, "rebase")
    assert work.cut(0).tolist() == [1.0] * 3
    work.step(0)
    work.adopt(0, version, "replace")
    assert work.cut(0).tolist() == [0.0] * 3 and version.tolist() == [100.0] * 3
    work.step(0)
    assert task.steps[-1][:2] == ([100.0] * 3, 2), "a version does not touch the state"


def test_each_pass_has_each_example_once_in_an_order_of_the_workers_own():
    task, work = workload()
    for _ in range(5):
        work.step(0), work.step(1)
    own = [[one for _, _, indices, _ in task.steps[worker::2] for one in indices]
           for worker in (0, 1)]
    for seen in own:
        assert sorted(seen[:N]) == sorted(seen[N:2 * N]) == list(range(N))
        assert seen[:N] != seen[N:2 * N]
    assert own[0] != own[1]
    assert workload()[1].step(0)[0] == 4


def test_the_server_may_direct_a_size_and_a_place_in_the_shared_stream():
    task, work = workload()
    assert work.step(0, 6, 8)[0] == work.step(1, 6, 8)[0] == 6
    first, second = (indices for _, _, indices, _ in task.steps)
    assert first == second == Order(N, 7).indices(8, 6).tolist()
    assert Order(N, 7).indices(0, 25).tolist() == [
        *Order(N, 7).indices(0, 10), *Order(N, 7).indices(10, 15)]


def test_the_rate_follows_what_all_workers_have_trained():
    task = Recording()
    experiment = TaskExperiment(task, 4, 0.5, lambda done: 1 - done)
    assert (experiment.size, experiment.model_bytes, experiment.rate) == (N, 12, 0.5)
    work = experiment.workload(0, 2, 2, None, lambda worker: 0.25 * worker)
    assert work.step(0)[0] == 2, "a micro-batch"
    work.step(1)
    assert [rate for *_, rate in task.steps] == [0.5, 0.375]
    assert experiment.evaluate(work, np.ones(3, np.float32)) == {"loss": 3.0}


def test_a_quarter_of_the_batch_has_half_the_rate():
    quarter = TaskExperiment(Recording(), 16, 0.5, lambda done: 1.0).with_batch(4)
    assert quarter.rate == pytest.approx(0.25)
    assert quarter.workload(0, 1, 1, None, lambda worker: 0.0).batch == 4
