"""The same network in every kind of loop that a worker may have, by real processes."""

import numpy as np
import pytest
from back_ends import ON_TORCH, TORCH
from jobs import ROOT

WORKER = ROOT / "tests/helpers/loop_worker.py"
KINDS = ["fit", "tensorflow", "train_on_batch", "jax", TORCH]


def train(jobs, server, kind, index, seconds=0.0, *local, **environment):
    return jobs.start(f"worker{index}", WORKER, kind, server.address, index, seconds,
                      jobs.folder / f"final-{index}.npz", *local, **environment)


def finals(jobs, index, some=slice(None)):
    with np.load(jobs.folder / f"final-{index}.npz") as file:
        return b"".join(file[name].tobytes() for name in file.files[some])


@pytest.mark.parametrize("kind", [TORCH, "jax"])
def test_a_loop_without_keras_imports_neither_keras_nor_tensorflow(jobs, kind):
    server = jobs.server(sync="pcc", workers=1).listens()
    job = train(jobs, server, kind, 0)
    job.ends_well()
    server.ends_well()
    assert job.find(f"^imported: {kind}$") and job.find("^ended: all 12 epochs are trained$")
    assert server.find("epoch 12 of 12 is trained")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sync", ["pcc", "bsp"])
def test_two_unequal_workers_share_the_data_and_end_with_one_model(jobs, kind, sync):
    server = jobs.server(sync=sync).listens()
    workers = [train(jobs, server, kind, index, (0.002, 0.02)[index]) for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    assert finals(jobs, 0) == finals(jobs, 1)
    for job in workers:
        assert job.find("^ended: all 12 epochs are trained$")
        (line,) = job.find("^accuracy ")
        assert float(line.split()[1]) > 0.6, "a third is by chance"


LAST = {"jax": "2", "torch": "3"}  # the last layer; elsewhere by Keras's name of it


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind, back_end", [
    ("fit", "tensorflow"), ("fit", "jax"), pytest.param("fit", "torch", marks=ON_TORCH),
    ("tensorflow", "tensorflow"), ("train_on_batch", "tensorflow"), ("jax", "jax"),
    pytest.param("torch", "torch", marks=ON_TORCH)])
def test_each_worker_keeps_a_last_layer_of_its_own(jobs, kind, back_end):
    server = jobs.server(sync="pcc").listens()
    workers = [train(jobs, server, kind, index, (0.002, 0.004)[index],
                     LAST.get(kind, "sequential/dense_1"), KERAS_BACKEND=back_end)
               for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    assert finals(jobs, 0, slice(-2)) == finals(jobs, 1, slice(-2))
    assert finals(jobs, 0, slice(-2, None)) != finals(jobs, 1, slice(-2, None))
    for job in workers:
        (line,) = job.find("^accuracy ")
        assert float(line.split()[1]) > 0.6, "a third is by chance"


@pytest.mark.slow
@ON_TORCH
@pytest.mark.long
@pytest.mark.parametrize("sync", ["pcc", "bsp"])
def test_workers_of_three_frameworks_train_one_model(jobs, sync):
    server = jobs.server(sync=sync, workers=3).listens()
    workers = [jobs.start(f"worker{index}", ROOT / "tests/helpers/mixed_worker.py", kind,
                          server.address, index, (0.002, 0.02, 0.002)[index],
                          jobs.folder / f"final-{index}.npz")
               for index, kind in enumerate(("tensorflow", "torch", "jax"))]
    for job in (*workers, server):
        job.ends_well()
    assert finals(jobs, 0) == finals(jobs, 1) == finals(jobs, 2)
    for job in workers:
        assert job.find("^ended: all 12 epochs are trained$")
        (line,) = job.find("^accuracy ")
        assert float(line.split()[1]) > 0.6, "a third is by chance"


@pytest.mark.slow
@pytest.mark.long
@ON_TORCH
@pytest.mark.parametrize("sync", ["pcc", "auto", "bsp"])
def test_a_killed_worker_does_not_end_one_whose_loader_reads_ahead(jobs, sync):
    server = jobs.server(sync=sync).listens()
    dies = train(jobs, server, "torch", 0, 0.05)
    stays = train(jobs, server, "torch", 1, 0.01)  # by a loader with a process
    server.until("epoch 3 of 12 is trained")
    dies.kill()
    for job in (stays, server):
        job.ends_well()
    assert stays.find("^ended: all 12 epochs are trained$")
    assert server.find("epoch 12 of 12 is trained")
