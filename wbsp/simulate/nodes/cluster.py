"""The virtual-time cluster: the real decisions in a simulated world.

The synchronization models, the engine, the store and the workers' agents are the objects that run
on real machines. Simulated are the compute threads, the network and the passing of time. A message
takes the path of the real runtime:

    cut -> push -> engine.push -> Ack; with its grant the newest version -> adopt
    granted while waiting after a push:   Granted; with it the newest version -> adopt
    granted in some other way:            Granted -> Fetch -> the newest version -> adopt

An update or a version takes the link's latency plus its bytes at the link's bandwidth, shared with
others at the server's interface (where the server has shards: in slices, see `shards`); a control
message takes the latency alone, so that messages to one worker arrive in the order in which the
engine sent them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from wbsp.core.engine import Engine
from wbsp.core.messages import SharedData
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.core.stats import Report
from wbsp.core.store import Store
from wbsp.simulate.nodes.server import Evaluation, Evaluator, SimulatedServer
from wbsp.simulate.nodes.worker import Context, Join, Observer, SimulatedWorker
from wbsp.simulate.workloads.base import TimingWorkload, Workload
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.links import INF
from wbsp.simulate.world.machine import Incarnation, Machine
from wbsp.simulate.world.payload import Payload
from wbsp.simulate.world.shards import UNLIMITED, ServerSpec
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

    Raises:
        ValueError: `machines` is empty.
    """

    def __init__(self, model: SyncModel, machines: Sequence[Machine],
                 workload: Workload | None = None, server: ServerSpec = UNLIMITED, *,
                 model_bytes: float = 0.0, expected: int | None = None, stop_samples: float = INF,
                 outer: OuterOptimizer | None = None, wire: Codec = FLOAT32,
                 evaluator: Evaluator | None = None, log: Callable[..., None] | None = None,
                 observer: Observer | None = None, data: SharedData | None = None):
        if not machines:
            raise ValueError("a cluster needs at least one worker")
        trained: Workload = TimingWorkload() if workload is None else workload
        starts = [machine.incarnations[0].start for machine in machines]
        self.clock = Clock()
        self.machines = list(machines)
        self.workers: dict[int, SimulatedWorker] = {}  # index -> newest incarnation
        initial = trained.initial()
        self.payload = payload = Payload(model_bytes, wire, 0 if initial is None else initial.size,
                                         len(server.shards))
        self.reports = [Report(push_bytes=int(payload.update), pull_bytes=int(model_bytes))
                        for _ in machines]
        self.engine = Engine(model, Store(initial, outer=outer, wire=payload.wire),
                             starts.count(min(starts)) if expected is None else expected,
                             stop_samples, log)
        self.evaluations: list[Evaluation] = [] if evaluator is None else evaluator.results
        self._context = Context(self.clock, trained, observer, server.interface(self.clock),
                                payload, sum(len(machine.incarnations) for machine in machines))
        self.server = SimulatedServer(self._context, self.engine, server, evaluator, data)
        for index, machine in enumerate(machines):
            for incarnation in machine.incarnations:
                self.clock.at(incarnation.start, self._come, index, incarnation)
        if evaluator is not None:
            self.clock.at(0.0, self.server.check)

    @property
    def ended(self) -> float | None:
        """Virtual second at which the last worker had left; None during training."""
        return self.server.ended

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
        if self.engine.done:
            self._context.present -= 1
            return
        worker = SimulatedWorker(self._context, self.server.receive, index, self.machines[index],
                                 self.reports[index])
        self.workers[index] = worker
        if incarnation.end < INF:
            end = self._lose if incarnation.lost else SimulatedWorker.dismiss
            self.clock.at(incarnation.end, end, worker)
        worker.send(Join())

    def _lose(self, worker: SimulatedWorker) -> None:
        worker.die()
        self.server.lose(worker)


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
