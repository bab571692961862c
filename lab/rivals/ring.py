"""How long an all-reduce takes on a ring.

Each of n machines sends 2 (n - 1) / n of the bytes to its neighbour, in 2 (n - 1) messages one
after the other: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", JPDC 69(2), 2009. The slowest link bounds it, in the direction that is slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wbsp.simulate.world.machine import INF, Machine


class Cost(NamedTuple):
    """Of one all-reduce.

    Attributes:
        transfer: seconds for which it occupies the links.
        latency: seconds after them, in which the links are free.
    """

    transfer: float
    latency: float

    @property
    def seconds(self) -> float:
        """From its begin to its end."""
        return self.transfer + self.latency


def all_reduce(members: Sequence[Machine], size: float) -> Cost:
    """Return what an all-reduce of `size` bytes costs these machines."""
    n = len(members)
    if n == 1:
        return Cost(0.0, 0.0)
    slowest = min(min(one.up, one.down) for one in members)
    return Cost(2 * (n - 1) / n * size / slowest, 2 * (n - 1) * max(one.latency for one in members))


def copied(one: Machine, size: float) -> float:
    """Return the seconds in which a newcomer has the model from another machine."""
    return one.latency + size / one.down


class Members:
    """Who takes part in the rounds of a ring, as an elastic launcher keeps it: one that is lost
    stops all others until that is noticed, and one that joins enters the next round with a copy of
    the model.

    Args:
        machines: with the times of their presence.
        size: bytes of the model.
        detect: seconds until a loss is noticed.
    """

    def __init__(self, machines: Sequence[Machine], size: float, detect: float):
        self._machines, self._size, self._detect = machines, size, detect
        self._in = {worker for worker, one in enumerate(machines) if self.stays(worker, 0.0)}

    def enter(self, now: float) -> dict[int, float]:
        """Return the workers of the round that begins at `now`, and when each can begin: a new one
        with its copy of the model."""
        present = {worker for worker in range(len(self._machines)) if self.stays(worker, now)}
        # Where all were lost, a newcomer goes on from the checkpoint.
        new, self._in = present - self._in if self._in else set(), present
        return {worker: now + (copied(self._machines[worker], self._size) if worker in new else 0.0)
                for worker in sorted(present)}

    def next_round(self, now: float) -> tuple[float, dict[int, float]]:
        """Return when the next round begins, `now` or once somebody is there, and its workers as
        `enter` does; nobody: no worker joins any more."""
        while now < INF:
            if workers := self.enter(now):
                return now, workers
            now = self.next_join(now)
        return now, {}

    def next_join(self, now: float) -> float:
        """Return when the next worker joins; infinity: none does."""
        return min((start for one in self._machines for start, _, _ in one.incarnations
                    if start > now), default=INF)

    def lost(self, worker: int, since: float) -> float:
        """Return when the worker, which is present at `since`, is lost; infinity: it is not."""
        return min((end for start, end, lost in self._machines[worker].incarnations
                    if lost and start <= since < end), default=INF)

    def broken(self, workers: Iterable[int], begin: float, end: float) -> float | None:
        """Return when the round is given up because a worker is lost in it; None: it is not.

        A worker that leaves in good order does so between two rounds.
        """
        losses = [leaves for worker in workers
                  for _, leaves, lost in self._machines[worker].incarnations
                  if lost and begin < leaves < end]
        return min(losses) + self._detect if losses else None

    def stays(self, worker: int, now: float) -> bool:
        """Return whether the worker is present."""
        return any(start <= now < end for start, end, _ in self._machines[worker].incarnations)
