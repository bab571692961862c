"""Specs of clusters: groups of equal machines, their sites, the server's interface, and events.

Network and data are no part of a spec. `cluster_file` reads one from a TOML file, whose keys have
the names of the fields here; `published` makes one from a few flags.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

from wbsp.heterogeneity import sleep_seconds
from wbsp.simulate.world.machine import (
    INF,
    Incarnation,
    Line,
    Machine,
    StepTime,
    changing,
    constant,
    lognormal,
    trace,
)
from wbsp.simulate.world.server import ServerSpec


class StepLaw(NamedTuple):
    """The seconds of a step: `fixed` + `example` * its examples."""

    fixed: float
    example: float

    def seconds(self, examples: int) -> float:
        """Return the seconds of a step with this number of examples."""
        return self.fixed + self.example * examples

    def __str__(self) -> str:
        return f"{1000 * self.fixed:.4g}ms+{1000 * self.example:.4g}ms"


@dataclass(frozen=True)
class Group:
    """A group of `count` machines that differ only by chance.

    Times are in seconds, bandwidths in bytes/s. The time of a step is a + b * examples.

    Attributes:
        step_seconds: mean of a step on a whole mini-batch; lognormal.
        fixed_seconds: a, which is a part of `step_seconds`.
        example_seconds: b, where it is given: `step_seconds` then follows from it and the batch;
            0: b is what `step_seconds` leaves.
        speed: how many times as fast as the machine whose step times `ClusterSpec.timed` gives;
            None: the group has step times of its own.
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
        site: place of their site among those of the cluster; None: it has none.
    """

    count: int = 1
    step_seconds: float = 0.0
    fixed_seconds: float = 0.0
    example_seconds: float = 0.0
    speed: float | None = None
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
    site: int | None = None

    @property
    def mini_batch(self) -> float:
        """Mean seconds of a mini-batch, before any change."""
        return (fmean(self.trace) if self.trace else self.step_seconds) + self.sleep_seconds

    def machine(self, place: int, seed: int) -> Machine:
        """Return the `place`-th machine of this group; `seed` is its own.

        Raises:
            ValueError: it cannot be.
        """
        if self.speed is not None:
            raise ValueError("a speed is relative to step times, which are not given")
        join, end = self.join + self.spread * place / self.count, min(self.leave, self.lose)
        return Machine(self._step_time(place, seed), self.latency, self.up, self.down,
                       (Incarnation(join, end, lost=self.lose < self.leave),), self.sleep_seconds,
                       tuple(sorted(self.stalls)),
                       part=self.fixed_seconds / self.step_seconds if self.fixed_seconds else 0.0)

    def trains(self, batch_size: int, of: int | None) -> Group:
        """Return this group for mini-batches of `batch_size` examples in place of `of`, or of a
        number that is not known."""
        if self.example_seconds:
            return replace(self, step_seconds=(self.fixed_seconds
                                               + batch_size * self.example_seconds))
        if of is None:
            return self
        factor, fixed = batch_size / of, self.fixed_seconds
        return replace(self, step_seconds=fixed + factor * (self.step_seconds - fixed),
                       trace=tuple(factor * seconds for seconds in self.trace))

    def timed(self, law: StepLaw) -> Group:
        """Return this group with step times by this law, over its speed."""
        speed = self.speed or 1.0
        fixed, example = law.fixed / speed, law.example / speed
        return replace(self, step_seconds=fixed + example, fixed_seconds=fixed,
                       example_seconds=example, speed=None)

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
class SiteSpec:
    """The spec of a site.

    Attributes:
        latency: of its line to the server of the cluster, one way.
        up: bytes/s of that line, to the server, which the site shares.
        down: bytes/s from the server.
        server: the site's own server, where it has one.
    """

    latency: float = 0.0
    up: float = INF
    down: float = INF
    server: ServerSpec = ServerSpec(detect_seconds=6.0)

    def machine(self, site: int) -> Machine:
        """Return the machine of the server of this site, the `site`-th."""
        return Machine(constant(0.0), self.latency, line=Line(site, self.up, self.down))


@dataclass(frozen=True)
class ClusterSpec:
    """The spec of a cluster.

    Attributes:
        sites: places of the groups; empty: all are at the server's place.
        batch_size: examples of the mini-batch whose time the steps have; None: the run's.
        model_bytes: of an update and of a version; None: those of the trained network.
        text: content of the spec's TOML file.
    """

    groups: tuple[Group, ...]
    server: ServerSpec = ServerSpec(detect_seconds=6.0)
    model_bytes: float | None = None
    batch_size: int | None = None
    text: str | None = field(default=None, compare=False)
    sites: tuple[SiteSpec, ...] = ()

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

        The worker is alone on its links, and its site has no server.
        """
        server = self.server

        def seconds(group: Group) -> float:
            push = model_bytes / min(group.up, server.shards * server.ingress)
            fetch = model_bytes / min(group.down, server.shards * server.egress)
            return group.mini_batch + 2 * group.latency + server.push_seconds + push + fetch
        return max(seconds(self._outward(group)) for group in self.groups)

    def round(self, model_bytes: float) -> float:
        """Return the seconds in which all workers push and fetch once through what they share.

        That is the server's interface, or the line of a site.
        """
        server = self.server
        shared = self.size * model_bytes / server.shards * (1 / server.ingress + 1 / server.egress)
        return max([shared, *(self.workers_at(site) * model_bytes * (1 / one.up + 1 / one.down)
                              for site, one in enumerate(self.sites))])

    def workers_at(self, site: int) -> int:
        """Return the number of workers at a site."""
        return sum(group.count for group in self.groups if group.site == site)

    def within(self, site: int) -> ClusterSpec:
        """Return the spec of a site and its server alone."""
        return ClusterSpec(tuple(replace(group, site=None) for group in self.groups
                                 if group.site == site),
                           self.sites[site].server, self.model_bytes, self.batch_size)

    def _outward(self, group: Group) -> Group:
        """Return the group with its site's line as part of its links."""
        if group.site is None:
            return group
        line = self.sites[group.site]
        return replace(group, latency=group.latency + line.latency, up=min(group.up, line.up),
                       down=min(group.down, line.down))

    def trains(self, batch_size: int) -> ClusterSpec:
        """Return this spec for mini-batches of `batch_size` examples; steps take in proportion,
        but for their fixed part."""
        return replace(self, batch_size=self.batch_size and batch_size, groups=tuple(
            group.trains(batch_size, self.batch_size) for group in self.groups))

    @property
    def relative(self) -> bool:
        """True if the step times of a group are relative to those of another machine."""
        return any(group.speed is not None for group in self.groups)

    def timed(self, law: StepLaw) -> ClusterSpec:
        """Return this spec with step times by this law for the groups that have only a speed."""
        return replace(self, groups=tuple(
            group if group.speed is None else group.timed(law) for group in self.groups))

    def sharded(self, count: int) -> ClusterSpec:
        """Return this spec with `count` shards, each with an interface like the server's.

        With one, the server is one process.
        """
        return replace(self, server=replace(self.server, shards=count))

    @property
    def places(self) -> list[tuple[Group, int]]:
        """Group of each worker, and place in it."""
        return [(group, place) for group in self.groups for place in range(group.count)]

    def machines(self, seed: int, within: bool = False) -> list[Machine]:
        """Return the machines, group after group; equal seeds give equal step times.

        Args:
            seed: of the step times.
            within: their links are those to their site's server, and not to the cluster's.
        """
        made = [group.machine(place, (seed << 24) + index)
                for index, (group, place) in enumerate(self.places)]
        if within:
            return made
        for index, (group, _) in enumerate(self.places):
            if group.site is not None:
                outside = self.sites[group.site].machine(group.site)
                made[index] = replace(made[index], line=outside.line,
                                      latency=made[index].latency + outside.latency)
        return made


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
