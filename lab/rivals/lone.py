"""One machine without a network: what a user has before any cluster."""

from __future__ import annotations

from collections.abc import Iterator

from rivals.chain import Update
from wbsp.simulate.world.machine import Machine


def lone(machine: Machine, batch: int, worker: int = 0) -> Iterator[Update]:
    """Yield the machine's steps; `worker` is its place in the cluster."""
    now, step = 0.0, 0
    while True:
        now += machine.seconds(step, now)
        step += 1
        yield Update(now, {worker: batch})
