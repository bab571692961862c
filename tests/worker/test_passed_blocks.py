"""Blocks whose runs have ended, in a script that is started again after a kill: they train nothing,
and leave what the other workers have."""

import json

import pytest
from back_ends import ON_TORCH
from jobs import free_port

from wbsp.process.signals import COMPLETE

pytestmark = pytest.mark.slow  # each process imports its framework

BEGINS = """
import os, pathlib, sys, time, numpy as np, wbsp

def held():
    print("holds", flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.02)

def tell(block, w, values, steps):
    print("block", block, w.stop_reason, flush=True)
    print("values", block, [np.asarray(value).tobytes().hex() for value in values], flush=True)
    print("steps", block, steps, w.done, w.run_steps, flush=True)
"""
JAX = BEGINS + """
import jax.numpy as jnp

for block in range(3):
    params, steps = {"x": jnp.full(4, 100.0 * block), "still": jnp.full(2, float(len(sys.argv)))}, 0
    try:
        with wbsp.Worker(params, n=64, batch_size=8, epochs=2, frozen=["still"]) as w:
            params = w.values
            for _ in w.epochs():
                for _ in w.indices():
                    if block == 2:
                        held()
                    params = w.step(0.5, {**params, "x": params["x"] + 1})
                    steps += 1
                    if block == 1:
                        w.stop_run("it is bad")
            if sys.argv[1:] and block < 2:  # a loop of its own, which does not ask
                for _ in range(2):
                    params = w.step(0.5, {**params, "x": params["x"] + 1})
                w.stop_run("it is bad")
                print(w.progress())
            if block == 1:
                raise KeyError("its run has ended")
    except KeyError:
        pass
    tell(block, w, w.values.values(), steps)
"""
LATE = BEGINS + """
import jax.numpy as jnp

w = wbsp.Worker({"x": jnp.zeros(4)}, n=64, batch_size=8)
print("is worker", w.worker, flush=True)
if sys.argv[1:]:
    held()
steps = 0
with w:
    params = w.values
    for _ in w.epochs():
        for _ in w.indices():
            params = w.step(0.5, {"x": params["x"] + 1})
            steps += 1
tell(0, w, w.values.values(), steps)
"""
TORCH = BEGINS + """
import torch, torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", f"tcp://127.0.0.1:{os.environ['PORT']}", rank=rank, world_size=2)
for block in range(2):
    torch.manual_seed(10 * block + rank)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    net[0].requires_grad_(False)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net[1].parameters(), 0.01)
    steps = 0

    def step(xs):
        loss = model(xs).sum()
        loss.backward()
        optimizer.step()
        w.step(loss)

    with wbsp.Worker(model, n=64, batch_size=8) as w:
        loader = torch.utils.data.DataLoader(torch.ones(64, 2), batch_sampler=w.sampler)
        for _ in w.epochs():
            for xs in w.batches(loader):
                if block == 1:
                    held()
                step(xs)
                steps += 1
        if sys.argv[1:] and block == 0:
            step(torch.ones(2, 2))
    tell(block, w, [value.detach() for value in net.state_dict().values()], steps)
dist.destroy_process_group()
"""


def start(jobs, server, script, index, *arguments, **more):
    (jobs.folder / "train.py").write_text(script)
    return jobs.start(f"worker{index}", "train.py", *arguments, WBSP_SERVER=server.address,
                      WBSP_WORKER_INDEX=str(index), CUDA_VISIBLE_DEVICES="", **more)


def test_a_restarted_script_skips_its_blocks_that_have_ended(jobs):
    pytest.importorskip("jax")
    server = jobs.server(series=True).listens()
    stays, dies = (start(jobs, server, JAX, index) for index in range(2))
    dies.until("^holds")
    dies.kill()
    again = start(jobs, server, JAX, 1, "again")
    again.until("^holds")
    (jobs.folder / "go").touch()
    for job in (stays, again, server):
        job.ends_well()
    assert stays.find("^block") == again.find("^block") and len(again.find("^block")) == 3
    assert stays.find("^values") == again.find("^values")
    assert again.find("^block 0 all 2 epochs are trained$")
    assert again.find(r"^block 1 worker \d: it is bad$")
    assert again.find("^steps 0 0 1.0 16$") and again.find("^steps 1 0 0")
    assert not again.find("^steps 2 0 ")
    assert len(again.find("fit [12] of this process's server has ended: training nothing")) == 2
    assert again.find("^version .*: all 2 epochs are trained")
    runs = [json.loads(path.read_text()) for path in sorted(server.cwd.glob("runs/*/*/run.json"))]
    assert [run["fit"] for run in runs] == [1, 2, 3]


def test_a_worker_whose_run_ends_before_it_joins_skips_it(jobs):
    """The server knows it, and the others have trained everything: it waits for the next run."""
    pytest.importorskip("jax")
    server = jobs.server(series=True).listens()
    late = start(jobs, server, LATE, "", "late")
    late.until("^holds")
    stays = start(jobs, server, LATE, "")
    server.until(r"worker \d joined")
    server.process.send_signal(COMPLETE)  # so that the run begins without the other one
    server.until("saving the final version")
    (jobs.folder / "go").touch()
    for job in (stays, late, server):
        job.ends_well()
    assert late.find("^block 0 all|^block 0 the epoch") == stays.find("^block")
    assert late.find("^values") == stays.find("^values") and late.find("^steps 0 0 ")
    assert late.find("connecting again for the server's next one")
    assert len(server.find("refused:.*is too late")) == 1


@ON_TORCH
@pytest.mark.long
def test_all_ranks_of_a_worker_skip_a_block_that_has_ended(jobs):
    server = jobs.server(workers=1, series=True).listens()

    def ranks(*arguments):
        port = str(free_port())
        return [start(jobs, server, TORCH, 0, *arguments, RANK=str(rank), PORT=port)
                for rank in range(2)]
    first = ranks()
    for job in first:
        job.until("^holds")
    for job in first:
        job.kill()
    again = ranks("again")
    for job in again:
        job.until("^holds")
    (jobs.folder / "go").touch()
    for job in (*again, server):
        job.ends_well()
    for job in again:
        assert job.find("^block 0 the epoch is trained$")
        assert job.find("^values 0") == first[0].find("^values 0")
        assert job.find("^steps 0 0 1.0 8$") and job.find("^steps 1 8 ")
    assert again[0].find("^values") == again[1].find("^values")
