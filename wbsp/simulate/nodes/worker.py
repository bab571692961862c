"""A simulated worker: its compute thread, its end of the network, and its observer.

The agent decides; the worker carries out the agent's commands in virtual time, and books how the
compute thread spends each second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from wbsp.core.agent import Adopt, Agent, Command, Cut, Expect, Leave
from wbsp.core.messages import (
    Ack,
    Fetch,
    LetGo,
    Model,
    ToWorker,
    WorkPlace,
)
from wbsp.core.participant import Participant
from wbsp.core.stats import Lane, Phase, PhaseTimer, Report
from wbsp.core.store import Snapshot
from wbsp.simulate.workloads.base import Workload
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.lines import Flow, Lines
from wbsp.simulate.world.links import Interface, Transfer
from wbsp.simulate.world.machine import INF, Machine
from wbsp.simulate.world.payload import Payload
from wbsp.sync.base import WorkerRule
from wbsp.tensors.error_feedback import ErrorFeedback


class Observer:
    """Observer of the workers' events; override the methods you need. Times in seconds.

    The engine's `log` receives the server's events.
    """

    def span(self, worker: int, lane: Lane, kind: Phase, start: float, end: float) -> None:
        """Handle the end of a period.

        Args:
            worker: index of the worker.
            lane: "compute" or "network".
            kind: lane "compute": the thread's phase, one of `PHASES`; lane "network": a push until
                its answer, or a fetch ("pull") until the model arrived.
            start: seconds.
            end: seconds.
        """

    def step(self, worker: int, now: float, loss: float, report: Report) -> None:
        """Handle the end of a step.

        Args:
            worker: index of the worker.
            now: seconds.
            loss: of the step.
            report: running totals up to this step.
        """

    def adopt(self, worker: int, now: float, version: int, how: str) -> None:
        """Handle a version that is about to become the live model.

        Args:
            worker: index of the worker.
            now: seconds.
            version: number of the version.
            how: "replace" or "rebase".
        """


class Join(NamedTuple):
    """The message in which a worker requests admission; `sgd` as in `Workload`."""

    sgd: bool = False


@dataclass
class Context:
    """The objects that the server and all workers of a cluster share.

    Attributes:
        interface: of the server, for updates and versions; `payload` gives their bytes.
        present: incarnations of workers that are present or will start.
    """

    clock: Clock
    workload: Workload
    observer: Observer | None
    interface: Interface | Lines
    payload: Payload
    present: int = 0

    def leaves(self) -> None:
        """Note that an incarnation of a worker has left, or will not start."""
        self.present -= 1


class Peer(Protocol):
    """Who is a worker of a simulated server: a worker, or a site.

    The server calls `admit` when it has joined, `receive` with each message without floats, and
    `receive_model` with a version when that has arrived in `size` bytes.

    Attributes:
        index: among the workers of the server.
        machine: of which only the link matters to the server.
        alive: it was not lost.
        incoming: newest version in transit, which may have arrived.
    """

    index: int
    machine: Machine
    alive: bool
    incoming: Transfer | Flow | None

    @property
    def held(self) -> int | None:
        """Version to which differences can be added, or None."""

    def admit(self, rule: WorkerRule, seq: int, run_steps: int, place: WorkPlace | None
              ) -> None: ...

    def receive(self, message: ToWorker) -> None: ...

    def receive_model(self, model: Model, snapshot: Snapshot, size: float) -> None: ...


class SimulatedWorker:
    """One incarnation of a worker, present from its construction on.

    tell(worker, message, update) is called when a message of the worker has reached the server,
    which calls what a `Peer` has. The model follows an Ack that grants it, without a request; it is
    discarded if the agent does not need it any more.

    A server that directs batch sizes either fixes the size of all later steps, or assigns to each
    step a part of the stream of examples that all workers share.
    """

    __slots__ = ("context", "tell", "index", "machine", "report", "participant", "timer", "busy",
                 "alive", "over", "leaving", "snapshot", "outgoing", "incoming", "push_since",
                 "fetch_since", "sending")

    participant: Participant

    def __init__(self, context: Context, tell: Callable[..., None], index: int, machine: Machine,
                 report: Report):
        self.context, self.tell = context, tell
        self.index, self.machine, self.report = index, machine, report
        # one sum over all incarnations
        self.timer = PhaseTimer(context.clock.now, seconds=report.seconds)
        self.busy = False  # in a step
        self.alive = True
        self.over = False  # has left, or was lost
        self.leaving = False
        self.snapshot: Snapshot | None = None  # newest fetched
        # The newest update and the newest version, which may have arrived.
        self.outgoing: Transfer | Flow | None = None
        self.incoming: Transfer | Flow | None = None
        self.push_since = self.fetch_since = 0.0
        self.sending = ErrorFeedback(context.payload.wire)

    @property
    def agent(self) -> Agent:
        return self.participant.agent

    @property
    def held(self) -> int | None:
        """Version to which differences can be added, or None."""
        return None if self.snapshot is None or self.sending.wire.lossless else (
            self.snapshot.version)

    def admit(self, rule: WorkerRule, seq: int, run_steps: int, place: WorkPlace | None) -> None:
        """Begin as a member; the arguments are those of `Participant`."""
        self.participant = Participant(self.index, rule, seq, run_steps, place, again=INF)
        if rule.sizes and place is not None:
            self.participant.follows(self.context.workload.least)

    def send(self, message: Join | Command) -> None:
        """Send a message without floats to the server."""
        self.context.clock.after(self.machine.latency, self._deliver, message)

    def dismiss(self) -> None:
        """Leave in good order after the step."""
        self.leaving = True

    def die(self) -> None:
        """Lose this worker, together with all messages in flight."""
        self.alive = False
        self._retire()
        for transfer in (self.outgoing, self.incoming):
            if transfer is not None:
                transfer.cancel()

    def settle(self) -> None:
        """Book the seconds up to now."""
        if not self.over:
            self._enter(self.timer.phase)

    # Messages of the server.

    def receive(self, message: ToWorker) -> None:
        """Handle a message of the server without floats."""
        if not self.alive:
            return
        if isinstance(message, LetGo):
            self.die()
            return
        if isinstance(message, Ack):
            self.report.count_push(self.context.clock.now - self.push_since)
            self._show("network", "push", self.push_since)
        self._carry_out(self.participant.received(message, self.context.clock.now))
        self.proceed()

    def receive_model(self, model: Model, snapshot: Snapshot, size: float,
                      again: bool = False) -> None:
        """Handle the answer to a fetch, with the version in `size` bytes."""
        if not self.alive:
            return
        clock = self.context.clock
        if model.request != self.agent.fetching:
            if not again:  # its Ack may be among the messages that arrive later at this moment
                clock.late(0.0, self.receive_model, model, snapshot, size, True)
            return
        self.context.payload.arrives(size)
        self.report.count_pull(clock.now - self.fetch_since, int(size))
        self._show("network", "pull", self.fetch_since)
        self.snapshot = snapshot
        self._carry_out(self.participant.fetched(snapshot.version))
        self.proceed()

    # The compute thread.

    def proceed(self) -> None:
        """Start the next step, or book the phase of what the agent waits for."""
        participant, agent = self.participant, self.agent
        if self.busy or agent.finished:
            return
        if not self.leaving:
            self._carry_out(participant.due(self.context.clock.now))
        if agent.waiting is None:
            if agent.stopped is None and not self.leaving:
                examples = participant.take()
                if examples is not None:
                    self._begin_step(examples)
                    return
                self._enter("data")
                self._carry_out(participant.starved())
                return
            self._carry_out(participant.finish())
            if agent.finished:
                return
        if agent.waits_in != self.timer.phase:
            self._enter(agent.waits_in)

    def _begin_step(self, examples: tuple[Any, ...]) -> None:
        """Start a step on these examples: see `Participant.take`.

        Raises:
            ValueError: the step time is negative or not finite.
        """
        clock, index, rule = self.context.clock, self.report.steps, self.agent.rule
        parts = rule.micro_batches
        share = examples[0] / self.context.workload.batch if examples else 1.0
        seconds = self.machine.seconds(index, clock.now, share / parts, parts)
        if not 0 <= seconds < INF:
            raise ValueError(f"worker {self.index}: a step time must be 0 s or more and finite, "
                             f"not {seconds} (step {index} at {clock.now:g} s)")
        self.busy = True
        self.participant.step_begins()
        if (part := self.participant.part) != 1.0:
            examples = *examples, part
        if self.timer.phase != "compute":
            self._enter("compute")
        clock.after(seconds, self._end_step, seconds, examples)

    def _end_step(self, seconds: float, examples: tuple[Any, ...]) -> None:
        """Train the step that has ended, on `examples`."""
        if not self.alive:
            return
        context, report = self.context, self.report
        self.busy = False
        samples, loss = context.workload.step(self.index, *examples)
        report.steps += 1
        report.samples += samples
        report.loss = loss
        if context.observer is not None:
            self._enter("compute")
            context.observer.step(self.index, context.clock.now, loss, report)
        known = loss if loss == loss else None  # not NaN
        self._carry_out(self.participant.step_done(samples, seconds, loss=known))
        self.proceed()

    def _carry_out(self, commands: Iterable[Command]) -> None:
        context = self.context
        for command in commands:
            if isinstance(command, Cut):
                update = context.workload.cut(self.index)
                if update is not None:
                    update = self.sending.send(update).vector
                self.push_since = context.clock.now
                self.outgoing = context.interface.push(
                    self.machine, context.payload.update, self._deliver, command, update)
            elif isinstance(command, Expect):
                self.fetch_since = context.clock.now
            elif isinstance(command, Adopt):
                if context.observer is not None:
                    context.observer.adopt(self.index, context.clock.now, command.version,
                                           command.how)
                assert self.snapshot is not None, "a version is adopted after its fetch"
                context.workload.adopt(self.index, self.snapshot.vector, command.how)
            else:
                if isinstance(command, Fetch):
                    self.fetch_since = context.clock.now
                elif isinstance(command, Leave):
                    self._retire()
                self.send(command)

    def _deliver(self, message: Join | Command, update: np.ndarray | None = None) -> None:
        if self.alive:
            self.tell(self, message, update)

    def _retire(self) -> None:
        if not self.over:
            self.settle()
            self.over = True
            self.context.leaves()

    def _enter(self, phase: Phase) -> None:
        """End the period of the present phase now, and begin one of `phase`."""
        timer, now = self.timer, self.context.clock.now
        if now > timer.since:
            self._show("compute", timer.phase, timer.since)
        timer.switch(phase, now)

    def _show(self, lane: Lane, phase: Phase, since: float) -> None:
        context = self.context
        if context.observer is not None:
            context.observer.span(self.index, lane, phase, since, context.clock.now)
