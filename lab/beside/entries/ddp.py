"""PyTorch's DistributedDataParallel on gloo, under torchrun.

Options: `uneven=true`: a machine takes examples by its speed, and its loss is weighted so that the
mean of the gradients is that over examples; `outer=`: an outer step; `hook=fp16` or `powersgd`;
`accumulate=4`: four batches without communication before one with it; `snapshot=10`: seconds
between two of what a restart begins with, as torchrun's tutorial has it.
"""

import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from beside.plan import shares
from beside.training import Training, stepping

t = Training()
given = t.plan.options
dist.init_process_group("gloo")
machines: list[int] = [0] * dist.get_world_size()
dist.all_gather_object(machines, t.index)  # those of now, under an elastic torchrun
machines.sort()

optimizer = t.optimizer()
done, kept = 0, t.folder / "snapshot.pt"
if kept.exists():
    snapshot = torch.load(kept)
    t.model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    done = snapshot["done"]
net = DistributedDataParallel(t.model)
if given.get("hook") == "fp16":
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif given.get("hook") == "powersgd":
    net.register_comm_hook(powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=t.plan.whole("rank", 4), start_powerSGD_iter=100),
        powerSGD_hook.powerSGD_hook)
steps = stepping(t, optimizer)

whole, times = t.plan.given.batch * len(machines), t.plan.whole("accumulate", 1)
slow = [t.plan.slow[machine] if "uneven" in given else 1.0 for machine in machines]
parts = shares(whole, slow)
place = machines.index(t.index)
before, mine = sum(parts[:place]), parts[place]
t.begin()
saved = time.monotonic()
while done < t.total:
    t.rate(optimizer, done)
    net.zero_grad()
    places: list[int] = []
    for n in range(times):
        new = range(done + n * whole + before, done + n * whole + before + mine)
        with net.no_sync() if n + 1 < times else contextlib.nullcontext():
            loss = t.gradient(net, new, mine * len(machines) / whole / times, add=True)
        places += new
    t.clip()
    steps.step()
    t.made(places, loss)
    done += whole * times
    if "snapshot" in given and place == 0 and time.monotonic() - saved > float(given["snapshot"]):
        torch.save({"model": t.model.state_dict(), "optimizer": optimizer.state_dict(),
                    "done": done}, f"{kept}.part")
        os.rename(f"{kept}.part", kept)
        saved = time.monotonic()
t.finish()
dist.destroy_process_group()
