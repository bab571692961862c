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
from wbsp.core.site.worker import Lacks, SiteWorker, Work
from wbsp.core.store import Snapshot
from wbsp.simulate.nodes.server import SimulatedServer
from wbsp.simulate.nodes.worker import Context, Join, Peer
from wbsp.simulate.world.lines import Flow
from wbsp.simulate.world.links import Transfer
from wbsp.simulate.world.machine import INF, Machine
from wbsp.simulate.world.server import UNLIMITED, ServerSpec
from wbsp.sync.base import SyncModel, WorkerRule
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


class SimulatedSite:
    """The line of a site to the server above.

    Args:
        context: of the server above.
        tell: as of a `SimulatedWorker`, to the server above.
        index: among the sites.
        machine: see `Site`.
        engine: of the site, with W_0.
        server: the site's own.
    """

    def __init__(self, context: Context, tell: Callable[..., None], index: int, machine: Machine,
                 engine: Engine, server: SiteServer):
        self.context, self.tell, self.index, self.machine = context, tell, index, machine
        self.alive = True
        self.incoming: Transfer | Flow | None = None
        self.begun = False  # W_0, or a later version, has come from above
        self.server = server
        self.worker = SiteWorker(INF, holds=0)
        self.worker.begin(engine)
        self._engine = engine
        engine.observe(self._made, lambda: self.worker.settled)
        self._newest: int | None = None  # version that was fetched
        self._sending = ErrorFeedback(context.payload.wire)

    @property
    def held(self) -> int | None:
        """As of a worker."""
        return None if self._sending.wire.lossless else self._newest

    # The server above.

    def admit(self, rule: WorkerRule, seq: int, run_steps: int, place: WorkPlace | None) -> None:
        self.worker.admit(Participant(self.index, rule, seq, run_steps), place,
                          None if place is None else place.data.epochs)

    def receive(self, message: ToWorker) -> None:
        if isinstance(message, LetGo):  # its workers finish without the server above
            if self.alive and not self.worker.settled:
                self.alive = False
                self.worker.settle()
                self.context.leaves()
                self.server.stop(message.reason)
            return
        self.worker.received(message, self.context.clock.now)
        self.go_on()

    def receive_model(self, model: Model, snapshot: Snapshot, size: float,
                      again: bool = False) -> None:
        agent = self.worker.agent
        assert agent is not None, "it was admitted"
        if model.request != agent.fetching:
            if not again:  # as for a worker
                self.context.clock.late(0.0, self.receive_model, model, snapshot, size, True)
            return
        self.context.payload.arrives(size)
        self._newest = snapshot.version
        self.worker.fetched(snapshot.version, snapshot.vector, self.context.clock.now)
        self.go_on()

    def send(self, message: Join | Command) -> None:
        """Send a message without floats to the server above."""
        self.context.clock.after(self.machine.latency, self.tell, self, message)

    # The site's own server.

    def go_on(self) -> None:
        """Handle what is due, in the run above and in the site's own."""
        worker, engine, now = self.worker, self._engine, self.context.clock.now
        while True:
            self._carry_out()
            if not self.begun and not (worker.fresh and (
                    worker.stopped is None or not worker.idle)):  # if it was stopped: only to end
                self.begun = True
                self.server.begin()
            if worker.stopped is not None and engine.stop_reason is None and not engine.done:
                self.server.stop(worker.stopped)
            if engine.done and not worker.finishing:
                worker.finish(now)
            worker.go_on(now)
            self._carry_out()
            if not self.server.go_on():
                return

    def _made(self, now: float) -> None:
        self.worker.made(now)
        self._carry_out()

    def _carry_out(self) -> None:
        commands = self.worker.commands
        while commands:
            match command := commands.popleft():
                case Cut():
                    self._push(command)
                case Leave():
                    self.context.leaves()
                    self.send(command)
                case Expect() | Work() | Lacks():
                    pass
                case _:
                    self.send(command)

    def _push(self, cut: Cut) -> None:
        context, progress, update = self.context, self.worker.progress, None
        if progress is not None:
            assert progress.cut is not None
            update = self._sending.send(progress.cut).vector
        context.interface.push(self.machine, context.payload.update, self.tell, self, cut, update)


class SiteServer(SimulatedServer):
    """The server of a site, as its workers see it.

    `above`, `tell`, `index` and `machine` are of its side of the server above: see `SimulatedSite`.
    """

    def __init__(self, context: Context, engine: Engine, spec: ServerSpec, data: SharedData | None,
                 above: Context, tell: Callable[..., None], index: int, machine: Machine):
        super().__init__(context, engine, spec, None, data)
        self._site = site = SimulatedSite(above, tell, index, machine, engine, self)
        # Before the site has begun.
        self._early: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._asked = False  # to join the server above
        self._gate: Gate[tuple[Peer, Cut, np.ndarray | None]] = Gate(lambda: site.worker.waits)

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
        """Stop all workers."""
        self._send(self.engine.stop(reason, self._clock.now))

    def go_on(self) -> bool:
        """Handle messages that have waited for the server above; return whether one was a push."""
        if self._site.worker.waits:
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
        if self._site.worker.settled:
            self._gate.release()
            answers += self._gate.through(())
        super()._tell(answers)
