"""hivemind: peers accumulate gradients until all together have a target batch, and average them.

Options: `target=`, the examples of a step of all peers; `matchmaking=`, seconds in which a group is
found; `state=`, epochs between two averages of the parameters; `delay=true`: averages while peers
compute on; `local=true` (use_local_updates): each peer makes steps, and parameters are averaged.
"""

import functools
import time

import hivemind
import torch

from beside.training import Training

t = Training()
first = t.folder / "peers.txt"
mine = [f"/ip4/{t.plan.addresses[t.index]}/tcp/{t.plan.ports[t.index]}"]
if t.index == 0:
    dht = hivemind.DHT(host_maddrs=mine, start=True)
    first.write_text("\n".join(map(str, dht.get_visible_maddrs())))
else:
    while not first.exists() or not first.read_text():  # a user copies the line
        time.sleep(0.05)
    dht = hivemind.DHT(host_maddrs=mine, initial_peers=first.read_text().split(), start=True)

target, batch = t.plan.whole("target", 64), t.plan.given.batch
matchmaking = float(t.plan.options.get("matchmaking", "3"))
delay = "delay" in t.plan.options
optimizer = hivemind.Optimizer(
    dht=dht, run_id="beside", batch_size_per_step=batch, target_batch_size=target,
    params=t.model.parameters(), optimizer=t.optimizer,
    scheduler=functools.partial(torch.optim.lr_scheduler.LambdaLR,
                                lr_lambda=lambda epoch: t.factor(epoch * target)),
    use_local_updates="local" in t.plan.options, matchmaking_time=matchmaking,
    averaging_timeout=max(10.0, 3 * matchmaking), average_state_every=t.plan.whole("state", 1),
    delay_grad_averaging=delay, delay_optimizer_step=delay, verbose=True)
if t.index >= t.plan.begin or (t.folder / f"ready-{t.index}").exists():
    optimizer.load_state_from_peers()  # it is late
t.begin()
while optimizer.local_epoch * target < t.total:
    places = t.own(batch)
    loss = t.gradient(t.model, places)
    t.clip()
    optimizer.step()
    t.made(places, loss)
t.finish()
print(f"{optimizer.local_epoch} epochs")
optimizer.shutdown()
dht.shutdown()
