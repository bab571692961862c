"""PyTorch's PostLocalSGDOptimizer: steps of DistributedDataParallel, and after `warmup` of them
local ones, whose models are averaged after `every`.
"""

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from beside.training import Training

t = Training()
dist.init_process_group("gloo")
every, warmup = t.plan.whole("every", 8), t.plan.whole("warmup", 100)
net = DistributedDataParallel(t.model)
alone, _ = dist.new_subgroups(1)
net.register_comm_hook(PostLocalSGDState(None, alone, start_localSGD_iter=warmup),
                       post_localSGD_hook)
inner = t.optimizer()
optimizer = PostLocalSGDOptimizer(inner, PeriodicModelAverager(every, warmup_steps=warmup))
whole, done = t.plan.given.batch * dist.get_world_size(), 0
t.begin()
while done < t.total:
    t.rate(inner, done)
    places = t.own(t.plan.given.batch)
    loss = t.gradient(net, places)
    t.clip()
    optimizer.step()
    t.made(places, loss)
    done += whole
for value in t.model.parameters():  # the last local steps count, too
    dist.all_reduce(value.data)
    value.data /= dist.get_world_size()
t.finish()
dist.destroy_process_group()
