"""DiLoCo: H local steps on each machine, then the mean of their differences and an outer step.

Source: Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023,
arXiv 2311.08105, algorithm 1 [paper]:

    worker i: H steps of AdamW from x(t), whose moments are its own and are kept
    Delta = mean of x(t) - x_i;  x(t+1) = outer step (Nesterov, 0.7 and 0.9) on Delta

The mean travels on a ring of float32, as in the public implementations (torchft). All make H steps,
so the slowest machine decides. `by_speed`: worker i makes floor(v_i / max v * H) steps, as Liu et
al. (arXiv 2401.09135) have it for unequal machines [paper: dynamic local updates].

A worker that is lost stops the round until that is noticed; then the mean is that of the others. A
newcomer has the model and no moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rivals.ground import Ground
from rivals.ring import Members, all_reduce
from wbsp.core.outer_optimizer import Nesterov, OuterOptimizer


def diloco(ground: Ground, means: Sequence[float], h: int, outer: OuterOptimizer | None = None, *,
           by_speed: bool = False) -> None:
    """Train until the ground's end.

    Args:
        ground: what is trained.
        means: worker -> mean seconds of its steps.
        h: local steps between two means.
        outer: the outer step; None: the published one.
        by_speed: a slower worker makes fewer steps.
    """
    machines, task = ground.machines, ground.task
    outer = outer or Nesterov()
    members = Members(machines, ground.size, ground.server.detect_seconds)
    values: Any = ground.initial
    states: dict[int, Any] = {}
    made, now = [0] * len(machines), 0.0
    ground.look(now, values)
    while True:
        now, workers = members.next_round(now)
        if not workers:
            break
        states = {worker: states[worker] if worker in states else task.make_state()
                  for worker in workers}
        steps = local_steps({worker: means[worker] for worker in workers}, h, by_speed)
        ends = dict(workers)
        for worker, count in steps.items():
            for _ in range(count):
                ends[worker] += machines[worker].seconds(made[worker], ends[worker])
                made[worker] += 1
        ready = max(ends.values())
        given_up = members.broken(workers, now, ready)
        if given_up is not None:
            steps = {worker: count for worker, count in steps.items()
                     if members.stays(worker, given_up)}
            ready = given_up
            if not steps:
                now = given_up
                continue
        end = ready + all_reduce([machines[worker] for worker in steps], ground.size).seconds
        if end > ground.until:
            break
        total = np.zeros_like(ground.initial)
        local = dict.fromkeys(steps, values)
        for turn in range(max(steps.values())):  # in turn, so that all see the rates of the round
            for worker, count in steps.items():
                if turn < count:
                    rate = ground.rate_now
                    local[worker], states[worker], _ = task.step(
                        local[worker], states[worker], ground.draw(worker, ground.batch), rate)
        for one in local.values():
            total += np.asarray(one) - np.asarray(values)
        values = np.asarray(values) + outer.step(total / np.float32(len(steps)))
        now = end
        ground.look(now, values)
    ground.look(now, values, last=True)


def local_steps(means: dict[int, float], h: int, by_speed: bool) -> dict[int, int]:
    """Return worker -> steps of a round: floor(v / max v * H), at least 1, where they go by speed.
    """
    least = min(means.values())
    return {worker: max(1, math.floor(least / mean * h + 1e-9)) if by_speed else h
            for worker, mean in means.items()}
