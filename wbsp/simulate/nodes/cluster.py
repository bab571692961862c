"""The virtual-time cluster: the real decisions in a simulated world.

The synchronization models, the engine, the store and the workers' agents are the objects that run
on real machines. Simulated are the compute threads, the network and the passing of time. A message
takes the path of the real runtime:

    cut -> push -> engine.push -> Ack; with its grant the newest version -> adopt
    granted while waiting after a push:   Granted; with it the newest version -> adopt
    granted in some other way:            Granted -> Fetch -> the newest version -> adopt

With sites, the same holds between a site's server and its workers, and between the server above and
the sites: see `site`.

An update or a version takes the link's latency plus its bytes at the link's bandwidth, shared with
others at the server's interface ; a control
message takes the latency alone, so that messages to one worker arrive in the order in which the
engine sent them.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from wbsp.core.engine import Engine
from wbsp.core.messages import SharedData
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.core.site.worker import objection
from wbsp.core.stats import Member, Report
from wbsp.core.store import Store
from wbsp.simulate.nodes.server import Evaluation, Evaluator, SimulatedServer
from wbsp.simulate.nodes.site import Site, SiteServer
from wbsp.simulate.nodes.worker import Context, Join, Observer, SimulatedWorker
from wbsp.simulate.workloads.base import TimingWorkload, Workload
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.lines import Lines
from wbsp.simulate.world.machine import INF, Incarnation, Machine
from wbsp.simulate.world.payload import Payload
from wbsp.simulate.world.server import UNLIMITED, ServerSpec
from wbsp.sync.base import SyncModel
from wbsp.tensors.codecs import FLOAT32, Codec


class Cluster:
    """N workers and a server in virtual time; `run` it, then read its public attributes.

    A worker's seconds are booked from its join to its end; each second of its compute thread is
    booked once, in `reports[i].seconds`.

    Args:
        model: the synchronization model.
        machines: machines[i] is that of worker i.
        workload: what the workers train; default: nothing, they only take time.
        server: its links, and its seconds for a push.
        model_bytes: of one update and of one version as float32.
        expected: workers that begin together; default: all that are present at 0 s.
        stop_samples: ends the run after this many pushed samples.
        outer: outer step of a version; default: identity.
        wire: format of updates and versions.
        evaluator: measures versions, and may end the run.
        log: log(now, kind, **fields) is called for each event of the server.
        observer: called for the events of the workers.
        data: data that all workers share; default: each has its own.
        sites: servers between this one and the workers, each of which belongs to one site; this
            one's workers are the sites then, by their place here. None: one star.

    Attributes:
        engine: of the server; with sites, of the one above.
        servers: the server of each worker.

    Raises:
        ValueError: `machines` is empty, the sites are no division of the workers, or the model
            above is one that no site can follow.
    """

    def __init__(self, model: SyncModel, machines: Sequence[Machine],
                 workload: Workload | None = None, server: ServerSpec = UNLIMITED, *,
                 model_bytes: float = 0.0, expected: int | None = None, stop_samples: float = INF,
                 outer: OuterOptimizer | None = None, wire: Codec = FLOAT32,
                 evaluator: Evaluator | None = None, log: Callable[..., None] | None = None,
                 observer: Observer | None = None, data: SharedData | None = None,
                 sites: Sequence[Site] = ()):
        if not machines:
            raise ValueError("a cluster needs at least one worker")
        _check(sites, len(machines), model)
        trained: Workload = TimingWorkload() if workload is None else workload
        self.clock = Clock()
        self.machines = list(machines)
        self.workers: dict[int, SimulatedWorker] = {}  # index -> newest incarnation
        initial = trained.initial()
        size = 0 if initial is None else initial.size
        self.payload = payload = Payload(model_bytes, wire, size, server.shards)
        self.evaluations: list[Evaluation] = [] if evaluator is None else evaluator.results
        mine = [site.machine for site in sites] or self.machines
        starts = [machine.incarnations[0].start for machine in machines]
        if sites:
            starts = [min(starts[worker] for worker in site.workers) for site in sites]
        self.engine = Engine(model, Store(initial, outer=outer, wire=payload.wire,
                                          statistics=trained.statistics),
                             starts.count(min(starts)) if expected is None else expected,
                             stop_samples, log)
        present = len(sites) or sum(len(machine.incarnations) for machine in machines)
        context = Context(self.clock, trained, observer, server.interface(self.clock, mine),
                          payload, present)
        self.server = SimulatedServer(context, self.engine, server, evaluator, data)
        self.servers: list[SimulatedServer] = [self.server] * len(machines)
        for index, site in enumerate(sites):
            one = self._site(index, site, model_bytes, data)
            for worker in site.workers:
                self.servers[worker] = one
        self._mates = Counter(self.servers)
        self.reports = [Report(push_bytes=int(one.context.payload.update),
                               pull_bytes=int(model_bytes)) for one in self.servers]
        for index, machine in enumerate(machines):
            for incarnation in machine.incarnations:
                self.clock.at(incarnation.start, self._come, index, incarnation)
        if evaluator is not None:
            self.clock.at(0.0, self.server.check)

    @property
    def ended(self) -> float | None:
        """Virtual second at which the last worker had left; None during training."""
        return self.server.ended

    @property
    def members(self) -> Mapping[int, Member]:
        """Worker -> what its server has counted of it."""
        if self.servers[0] is self.server:
            return self.engine.members
        return {worker: server.engine.members[worker] for worker, server in enumerate(self.servers)
                if worker in server.engine.members}

    def mates(self, worker: int) -> int:
        """Return the number of workers that have this one's server."""
        return self._mates[self.servers[worker]]

    @property
    def pushed(self) -> float:
        """Bytes of all updates, those of sites included."""
        sums = Counter[SimulatedServer]()
        for server, report in zip(self.servers, self.reports, strict=True):
            sums[server] += report.pushes
        if self.server not in sums:
            sums[self.server] = sum(member.pushes for member in self.engine.members.values())
        return sum(server.context.payload.update * pushes for server, pushes in sums.items())

    @property
    def fetched(self) -> float:
        """Bytes of all versions that have arrived, those at sites included."""
        return sum(server.context.payload.fetched
                   for server in dict.fromkeys([self.server, *self.servers]))

    @property
    def moved(self) -> dict[int, float]:
        """Site -> bytes that were sent on its line to the outside; empty where no site has one."""
        interface = self.server.context.interface
        return interface.moved if isinstance(interface, Lines) else {}

    def run(self, until: float = INF) -> bool:
        """Run until training is over, or up to virtual second `until`; may be called again.

        Args:
            until: virtual seconds.

        Returns:
            True if no event is left: training is over, or all workers are lost.

        Raises:
            RuntimeError: workers wait for an event that will never happen.
        """
        with nullcontext() if self.engine.store.size else _few_collections():
            over = self.clock.run(until)
        if over:
            stuck = [worker.index for worker in self.workers.values() if not worker.over]
            if stuck:
                raise RuntimeError(f"no event is left, but workers {stuck[:8]} wait "
                                   f"({self.engine.model.name}; {len(self.engine.active)} workers "
                                   f"joined, {self.engine.rendezvous.expected} were expected)")
        for worker in self.workers.values():
            worker.settle()
        return over

    def _come(self, index: int, incarnation: Incarnation) -> None:
        """Start an incarnation of worker `index`; one that is still present is lost."""
        former = self.workers.get(index)
        if former is not None:
            former.die()
        server = self.servers[index]
        if server.engine.done:
            server.context.leaves()
            return
        worker = SimulatedWorker(server.context, server.receive, index, self.machines[index],
                                 self.reports[index])
        self.workers[index] = worker
        if incarnation.end < INF:
            end = self._lose if incarnation.lost else SimulatedWorker.dismiss
            self.clock.at(incarnation.end, end, worker)
        worker.send(Join(server.context.workload.sgd))

    def _lose(self, worker: SimulatedWorker) -> None:
        worker.die()
        self.servers[worker.index].lose(worker)

    def _site(self, index: int, site: Site, model_bytes: float,
              data: SharedData | None) -> SiteServer:
        """Return the server of a site, which has joined nothing yet."""
        machines, above = [self.machines[worker] for worker in site.workers], self.server.context
        initial = self.engine.store.latest.vector
        payload = Payload(model_bytes, site.wire, self.engine.store.size, site.server.shards)
        context = Context(self.clock, above.workload, above.observer,
                          site.server.interface(self.clock, machines), payload,
                          sum(len(machine.incarnations) for machine in machines))
        starts = [machine.incarnations[0].start for machine in machines]
        store = Store(initial, outer=site.outer, wire=payload.wire, site={},
                      statistics=above.workload.statistics)
        engine = Engine(site.model, store,
                        starts.count(min(starts)), log=site.log)
        return SiteServer(context, engine, site.server, data, above, self.server.receive, index,
                          site.machine)


def _check(sites: Sequence[Site], workers: int, model: SyncModel) -> None:
    """Raise ValueError for sites that cannot be."""
    if not sites:
        return
    found = sorted(worker for site in sites for worker in site.workers)
    if found != list(range(workers)) or not all(site.workers for site in sites):
        raise ValueError("each worker belongs to one site, and each site has a worker")
    if reason := objection(model.rule, model.name):
        raise ValueError(reason)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Run the garbage collector rarely in the body.

    A study without tensors makes no reference cycles, and the search for cycles among all pending
    events takes up to a third of a large cluster's time.
    """
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
