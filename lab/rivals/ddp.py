"""DistributedDataParallel: a ring whose buckets travel while the backward pass computes.

Source: Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", VLDB
2020, arXiv 2006.15704, sections 3.2.2 (buckets) and 3.2.3 (overlap) [paper]: gradients are put into
buckets, and a bucket's all-reduce begins as soon as its gradients are there on all machines; the
optimizer's step follows the last one.

- A third of a step is the forward pass, two thirds the backward pass, over which the gradients
  become ready evenly [convention: twice the arithmetic].
- Buckets follow one another on the links; their latency does not, because the next one travels
  meanwhile. So it counts once, for the last.
- Uneven: worker i has n_i examples of each update, the shares that end soonest by the machines'
  mean step times, and the gradient is the mean over examples: with `DDP`, each loss is the sum
  over n_i, times workers / sum of n. The sum of all n_i is that of equal shares.

A ring costs its last worker: who is lost stops all others until it is noticed, and the step is made
again without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rivals.chain import Update
from rivals.ring import Members, all_reduce
from wbsp.simulate.world.machine import Machine

FORWARD = 1 / 3  # of a step
BUCKETS = 8


def ddp(machines: Sequence[Machine], batch: int, means: Sequence[float], size: float,
        detect: float, *, uneven: bool = False, buckets: int = BUCKETS) -> Iterator[Update]:
    """Yield the updates.

    Args:
        machines: of the workers.
        batch: examples of a worker in an update, on average.
        means: worker -> mean seconds of a step on `batch` examples, by which it is shared out.
        size: bytes of all gradients.
        detect: seconds until a loss is noticed.
        uneven: shares by speed, in place of equal ones.
        buckets: of equal size.
    """
    now, steps, members = 0.0, [0] * len(machines), Members(machines, size, detect)
    while True:
        now, workers = members.next_round(now)
        if not workers:
            return
        begin = max(workers.values())
        samples = (shares({worker: machines[worker] for worker in workers}, batch, means)
                   if uneven else dict.fromkeys(workers, batch))
        seconds = []
        for worker in workers:
            seconds.append(machines[worker].seconds(steps[worker], begin, samples[worker] / batch))
            steps[worker] += 1
        end = reduced([machines[worker] for worker in workers], seconds, begin, size, buckets)
        given_up = members.broken(workers, begin, end)
        if given_up is None:
            yield Update(end, samples)
        now = end if given_up is None else given_up


def reduced(members: Sequence[Machine], seconds: Sequence[float], begin: float, size: float,
            buckets: int) -> float:
    """Return when the last bucket is reduced, of steps that begin together and take `seconds`."""
    cost, free = all_reduce(members, size / buckets), begin
    for bucket in range(1, buckets + 1):
        ready = begin + max(seconds) * (FORWARD + (1 - FORWARD) * bucket / buckets)
        free = max(free, ready) + cost.transfer
    return free + cost.latency


def shares(machines: dict[int, Machine], batch: int, means: Sequence[float]) -> dict[int, int]:
    """Return worker -> examples: as many as in equal shares, at least one each, and such that the
    last worker ends soonest."""
    found = dict.fromkeys(machines, 1)

    def later(worker: int) -> float:  # its end with one example more
        part = machines[worker].part
        return means[worker] * (part + (1 - part) * (found[worker] + 1) / batch)

    for _ in range(batch * len(machines) - len(machines)):
        found[min(machines, key=later)] += 1
    return found
