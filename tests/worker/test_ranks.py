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


RANK = """
import sys, torch, torch.distributed as dist, wbsp
address, rank, port, wrong = sys.argv[1], int(sys.argv[2]), sys.argv[3], eval(sys.argv[4])
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
given = {"n": 64, "batch_size": 8, "epochs": 1, "seed": 0, **(wrong if rank else {})}
wbsp.Worker(model, address=address, worker_index=0, **given)
"""


@pytest.mark.parametrize("wrong, says", [
    ({"n": 32}, "given n=32, and rank 0 n=64"), ({"seed": 1}, "given seed=1, and rank 0 seed=0"),
    ({"batch_size": 4}, "given batch_size=4, and rank 0 batch_size=8"),
    ({"n": None}, "given n=None, and rank 0 n=64"), ({"epochs": 3}, "given epochs=3"),
    ({"local": ["bias"]}, "given local=\\['module.bias'\\]|given local=\\['bias'\\]|no variable"),
    ({"n": 2.5}, "n=2.5: it must be a whole number")])
def test_ranks_that_were_given_different_arguments_end_with_their_names(jobs, wrong, says):
    """No server runs: they find the error before they connect."""
    (jobs.folder / "rank.py").write_text(RANK)
    port = free_port()
    ranks = [jobs.start(f"rank{rank}", "rank.py", "localhost:9", rank, port, repr(wrong))
             for rank in range(2)]
    assert [job.ends() for job in ranks] == [1, 1]
    assert all(job.find(says) for job in ranks)


LEAVES = """
import sys, torch, torch.distributed as dist, wbsp
address, rank, port, steps = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "steps"
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
with wbsp.Worker(model, address=address, worker_index=0, n=64, batch_size=8, epochs=50) as w:
    for _ in w.epochs():
        for indices in w.indices():
            if rank and w.progress().endswith("step 3"):
                raise KeyError("a broken file")
            if steps:
                model(torch.ones(1, 1)).sum().backward()
            w.step(0.5)
"""


@pytest.mark.parametrize("waits", ["steps", "calls"])
def test_an_error_on_another_rank_is_reported_by_name(jobs, waits):
    """Rank 0 waits for it in a step of DistributedDataParallel, or in a call of `w`."""
    server = jobs.server(workers=1).listens()
    (jobs.folder / "leaves.py").write_text(LEAVES)
    port = free_port()
    ranks = [jobs.start(f"rank{rank}", "leaves.py", server.address, rank, port, waits)
             for rank in range(2)]
    assert [job.ends() for job in ranks] == [1, 1]
    assert ranks[0].find("rank 1 of this worker's processes has left by KeyError: 'a broken file'")
