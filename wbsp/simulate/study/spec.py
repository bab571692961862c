"""Specs of clusters: groups of equal machines, the server's interface, and their events.

Network and data are no part of a spec. `cluster_file` reads one from a TOML file, whose keys have
the names of the fields here; `published` makes one from a few flags.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import fmean

from wbsp.heterogeneity import sleep_seconds
from wbsp.simulate.world.machine import (
    INF,
    Incarnation,
    Machine,
    StepTime,
    changing,
    constant,
    lognormal,
    trace,
)
from wbsp.simulate.world.shards import ServerSpec, Shard


@dataclass(frozen=True)
class Group:
    """A group of `count` machines that differ only by chance.

    Times are in seconds, bandwidths in bytes/s. The time of a step is proportional to its examples.

    Attributes:
        step_seconds: mean of a step on a whole mini-batch; lognormal.
        jitter: standard deviation of the logarithm.
        trace: recorded seconds of each step, in place of `step_seconds`; every machine begins at
            another one.
        sleep_seconds: added to every mini-batch of any size.
        changes: (time, factor): from then on a step takes `factor` times as long.
        stalls: (from, to): the machine stops.
        join: time at which the workers join.
        leave: time at which they leave in good order.
        lose: time at which they are lost.
        spread: seconds from `join` on over which the workers join, evenly; 0: all at once.
    """

    count: int = 1
    step_seconds: float = 0.0
    jitter: float = 0.0
    trace: tuple[float, ...] = ()
    sleep_seconds: float = 0.0
    changes: tuple[tuple[float, float], ...] = ()
    stalls: tuple[tuple[float, float], ...] = ()
    join: float = 0.0
    leave: float = INF
    lose: float = INF
    spread: float = 0.0
    latency: float = 0.0
    up: float = INF
    down: float = INF

    @property
    def mini_batch(self) -> float:
        """Mean seconds of a mini-batch, before any change."""
        return (fmean(self.trace) if self.trace else self.step_seconds) + self.sleep_seconds

    def machine(self, place: int, seed: int) -> Machine:
        """Return the `place`-th machine of this group; `seed` is its own."""
        join, end = self.join + self.spread * place / self.count, min(self.leave, self.lose)
        return Machine(self._step_time(place, seed), self.latency, self.up, self.down,
                       (Incarnation(join, end, lost=self.lose < self.leave),), self.sleep_seconds,
                       tuple(sorted(self.stalls)))

    def _step_time(self, place: int, seed: int) -> StepTime:
        if self.trace:
            first = place * len(self.trace) // self.count
            step = trace(self.trace[first:] + self.trace[:first])
        elif self.jitter:
            step = lognormal(self.step_seconds, self.jitter, seed)
        else:
            step = constant(self.step_seconds)
        return changing(step, self.changes) if self.changes else step


@dataclass(frozen=True)
class ClusterSpec:
    """The spec of a cluster.

    Attributes:
        batch_size: examples of the mini-batch whose time the steps have; None: the run's.
        model_bytes: of an update and of a version; None: those of the trained network.
        text: content of the spec's TOML file.
    """

    groups: tuple[Group, ...]
    server: ServerSpec = ServerSpec(detect_seconds=6.0)
    model_bytes: float | None = None
    batch_size: int | None = None
    text: str | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """Number of workers."""
        return sum(group.count for group in self.groups)

    @property
    def pace(self) -> float:
        """Mini-batches/s of all workers if none of them ever waited, before any change."""
        return sum(group.count / group.mini_batch if group.mini_batch else INF
                   for group in self.groups)

    def cycle(self, model_bytes: float) -> float:
        """Return the slowest worker's seconds for a mini-batch, its push and a fetch.

        The worker is alone on its links.
        """
        server = self.server
        shards = server.shards or (Shard(server.ingress, server.egress),)
        parts, size = len(shards), model_bytes / len(shards)

        def seconds(group: Group) -> float:
            push = max(2 * shard.latency + size / min(group.up / parts, shard.ingress)
                       for shard in shards)
            fetch = max(2 * shard.latency + size / min(group.down / parts, shard.egress)
                        for shard in shards)
            apply = server.apply_seconds / parts
            return group.mini_batch + 2 * group.latency + apply + push + fetch
        return max(map(seconds, self.groups))

    def trains(self, batch_size: int) -> ClusterSpec:
        """Return this spec for mini-batches of `batch_size` examples; steps take in proportion."""
        if self.batch_size is None:
            return self
        factor = batch_size / self.batch_size
        return replace(self, batch_size=batch_size, groups=tuple(
            replace(group, step_seconds=factor * group.step_seconds,
                    trace=tuple(factor * seconds for seconds in group.trace))
            for group in self.groups))

    def sharded(self, count: int) -> ClusterSpec:
        """Return this spec with `count` shards, each with an interface like the server's.

        With one, the server is one process.
        """
        like = Shard(self.server.ingress, self.server.egress)
        shards = (like,) * count if count > 1 else ()
        return replace(self, server=replace(self.server, shards=shards))

    def machines(self, seed: int) -> list[Machine]:
        """Return the machines, group after group; equal seeds give equal step times."""
        places = [(group, place) for group in self.groups for place in range(group.count)]
        return [group.machine(place, (seed << 24) + index)
                for index, (group, place) in enumerate(places)]


def published(workers: int, heterogeneity: str, like: Group,
              server: ServerSpec = ClusterSpec.server,
              model_bytes: float | None = None) -> ClusterSpec:
    """Return the spec of `workers` equal machines of which the odd ones sleep before each step.

    Args:
        workers: number of machines.
        heterogeneity: "none", "H1", "H2" or "H3", the published settings.
        like: a machine.
    """
    return ClusterSpec(tuple(replace(like, sleep_seconds=sleep_seconds(heterogeneity, index))
                             for index in range(workers)), server, model_bytes)
