"""torchft's DiLoCo: after `every` local steps an outer Nesterov step on the mean of the changes.

Options: `every=20`; `uneven=true`: these are the steps of the slowest machine, and another makes
more by its speed; `min_replicas=1`: a machine may continue alone.
"""

from datetime import timedelta

from torch.optim import SGD
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

from beside.training import Training

t = Training()
every = rounds = t.plan.whole("every", 20)
slow, present = t.plan.slow, t.plan.slow[:t.plan.begin]
whole = every * len(present) * t.plan.given.batch
if "uneven" in t.plan.options:
    rounds = round(every * max(slow) / slow[t.index])
    whole = sum(round(every * max(slow) / one) for one in present) * t.plan.given.batch
inner = t.optimizer()
outer = SGD(t.model.parameters(), 0.7, momentum=0.9, nesterov=True)


def state_dict():
    return {"model": t.model.state_dict(), "inner": inner.state_dict()}  # DiLoCo adds the outer


def load_state_dict(state):
    t.model.load_state_dict(state["model"])
    inner.load_state_dict(state["inner"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=30)), use_async_quorum=False,
    min_replica_size=t.plan.whole("min_replicas", t.plan.begin), state_dict=state_dict,
    load_state_dict=load_state_dict, replica_id=f"beside_{t.index}",
    timeout=timedelta(seconds=60))
with DiLoCo(manager, [t.model], inner, outer, sync_every=rounds):
    t.begin()
    while (done := manager.current_step() * whole) < t.total:
        t.rate(inner, min(done + t.steps % rounds * whole / rounds, t.total))
        places = t.own(t.plan.given.batch)
        loss = t.gradient(t.model, places)
        t.clip()
        inner.step()
        t.made(places, loss)
t.finish()
manager.shutdown()
