"""Specs of clusters: groups of like machines, the server's interface, and what happens when.

What is trained is no part of a spec. `cluster_file` reads one from a TOML file, `published` makes
one from a few flags.
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
from wbsp.simulate.world.shards import Shard


@dataclass(frozen=True)
class Group:
    """A group of `count` machines that differ by chance alone. Times in seconds, bandwidths in
    bytes/s.

    step:    mean of the seconds of a step on a whole mini-batch, lognormal with the log's deviation
             `jitter`; or `trace`, the recorded seconds of each step, which every machine begins at
             another place. A step on fewer or more examples takes proportionally long.
    sleep:   added to every mini-batch, whatever its size
    changes: (time, factor): from then on a step takes `factor` times as long
    stalls:  (from, to): the machine stands still
    join, leave, lose: when the worker comes; when it leaves in good order, or is lost
    spread:  the workers come one after another, evenly over so many seconds from `join` on, instead
             of all at once
    """

    count: int = 1
    step: float = 0.0
    jitter: float = 0.0
    trace: tuple[float, ...] = ()
    sleep: float = 0.0
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
        return (fmean(self.trace) if self.trace else self.step) + self.sleep

    def machine(self, place: int, seed: int) -> Machine:
        """The `place`-th machine of this group; `seed` is its own."""
        join, end = self.join + self.spread * place / self.count, min(self.leave, self.lose)
        return Machine(self._step_time(place, seed), self.latency, self.up, self.down,
                       (Incarnation(join, end, lost=self.lose < self.leave),), self.sleep,
                       tuple(sorted(self.stalls)))

    def _step_time(self, place: int, seed: int) -> StepTime:
        if self.trace:
            first = place * len(self.trace) // self.count
            step = trace(self.trace[first:] + self.trace[:first])
        elif self.jitter:
            step = lognormal(self.step, self.jitter, seed)
        else:
            step = constant(self.step)
        return changing(step, self.changes) if self.changes else step


@dataclass(frozen=True)
class ClusterSpec:
    """The spec of a cluster. Bandwidths in bytes/s, times in seconds.

    ingress, egress: the server's interface, shared by all workers
    apply:       the server's time for one push
    shards:      links of its shards, in place of its interface; none: it is one process
    detect:      until the server knows that a worker is lost
    model_bytes: of an update and of a version; None: those of the trained network
    text:        the TOML file that the spec was read from
    """

    groups: tuple[Group, ...]
    ingress: float = INF
    egress: float = INF
    apply: float = 0.0
    detect: float = 6.0
    shards: tuple[Shard, ...] = ()
    model_bytes: float | None = None
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
        """Seconds of the slowest worker, alone on its links, for a mini-batch, its push and a
        fetch."""
        shards = self.shards or (Shard(self.ingress, self.egress),)
        parts, size = len(shards), model_bytes / len(shards)

        def seconds(group: Group) -> float:
            push = max(2 * shard.latency + size / min(group.up / parts, shard.ingress)
                       for shard in shards)
            fetch = max(2 * shard.latency + size / min(group.down / parts, shard.egress)
                        for shard in shards)
            return group.mini_batch + 2 * group.latency + self.apply / parts + push + fetch
        return max(map(seconds, self.groups))

    def timed_for(self, model_bytes: float) -> ClusterSpec:
        """The same spec with another size of updates and versions."""
        return replace(self, model_bytes=model_bytes)

    def sharded(self, count: int) -> ClusterSpec:
        """The same spec with `count` shards, each with an interface like the server's; with one,
        the server is one process."""
        like = Shard(self.ingress, self.egress)
        return replace(self, shards=(like,) * count if count > 1 else ())

    def machines(self, seed: int) -> list[Machine]:
        """The machines, group after group; the same seed gives the same step times."""
        places = [(group, place) for group in self.groups for place in range(group.count)]
        return [group.machine(place, (seed << 24) + index)
                for index, (group, place) in enumerate(places)]


def published(workers: int, heterogeneity: str, step: float, jitter: float = 0.0,
              latency: float = 0.0, bandwidth: float = INF, server_bandwidth: float | None = None,
              apply: float = 0.0, model_bytes: float | None = None) -> ClusterSpec:
    """The spec of `workers` like machines on like links, of which the odd ones sleep before each
    step. heterogeneity: "none", "H1", "H2" or "H3", the published settings."""
    server = bandwidth if server_bandwidth is None else server_bandwidth
    return ClusterSpec(
        tuple(Group(step=step, jitter=jitter, sleep=sleep_seconds(heterogeneity, index),
                    latency=latency, up=bandwidth, down=bandwidth) for index in range(workers)),
        ingress=server, egress=server, apply=apply, model_bytes=model_bytes)
