"""Lines to the outside of sites, which the workers of a site share.

A transfer passes several shared links at once: its site's line and the server's interface. Rates
are max-min fair over all links (Bertsekas, Gallager, "Data networks", 1987: progressive filling):
they rise together until a transfer has all that its own link carries, or until a shared link is
full, whose transfers then keep their rate; the others rise further.

Each change costs a look at all transfers of the moment. `FairShareLink` costs less for many
transfers on a single link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.machine import INF, Line, Machine


class Flow:
    """A transfer through several shared links; `cap` bytes/s at most, `left` bytes to go."""

    __slots__ = ("_network", "links", "cap", "left", "rate", "end", "done", "args")

    def __init__(self, network: Network, links: Sequence[int], cap: float, size: float,
                 done: Callable[..., object], args: tuple[object, ...]):
        self._network, self.links, self.cap, self.left = network, links, cap, size
        self.rate, self.end = 0.0, INF
        self.done: Callable[..., object] | None = done  # None: cancelled
        self.args = args

    def cancel(self) -> None:
        """End the transfer without calling `done`, whether it has begun, is over, or neither."""
        self.done = None
        self._network.drop(self)


class Network:
    """Shared links, by index, of given rates in bytes/s, and the transfers through them."""

    def __init__(self, clock: Clock, capacities: Sequence[float]):
        self._clock, self._capacities = clock, capacities
        self._flows: dict[Flow, None] = {}  # in the order of their begin
        self._since = 0.0
        self._plan = 0

    def carry(self, size: float, cap: float, links: Sequence[int], lead: float, trail: float,
              done: Callable[..., object], *args: object) -> Flow:
        """Call done(*args) when `size` bytes have passed all `links`; else as `FairShareLink.carry`
        does."""
        if trail:
            done, args = self._clock.after, (trail, done, *args)
        shared = [link for link in links if self._capacities[link] < INF]
        flow = Flow(self, shared, cap, size, done, args)
        if lead:
            self._clock.after(lead, self._begin, flow)
        else:
            self._begin(flow)
        return flow

    def drop(self, flow: Flow) -> None:
        """Remove a transfer that was cancelled."""
        if flow in self._flows:
            self._advance()
            del self._flows[flow]
            self._share_out()

    def _begin(self, flow: Flow) -> None:
        if flow.done is None:
            return
        self._advance()
        self._flows[flow] = None
        self._share_out()

    def _advance(self) -> None:
        passed, self._since = self._clock.now - self._since, self._clock.now
        for flow in self._flows:
            if flow.rate < INF:
                flow.left = max(flow.left - flow.rate * passed, 0.0)

    def _share_out(self) -> None:
        """Find the rate of each transfer, and plan the next end."""
        free = list(self._capacities)
        users = [0] * len(free)
        for flow in self._flows:
            for link in flow.links:
                users[link] += 1
        rising = list(self._flows)
        while rising:
            level = min((free[link] / users[link] for link in range(len(free)) if users[link]),
                        default=INF)
            found = [flow for flow in rising if flow.cap <= level]
            if not found:  # a link is full
                full = {link for link in range(len(free))
                        if users[link] and free[link] / users[link] <= level}
                found = [flow for flow in rising if not full.isdisjoint(flow.links)]
            fixed = set(found)
            rising = [flow for flow in rising if flow not in fixed]
            for flow in found:
                flow.rate = min(flow.cap, level)
                for link in flow.links:
                    users[link] -= 1
                    free[link] = max(free[link] - flow.rate, 0.0) if users[link] else 0.0
        now = self._clock.now
        for flow in self._flows:
            flow.end = now + flow.left / flow.rate
        self._plan += 1
        if self._flows:
            self._clock.at(min(flow.end for flow in self._flows), self._end, self._plan)

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return  # a rate changed since, and another end was planned
        self._advance()
        over = [flow for flow in self._flows if flow.end <= self._clock.now]
        for flow in over:
            del self._flows[flow]
        self._share_out()
        for flow in over:
            if flow.done is not None:
                flow.done(*flow.args)


class Lines:
    """The interface of a server that is one process, and whose workers stand at sites.

    Attributes:
        moved: bytes that were sent on each site's line, both ways; of a line without a limit, none.
    """

    def __init__(self, clock: Clock, machines: Iterable[Machine], ingress: float, egress: float):
        lines = {machine.line.site: machine.line for machine in machines
                 if machine.line is not None}
        self._links = {site: 1 + place for place, site in enumerate(lines)}  # 0: the interface
        self._up = Network(clock, [ingress, *(line.up for line in lines.values())])
        self._down = Network(clock, [egress, *(line.down for line in lines.values())])
        self.moved = dict.fromkeys(lines, 0.0)

    def push(self, machine: Machine, size: float, done: Callable[..., object],
             *args: object) -> Flow:
        """Call done(*args) when an update of `size` bytes has arrived at the server."""
        line = self._passed(machine, size)
        return self._up.carry(size, machine.up, (0, self._links[line.site]), machine.latency, 0.0,
                              done, *args)

    def send(self, machine: Machine, size: float, done: Callable[..., object],
             *args: object) -> Flow:
        """Call done(*args) when a version that is sent now has arrived at the worker."""
        line = self._passed(machine, size)
        return self._down.carry(size, machine.down, (0, self._links[line.site]), 0.0,
                                machine.latency, done, *args)

    def _passed(self, machine: Machine, size: float) -> Line:
        line = machine.line
        assert line is not None, "all workers of a server stand at sites, or none"
        if line.limited:
            self.moved[line.site] += size
        return line
