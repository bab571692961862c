"""The check of conservation, by which the tests of this folder judge a run, finds faults."""

import dataclasses

import numpy as np
import pytest
from conservation import IntegerRun, assert_conserved
from fake_worker import FakeWorker, all_end
from jobs import Jobs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with Jobs(tmp_path_factory.mktemp("run")) as jobs:
        server = jobs.server(sync="asp").listens()
        workers = [FakeWorker(server.address, worker, steps=5) for worker in range(2)]
        all_end(workers)
        server.ends_well()
        return IntegerRun.of_threads(server, workers)


def test_a_run_without_a_fault_is_conserved(run):
    assert assert_conserved(run).state.next_seq == {0: 5, 1: 5}


def without(weights, worker, seq):
    return weights | {worker: {one: weights[worker][one] for one in weights[worker] if one != seq}}


@pytest.mark.parametrize("fault", [
    lambda run: {"cuts": run.cuts | {0: [1 + run.cuts[0][0], *run.cuts[0][1:]]}},
    lambda run: {"weights": run.weights | {1: run.weights[1] | {2: 0.25}}},
    lambda run: {"weights": without(run.weights, 0, 4)},
    lambda run: {"weights": run.weights | {2: {0: 0.5}}},
    lambda run: {"finals": run.finals | {1: np.nextafter(run.finals[1], np.float32(1e9))}},
    lambda run: {"firsts": run.firsts | {0: np.full(5, 3, np.float32)}}],
    ids=["another cut", "another weight", "a push that does not count", "somebody else's push",
         "another final version", "another W_0"])
def test_a_fault_is_found(run, fault):
    with pytest.raises(AssertionError):
        assert_conserved(dataclasses.replace(run, **fault(run)))
