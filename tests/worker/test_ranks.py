"""A worker that is a group of PyTorch processes, by real processes."""

import numpy as np
import pytest
from back_ends import ON_TORCH
from jobs import ROOT, free_port

pytestmark = [pytest.mark.slow, pytest.mark.long, ON_TORCH]


def start(jobs, address, index, how):
    port = free_port()
    return [jobs.start(f"worker{index}.{rank}", ROOT / "tests/helpers/ddp_worker.py", address,
                       index, rank, port, how, jobs.folder / f"final-{index}-{rank}.npz")
            for rank in range(2)]


def final(jobs, index, rank):
    with np.load(jobs.folder / f"final-{index}-{rank}.npz") as file:
        return b"".join(file[name].tobytes() for name in file.files)


@pytest.mark.parametrize("sync", ["pcc", "bsp"])
def test_two_groups_share_the_data_and_all_ranks_end_with_one_model(jobs, sync):
    server = jobs.server(sync=sync).listens()
    ranks = [*start(jobs, server.address, 0, "indices"), *start(jobs, server.address, 1, "loader")]
    for job in (*ranks, server):
        job.ends_well()
    assert len({final(jobs, index, rank) for index in range(2) for rank in range(2)}) == 1
    assert all(job.find("^ended: all 12 epochs are trained$") for job in ranks)
    assert all(job.find("^steps of all: 192$") and job.find("^done: 1.0 192$") for job in ranks)
    assert server.find("epoch 12 of 12 is trained")


def test_a_group_with_data_of_its_own(jobs):
    server = jobs.server(sync="pcc", workers=1).listens()
    for job in (*start(jobs, server.address, 0, "own"), server):
        job.ends_well()
    assert final(jobs, 0, 0) == final(jobs, 0, 1)


def test_an_error_of_rank_0_ends_the_other_ranks(jobs):
    server = jobs.server(workers=1).listens()
    ranks = start(jobs, server.address, 7, "indices")
    assert [job.ends() for job in ranks] == [1, 1]
    assert ranks[1].find("TransportError: rank 0 of this worker's processes has left the run: "
                         "the server refused: worker 7 does not exist")
