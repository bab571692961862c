"""One life of a simulated worker: its compute thread, and its end of the network.

The agent decides; the host carries out its commands in virtual time and books where the compute
thread's seconds go. It knows the server by what it can send there: a join, a push, a request for a
model, a leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wbsp.ps.engine import Ack, Directed, Effect, Granted, Stop
from wbsp.ps.store import Snapshot
from wbsp.runlog.report import Report, TimeBook
from wbsp.simulate.clock import Clock
from wbsp.simulate.links import INF, Interface, Transfer
from wbsp.simulate.machine import Observer, Worker
from wbsp.simulate.workload import Workload
from wbsp.sync.base import Push
from wbsp.worker.agent import Adopt, Agent, Command, Cut, Fetch


@dataclass(frozen=True)
class World:
    """What all hosts of a cluster share. The server's actions are called when a message is there.

    ingress, egress: the server's interface; model_bytes: of an update and of a version
    push, serve, leave: (host, ...) at the server
    retired: a host's life is over
    """

    clock: Clock
    workload: Workload
    observer: Observer | None
    ingress: Interface
    egress: Interface
    model_bytes: float
    push: Callable[[Host, Push, np.ndarray | None], None]
    serve: Callable[[Host], None]
    leave: Callable[[Host], None]
    retired: Callable[[], None]


class Host:
    """Comes when it is made; `agent` is None until the server has answered for its number."""

    __slots__ = ("world", "index", "worker", "report", "book", "agent", "alive", "over", "known",
                 "computing", "leaving", "snapshot", "transfer", "push_since", "pull_since")

    def __init__(self, world: World, index: int, worker: Worker, report: Report):
        self.world, self.index, self.worker, self.report = world, index, worker, report
        self.book = TimeBook(world.clock.now)
        self.book.seconds = report.seconds  # one sum over all lives
        self.agent: Agent | None = None
        self.alive = True
        self.over = False  # has left, or is dead
        self.known = False  # the server counts it in
        self.computing = self.leaving = False
        self.snapshot: Snapshot | None = None  # newest fetched
        self.transfer: Transfer | None = None  # newest, which may be over
        self.push_since = 0.0
        self.pull_since: float | None = None  # None: no fetch under way

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
        if self.transfer is not None:
            self.transfer.cancel()

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
        kind = "pull" if agent.fetching else "push" if agent.waiting == "ack" else "wait"
        if kind != self.book.kind:
            self._book(kind)

    def _begin_step(self) -> None:
        clock, index = self.world.clock, self.report.steps
        seconds = self.worker.step(index, clock.now)
        if not 0 <= seconds < INF:
            raise ValueError(f"worker {self.index}: a step time must be 0 s or more and finite, "
                             f"not {seconds} (step {index} at {clock.now:g} s)")
        self.computing = True
        if self.book.kind != "compute":
            self._book("compute")
        clock.after(seconds, self._end_step, seconds)

    def _end_step(self, seconds: float) -> None:
        if not self.alive:
            return
        world, report = self.world, self.report
        self.computing = False
        samples, loss = world.workload.step(self.index)
        report.steps += 1
        report.samples += samples
        report.loss = loss
        if world.observer is not None:
            self._book("compute")
            world.observer.step(self.index, world.clock.now, loss, report)
        self._obey(self.agent.step_done(samples, seconds))
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
                self.transfer = world.ingress.carry(
                    world.model_bytes, worker.up, worker.latency, 0.0,
                    self._deliver, world.push, command.push, update)
            elif kind is Fetch:
                self.pull_since = world.clock.now
                self.send(world.serve)
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
            commands = agent.directed(effect.direct)
        elif kind is Stop:
            commands = agent.stop(effect.reason)
        else:  # Final
            commands = agent.final(effect.version)
        self._obey(commands)
        self.proceed()

    def download(self, snapshot: Snapshot) -> None:
        """The server sends a version."""
        world, worker = self.world, self.worker
        self.transfer = world.egress.carry(world.model_bytes, worker.down, 0.0, worker.latency,
                                           self._fetched, snapshot)

    def _fetched(self, snapshot: Snapshot) -> None:
        if not self.alive:
            return
        report, now = self.report, self.world.clock.now
        report.pulls += 1
        report.last_pull_seconds = now - self.pull_since
        report.pull_seconds += report.last_pull_seconds
        self._network("pull", self.pull_since)
        self.snapshot = snapshot
        self._obey(self.agent.fetched(snapshot.version))
        self.proceed()

    def _end_push(self) -> None:
        report = self.report
        report.pushes += 1
        report.last_push_seconds = self.world.clock.now - self.push_since
        report.push_seconds += report.last_push_seconds
        self._network("push", self.push_since)

    def _network(self, kind: str, since: float) -> None:
        if self.world.observer is not None:
            self.world.observer.span(self.index, "network", kind, since, self.world.clock.now)
