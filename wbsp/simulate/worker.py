"""One life of a simulated worker: its compute thread, and its end of the network.

The agent decides; the host carries out its commands in virtual time and books where the compute
thread's seconds go. It knows the server by what it can send there: a join, a push, a request for a
model, a question, a leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wbsp.ps.decision import Directed, Granted
from wbsp.ps.effects import Ack, CutDecision, Effect, Stop
from wbsp.ps.store import Snapshot
from wbsp.runlog.report import PhaseTimer, Report
from wbsp.simulate.clock import Clock
from wbsp.simulate.links import INF, FairShareLink, Transfer
from wbsp.simulate.machine import Machine, Observer
from wbsp.simulate.workload import Workload
from wbsp.sync.base import Direct, Push
from wbsp.worker.agent import Adopt, Agent, Command, Cut, CutQuery, Fetch


@dataclass(frozen=True)
class ClusterContext:
    """What all hosts of a cluster share. The server's actions are called when a message is there.

    ingress, egress: the server's interface; model_bytes: of an update and of a version
    push, serve, ask, leave: (host, ...) at the server
    retired: a host's life is over
    """

    clock: Clock
    workload: Workload
    observer: Observer | None
    ingress: FairShareLink
    egress: FairShareLink
    model_bytes: float
    push: Callable[[SimulatedWorker, Push, np.ndarray | None, int], None]
    serve: Callable[[SimulatedWorker, int], None]
    ask: Callable[[SimulatedWorker, int, int, float], None]
    leave: Callable[[SimulatedWorker], None]
    retired: Callable[[], None]


class SimulatedWorker:
    """Comes when it is made; `agent` is None until the server has answered for its number.

    With an Ack that grants, the server sends the model along, and a fetch that the Ack brings about
    needs no request. If it brings about none, the model comes for nothing.
    """

    __slots__ = ("world", "index", "worker", "report", "book", "agent", "alive", "over", "known",
                 "computing", "leaving", "batch", "assigned", "newest_start",
                 "snapshot", "upload", "coming", "push_since", "pull_since")

    def __init__(self, world: ClusterContext, index: int, worker: Machine, report: Report):
        self.world, self.index, self.worker, self.report = world, index, worker, report
        self.book = PhaseTimer(world.clock.now)
        self.book.seconds = report.seconds  # one sum over all lives
        self.agent: Agent | None = None
        self.alive = True
        self.over = False  # has left, or is dead
        self.known = False  # the server counts it in
        self.computing = self.leaving = False
        self.batch: int | None = None  # examples of a step, if the server has said how many
        self.assigned: list[tuple[int, int]] = []  # (examples, start) of the next steps
        self.newest_start = -1  # of an assignment
        self.snapshot: Snapshot | None = None  # newest fetched
        self.upload: Transfer | None = None  # newest, which may be over
        self.coming: Transfer | None = None  # newest version on its way, the same
        self.push_since = self.pull_since = 0.0

    def send(self, act: Callable[..., None], *args: Any) -> None:
        """Send a control message: act(host, *args) when it is at the server."""
        self.world.clock.after(self.worker.latency, self._deliver, act, *args)

    def dismiss(self) -> None:
        """Leave in good order after the step."""
        self.leaving = True

    def die(self) -> None:
        """Be lost, and what is on its way with it."""
        self.alive = False
        self._retire()
        for transfer in (self.upload, self.coming):
            if transfer is not None:
                transfer.cancel()

    def settle(self) -> None:
        """Bring the book up to now."""
        if not self.over:
            self._book(self.book.kind)

    # The compute thread.

    def proceed(self) -> None:
        """Start the next step if nothing stands in the way, else book what is waited for."""
        agent = self.agent
        if self.computing or agent.finished:
            return
        if agent.waiting is None:
            if agent.stopped is None and not self.leaving:
                self._begin_step()
                return
            self._obey(agent.finish())
            if agent.finished:
                return
        waiting = agent.waiting
        kind = "pull" if agent.fetching else "wait" if waiting == "model" else "push"
        if kind != self.book.kind:
            self._book(kind)

    def _begin_step(self) -> None:
        clock, index, rule = self.world.clock, self.report.steps, self.agent.rule
        if self.assigned:
            chosen: tuple[int, ...] = self.assigned.pop(0)
        elif rule.shared:  # it has not been told yet which examples are its own
            self._book("data")
            return
        else:
            chosen = () if self.batch is None else (self.batch,)
        parts = rule.micro_batches
        share = chosen[0] / self.world.workload.batch if chosen else 1.0
        seconds = self.worker.seconds(index, clock.now, share / parts, parts)
        if not 0 <= seconds < INF:
            raise ValueError(f"worker {self.index}: a step time must be 0 s or more and finite, "
                             f"not {seconds} (step {index} at {clock.now:g} s)")
        self.computing = True
        if self.book.kind != "compute":
            self._book("compute")
        clock.after(seconds, self._end_step, seconds, chosen)

    def _end_step(self, seconds: float, chosen: tuple[int, ...]) -> None:
        if not self.alive:
            return
        world, report = self.world, self.report
        self.computing = False
        samples, loss = world.workload.step(self.index, *chosen)
        report.steps += 1
        report.samples += samples
        report.loss = loss
        if world.observer is not None:
            self._book("compute")
            world.observer.step(self.index, world.clock.now, loss, report)
        known = loss if loss == loss else None  # not NaN
        self._obey(self.agent.step_done(samples, seconds, loss=known))
        self.proceed()

    def _book(self, kind: str) -> None:
        book, now, observer = self.book, self.world.clock.now, self.world.observer
        if observer is not None and now > book.since:
            observer.span(self.index, "compute", book.kind, book.since, now)
        book.switch(kind, now)

    def _retire(self) -> None:
        if not self.over:
            self.settle()
            self.over = True
            self.world.retired()

    # The network.

    def _obey(self, commands: Iterable[Command]) -> None:
        """Carry out what the agent wants."""
        world, worker = self.world, self.worker
        for command in commands:
            kind = type(command)
            if kind is Cut:
                update = world.workload.cut(self.index)
                self.push_since = world.clock.now
                self.upload = world.ingress.carry(
                    world.model_bytes, worker.up, worker.latency, 0.0,
                    self._deliver, world.push, command.push, update,
                    command.fetch)
            elif kind is Fetch:
                self.pull_since = world.clock.now
                if not command.carried:
                    self.send(world.serve, command.number)
            elif kind is CutQuery:
                self.send(world.ask, *command)
            elif kind is Adopt:
                if world.observer is not None:
                    world.observer.adopt(self.index, world.clock.now, command.version,
                                         command.how)
                world.workload.adopt(self.index, self.snapshot.vector, command.how)
            else:  # Leave
                self._retire()
                self.send(world.leave)

    def _deliver(self, act: Callable[..., None], *args: Any) -> None:
        if self.alive:
            act(self, *args)

    def receive(self, effect: Effect) -> None:
        """A control message has come down."""
        if not self.alive:
            return
        agent, kind = self.agent, type(effect)
        if kind is Ack:
            self._end_push()
            commands = agent.acked(effect.granted, effect.hold)
        elif kind is Granted:
            commands = agent.granted(effect.version)
        elif kind is Directed:
            self._assign(effect.direct)
            commands = agent.directed(effect.direct)
        elif kind is CutDecision:
            commands = agent.decided(effect.number, effect.cut)
        elif kind is Stop:
            commands = agent.stop(effect.reason)
        else:  # Final
            commands = agent.final(effect.version)
        self._obey(commands)
        self.proceed()

    def download(self, number: int, snapshot: Snapshot) -> None:
        """The server sends a version: the answer to fetch `number`."""
        world, worker = self.world, self.worker
        self.coming = world.egress.carry(world.model_bytes, worker.down, 0.0, worker.latency,
                                         self._arrived, number, snapshot)

    def _arrived(self, number: int, snapshot: Snapshot, again: bool = False) -> None:
        if not self.alive:
            return
        if number == self.agent.fetching:
            self._fetched(snapshot)
        elif not again:  # perhaps the Ack that it came with is heard later in this moment
            self.world.clock.late(0.0, self._arrived, number, snapshot, True)

    def _fetched(self, snapshot: Snapshot) -> None:
        report, now = self.report, self.world.clock.now
        report.pulls += 1
        report.last_pull_seconds = now - self.pull_since
        report.pull_seconds += report.last_pull_seconds
        self._network("pull", self.pull_since)
        self.snapshot = snapshot
        self._obey(self.agent.fetched(snapshot.version))
        self.proceed()

    def _assign(self, direct: Direct) -> None:
        """Heed what `direct` says of the examples to come; what was heard before counts once."""
        if direct.batch is None:
            return
        if direct.start is None:
            self.batch = direct.batch
        elif direct.start > self.newest_start:
            self.newest_start = direct.start
            self.assigned.append((direct.batch, direct.start))

    def _end_push(self) -> None:
        report = self.report
        report.pushes += 1
        report.last_push_seconds = self.world.clock.now - self.push_since
        report.push_seconds += report.last_push_seconds
        self._network("push", self.push_since)

    def _network(self, kind: str, since: float) -> None:
        if self.world.observer is not None:
            self.world.observer.span(self.index, "network", kind, since, self.world.clock.now)
