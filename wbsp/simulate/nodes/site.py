"""A simulated site: a server of its own for some of the workers, and one worker of the server
above.

    worker -> push -> the site's engine -> a version = a step of the site -> the agent above
    Cut: the versions' sum since the last cut -> the site's line -> the engine above
    Adopt: W_site = W_above + (W_site - anchor)

While the agent waits, the site does: it keeps its answers to the workers and their pushes. That is
`SiteWorker`, as of a real site; only a real one holds a cut back until a checkpoint has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from wbsp.core.agent import Command, Cut, Expect, Leave
from wbsp.core.engine import Engine
from wbsp.core.messages import (
    Ack,
    LetGo,
    Model,
    Outgoing,
    SharedData,
    ToWorker,
    WorkPlace,
)
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.core.participant import Participant
from wbsp.core.site.gate import Gate
from wbsp.core.site.worker import SiteWorker
from wbsp.core.store import Snapshot
from wbsp.simulate.nodes.server import SimulatedServer
from wbsp.simulate.nodes.worker import Context, Join, Peer
from wbsp.simulate.world.lines import Flow
from wbsp.simulate.world.links import Transfer
from wbsp.simulate.world.machine import INF, Machine
from wbsp.simulate.world.server import UNLIMITED, ServerSpec
from wbsp.sync.base import UNFIT, SyncModel, WorkerRule
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.tensors.error_feedback import ErrorFeedback


@dataclass
class Site:
    """A site of a cluster.

    Attributes:
        workers: their indices; each worker has one site.
        model: the synchronization model within it.
        machine: its server's; only the link and the line to the server above matter.
        server: links and times of its server, as its workers see it.
        outer: outer step of its versions.
        wire: format within it.
        log: as of a cluster, for its own server's events.
    """

    workers: Sequence[int]
    model: SyncModel
    machine: Machine
    server: ServerSpec = UNLIMITED
    outer: OuterOptimizer = field(default_factory=OuterOptimizer)
    wire: Codec = FLOAT32
    log: Callable[..., None] | None = None


class SimulatedSite(SiteWorker):
    """A site as a worker of the server above.

    Args:
        context: of the server above.
        tell: as of a `SimulatedWorker`, to the server above.
        index: among the sites.
        machine: see `Site`.
        engine: of the site, with W_0.
    """

    def __init__(self, context: Context, tell: Callable[..., None], index: int, machine: Machine,
                 engine: Engine):
        super().__init__()
        self._again = INF
        self.context, self.tell, self.index, self.machine = context, tell, index, machine
        self.alive = True
        self.incoming: Transfer | Flow | None = None
        self.begun = False  # W_0, or a later version, has come from above
        self.server: SiteServer
        self._engine = engine
        engine.observe(self._made)
        self._life: Participant | None = None
        self._snapshot: Snapshot | None = None  # newest that was fetched
        self._sending = ErrorFeedback(context.payload.wire)
        self._unfit = False  # a cut since the last version was rejected because of its values

    @property
    def _member(self) -> Participant | None:
        return self._life

    @property
    def held(self) -> int | None:
        """As of a worker."""
        return None if self._snapshot is None or self._sending.wire.lossless else (
            self._snapshot.version)

    # The server above.

    def admit(self, rule: WorkerRule, seq: int, run_steps: int, place: WorkPlace | None) -> None:
        engine, self._life = self._engine, Participant(self.index, rule, seq, run_steps)
        if place is not None and engine is not None:  # its pushes name their positions
            self._begin_work(engine, place, place.data.epochs)

    def receive(self, message: ToWorker) -> None:
        if isinstance(message, LetGo):  # its workers finish without the server above
            if self.alive and not self.settled:
                self.alive, self.settled = False, True
                self.context.present -= 1
                self.server.stop(message.reason)
            return
        if isinstance(message, Ack) and message.reason in UNFIT:
            self._unfit = True
        now = self.context.clock.now
        self._heard(message, now)
        self._act(lambda one: one.received(message, now))
        self.go_on()

    def receive_model(self, model: Model, snapshot: Snapshot, size: float,
                      again: bool = False) -> None:
        assert self._agent is not None, "it was admitted"
        if model.request != self._agent.fetching:
            if not again:  # as for a worker
                self.context.clock.late(0.0, self.receive_model, model, snapshot, size, True)
            return
        self.context.payload.fetched += size
        self._snapshot = snapshot
        self._act(lambda one: one.fetched(snapshot.version))
        self.go_on()

    def send(self, message: Join | Command) -> None:
        """Send a message without floats to the server above."""
        self.context.clock.after(self.machine.latency, self.tell, self, message)

    # The site's own server.

    def go_on(self) -> None:
        """Do what is due, above and within."""
        engine, now = self._engine, self.context.clock.now
        assert engine is not None
        while True:
            self._carry_out(now)
            if self.stopped is not None and not self.begun and not self._due:
                self.begun = True  # only to end
                self.server.begin()
            if self.stopped is not None and engine.stop_reason is None and not engine.done:
                self.server.stop(self.stopped)
            if engine.done and not self._finishing:
                self._finish(now)
            self._starve_if_dry(now)
            self._finish_if_due(now)
            self._ask_for_work(now)
            if not self.server.go_on():
                return

    def _take(self, cut: Cut, now: float) -> None:
        super()._take(cut, now)
        context, progress, update = self.context, self._progress, None
        if progress is not None:
            assert progress.cut is not None
            update = self._sending.send(progress.cut).vector
        context.interface.push(self.machine, context.payload.update, self.tell, self, cut, update)

    def _adopt(self, version: int, now: float) -> None:
        agent, snapshot = self._agent, self._snapshot
        assert agent is not None and snapshot is not None, "a version is adopted after its fetch"
        if self.begun or version:
            drop, self._unfit = self._unfit, False
            self._become(snapshot.vector, version, now, drop)
        self._fresh = False
        self.settled = agent.finished
        if not self.begun:
            self.begun = True
            self.server.begin()

    def _request(self, command: Command) -> None:
        if not isinstance(command, Expect):
            self.send(command)

    def _leave(self) -> None:
        self.context.present -= 1
        self.send(Leave())


class SiteServer(SimulatedServer):
    """The server of a site, as its workers see it; `site` is its side of the server above."""

    def __init__(self, context: Context, engine: Engine, spec: ServerSpec, site: SimulatedSite,
                 data: SharedData | None):
        super().__init__(context, engine, spec, None, data)
        self._site = site
        # Before the site has begun.
        self._early: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._asked = False  # to join the server above
        self._gate: Gate[tuple[Peer, Cut, np.ndarray | None]] = Gate(lambda: site.waits)
        site.server = self

    def receive(self, worker: Peer, message: Join | Command,
                update: np.ndarray | None = None) -> None:
        if not self._asked:
            self._asked = True
            self._site.send(Join())
        if self._site.begun:
            super().receive(worker, message, update)
        else:
            self._early.append((self.receive, (worker, message, update)))

    def lose(self, worker: Peer) -> None:
        if self._site.begun:
            super().lose(worker)
        else:
            self._early.append((self.lose, (worker,)))

    def begin(self) -> None:
        """Handle what came before the first version from above."""
        early, self._early = self._early, []
        for act, args in early:
            act(*args)

    def stop(self, reason: str) -> None:
        """Tell all workers to finish."""
        self._send(self.engine.stop(reason, self._clock.now))

    def go_on(self) -> bool:
        """Do what has waited for the server above; return whether a push was among it."""
        if self._site.waits:
            return False
        self._tell(self.engine.feed(self._clock.now))
        came = False
        for worker, cut, update in self._gate.pushes():
            came = True
            if self._joined.get(worker.index) is worker and worker.alive:
                super()._handle(worker, cut, update)
        return came

    def _handle(self, worker: Peer, message: Join | Command,
                update: np.ndarray | None) -> None:
        if isinstance(message, Cut) and self._gate.keeps(worker.index, (worker, message, update)):
            return
        super()._handle(worker, message, update)
        self._site.go_on()

    def _forget(self, worker: Peer, reason: str, finished: bool = False) -> None:
        super()._forget(worker, reason, finished)
        if not self.context.present and not self.engine.active and not self.engine.done:
            self.stop("no worker is left")
        self._site.go_on()

    def _tell(self, outgoing: Iterable[Outgoing]) -> None:
        answers = self._gate.through(outgoing)
        if self._site.settled:
            self._gate.release()
            answers += self._gate.through(())
        super()._tell(answers)
