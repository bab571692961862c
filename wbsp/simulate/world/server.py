"""A simulated server: its interface, and how long it works on a push."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from wbsp.limits import SHARDS
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.lines import Lines
from wbsp.simulate.world.links import Interface
from wbsp.simulate.world.machine import INF, Machine


def check_number(shards: int, given: str) -> None:
    """Raise ValueError, which begins with `given`, for more shards than a server has."""
    if shards > SHARDS:
        raise ValueError(f"{given}: a server has at most {SHARDS} shards")


@dataclass(frozen=True)
class ServerSpec:
    """A simulated server.

    Equal shards, each with a part of the model and of every transfer, take as long as one process
    that has the interfaces of all of them together, and works on a push for a part of the time.

    Attributes:
        ingress: bytes/s to the server, or to each of its shards; all workers share it.
        egress: bytes/s from the server, or from each of its shards; all workers share it.
        apply_seconds: time for one push, of all shards together; messages behind it wait.
        detect_seconds: until it detects the loss of a worker.
        shards: number of processes that hold a part of the model each; 1: the server does.
    """

    ingress: float = INF
    egress: float = INF
    apply_seconds: float = 0.0
    detect_seconds: float = 0.0
    shards: int = 1

    def interface(self, clock: Clock, machines: Collection[Machine]) -> Interface | Lines:
        """Return the interface to the workers on these machines."""
        ingress, egress = self.shards * self.ingress, self.shards * self.egress
        if any(machine.line is not None for machine in machines):
            return Lines(clock, machines, ingress, egress)
        return Interface(clock, ingress, egress)

    @property
    def push_seconds(self) -> float:
        """Seconds for one push, on which all shards work at the same time."""
        return self.apply_seconds / self.shards


UNLIMITED = ServerSpec()  # one process, which takes no time
