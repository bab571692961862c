"""A simulated server: one process, or shards, processes that hold a part of the model each.

With shards, the coordinator decides, without tensors, and the shards carry out. Times of a message,
with the worker's latency L, the shard's l, and all shards at once:

    push:    L + l, the slice through the worker's link and the shard's interface, the shard's time
             for it, l (message to the coordinator); decided after the last shard's message
    version: l (message of the coordinator), the slice through both links, l + L; complete with the
             last slice
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from wbsp.limits import SHARDS
from wbsp.simulate.world.clock import Clock, Turns
from wbsp.simulate.world.lines import Lines
from wbsp.simulate.world.links import INF, FairShareLink, Interface, Transfer
from wbsp.simulate.world.machine import Machine


@dataclass(frozen=True)
class Shard:
    """The link of a shard.

    Attributes:
        ingress: bytes/s to the shard, shared by all workers.
        egress: bytes/s from the shard, shared by all workers.
        latency: seconds, one way, to the coordinator and, beside the workers' own, to the workers.
    """

    ingress: float = INF
    egress: float = INF
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.latency < INF:
            raise ValueError(f"latency must be 0 s or more and finite, not {self.latency}")


def check_number(shards: int, given: str) -> None:
    """Raise ValueError, which begins with `given`, for more shards than a server has."""
    if shards > SHARDS:
        raise ValueError(f"{given}: a server has at most {SHARDS} shards")


class Slices:
    """An update or a version in flight, a slice a shard; done() is called when all were counted.

    The worker's link of `bandwidth` bytes/s is divided evenly among the slices in flight. If a
    slice uses less than its part because its shard is slower, the rest stays unused.
    """

    __slots__ = ("_clock", "_bandwidth", "_arriving", "_missing", "_done", "_transfers")

    def __init__(self, clock: Clock, bandwidth: float, count: int, done: Callable[[], object]):
        self._clock, self._bandwidth = clock, bandwidth
        self._arriving = self._missing = count
        self._done: Callable[[], object] | None = done  # None: cancelled
        self._transfers: list[Transfer] = []

    def begin(self, link: FairShareLink, size: float, lead: float, trail: float,
              arrived: Callable[[], object]) -> None:
        """Send one slice as `FairShareLink.carry` does."""
        if self._done is not None:
            transfer = link.carry(size, self._bandwidth / self._arriving, lead, trail,
                                  self._arrive, arrived)
            if transfer is not None:
                self._transfers.append(transfer)

    def count(self) -> None:
        """Count a slice that has arrived and was handled."""
        self._missing -= 1
        if not self._missing and self._done is not None:
            self._done()

    def cancel(self) -> None:
        """Lose the slices in flight; `done` is not called any more."""
        self._done = None
        for transfer in self._transfers:
            transfer.cancel()

    def _arrive(self, arrived: Callable[[], object]) -> None:
        self._arriving -= 1
        if self._arriving and self._bandwidth < INF:  # slices that arrive now are counted first
            self._clock.late(0.0, self._divide_line)
        arrived()

    def _divide_line(self) -> None:
        if self._arriving:
            for transfer in self._transfers:
                transfer.limit(self._bandwidth / self._arriving)


class Process:
    """One shard: its links, and its messages one after the other."""

    def __init__(self, clock: Clock, shard: Shard):
        self.ingress = FairShareLink(clock, shard.ingress)
        self.egress = FairShareLink(clock, shard.egress)
        self.latency = shard.latency
        self.turns = Turns(clock)


class Shards:
    """All shards of a server, in place of the one `Interface` of a server that is one process.

    Each holds the same part of the model and needs the same part of the `apply_seconds` of a push,
    which the shards spend at the same time.
    """

    def __init__(self, clock: Clock, shards: Sequence[Shard], apply_seconds: float):
        self._clock, self._apply_seconds = clock, apply_seconds / len(shards)
        self._processes = [Process(clock, shard) for shard in shards]

    def push(self, machine: Machine, size: float, done: Callable[..., object],
             *args: object) -> Slices:
        """Call done(*args) when the coordinator knows that all shards have their slices."""
        slices = self._slices(machine.up, done, *args)
        part = size / len(self._processes)
        for process in self._processes:
            slices.begin(process.ingress, part, machine.latency + process.latency, 0.0,
                         partial(self._apply, process, slices))
        return slices

    def send(self, machine: Machine, size: float, done: Callable[..., object],
             *args: object) -> Slices:
        """Call done(*args) when the worker has all slices of a version of `size` bytes."""
        slices = self._slices(machine.down, done, *args)
        part = size / len(self._processes)
        for process in self._processes:
            self._after(process.latency, process.turns.take, 0.0, slices.begin, process.egress,
                        part, 0.0, process.latency + machine.latency, slices.count)
        return slices

    def _slices(self, bandwidth: float, done: Callable[..., object], *args: object) -> Slices:
        return Slices(self._clock, bandwidth, len(self._processes), partial(done, *args))

    def _apply(self, process: Process, slices: Slices) -> None:
        process.turns.take(self._apply_seconds, self._after, process.latency, slices.count)

    def _after(self, delay: float, act: Callable[..., object], *args: object) -> None:
        if delay:
            self._clock.after(delay, act, *args)
        else:
            act(*args)


@dataclass(frozen=True)
class ServerSpec:
    """A simulated server.

    Attributes:
        ingress: bytes/s to the server, shared by all workers.
        egress: bytes/s from the server, shared by all workers.
        apply_seconds: time for one push; messages behind it wait.
        detect_seconds: until it detects the loss of a worker.
        shards: links of its shards, in place of ingress and egress; none: it is one process.
    """

    ingress: float = INF
    egress: float = INF
    apply_seconds: float = 0.0
    detect_seconds: float = 0.0
    shards: tuple[Shard, ...] = ()

    def interface(self, clock: Clock, machines: Collection[Machine]) -> Interface | Lines | Shards:
        """Return the interface to the workers on these machines.

        Raises:
            ValueError: they stand at sites, and the server has shards.
        """
        if any(machine.line is not None for machine in machines):
            if self.shards:
                raise ValueError("a server with shards whose workers stand at sites is not "
                                 "simulated; leave out one of them")
            return Lines(clock, machines, self.ingress, self.egress)
        if self.shards:
            return Shards(clock, self.shards, self.apply_seconds)
        return Interface(clock, self.ingress, self.egress)


UNLIMITED = ServerSpec()  # one process, which takes no time
