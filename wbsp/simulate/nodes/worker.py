"""A simulated worker: its compute thread, and its end of the network.

The agent decides; the worker carries out the agent's commands in virtual time, and books how the
compute thread spends each second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from wbsp.core.agent import Adopt, Agent, Command, Cut, Expect, Leave
from wbsp.core.messages import (
    Ack,
    AskWork,
    Directed,
    Fetch,
    Message,
    Model,
    Range,
    ToWorker,
    Work,
)
from wbsp.core.stats import Phase, Report
from wbsp.core.store import Snapshot
from wbsp.core.work_sequence import WorkSequence
from wbsp.simulate.nodes.compute import ClusterContext, ComputeThread
from wbsp.simulate.world.links import Transfer
from wbsp.simulate.world.machine import Machine
from wbsp.simulate.world.shards import Slices
from wbsp.tensors.error_feedback import ErrorFeedback


class SimulatedWorker:
    """One incarnation of a worker; it is there from its construction on.

    The server sets `agent` when it admits the worker, and calls `receive` and `receive_model`. An
    Ack that grants is followed by the model without a request; where the agent does not want that
    model any more, it has travelled for nothing.
    """

    __slots__ = ("context", "index", "machine", "report", "agent", "compute", "alive", "over",
                 "leaving", "snapshot", "outgoing", "incoming", "push_since", "fetch_since",
                 "sending", "sent_to", "asked", "starved")

    agent: Agent

    def __init__(self, context: ClusterContext, index: int, machine: Machine, report: Report):
        self.context, self.index, self.machine, self.report = context, index, machine, report
        self.compute = ComputeThread(context, index, machine, report)
        self.alive = True
        self.over = False  # has left, or is dead
        self.leaving = False
        self.snapshot: Snapshot | None = None  # newest fetched
        self.outgoing: Transfer | Slices | None = None  # newest update, which may have arrived
        self.incoming: Transfer | Slices | None = None  # newest model, which may have arrived
        self.push_since = self.fetch_since = 0.0
        self.sending = ErrorFeedback(context.payload.wire)
        self.sent_to: int | None = None  # how far the newest push has come in data that all share
        self.asked = -1  # where it ended when more was asked for
        self.starved = False  # there is none now

    @property
    def held(self) -> int | None:
        """Version to which differences can be added; None: none, or there are no differences."""
        return None if self.snapshot is None or self.sending.wire.lossless else (
            self.snapshot.version)

    def share(self, at: int) -> None:
        """This worker trains data that all share, from this place of its sequence on."""
        self.compute.work = WorkSequence(at)

    def send(self, act: Callable[..., None], *args: Any) -> None:
        """Send a control message: act(worker, *args) is called when it reaches the server."""
        self.context.clock.after(self.machine.latency, self._deliver, act, *args)

    def dismiss(self) -> None:
        """Leave in good order after the step."""
        self.leaving = True

    def die(self) -> None:
        """Be lost, together with all messages on the way."""
        self.alive = False
        self._retire()
        for transfer in (self.outgoing, self.incoming):
            if transfer is not None:
                transfer.cancel()

    def settle(self) -> None:
        """Book the seconds up to now."""
        if not self.over:
            self.compute.enter(self.compute.timer.phase)

    def receive(self, message: ToWorker) -> None:
        """A message of the server without floats has arrived."""
        if not self.alive:
            return
        work = self.compute.work
        if isinstance(message, Ack):
            self._end_push()
            if work is not None and self.sent_to is not None:
                work.answer(self.sent_to)
        elif isinstance(message, Work):
            if work is not None and message.start < message.stop:
                work.give(Range(message.at, message.start, message.stop))
            self.starved = message.start == message.stop
        elif isinstance(message, Directed):
            self.compute.assign(message.direct)
        self._carry_out(self.agent.received(message))
        self.proceed()

    def receive_model(self, model: Model, snapshot: Snapshot, size: float,
                      again: bool = False) -> None:
        """The answer to a fetch has arrived, with the version in `size` bytes."""
        if not self.alive:
            return
        if model.request == self.agent.fetching:
            self._end_fetch(snapshot, size)
        elif not again:  # its Ack may be among the messages that arrive later at this moment
            self.context.clock.late(0.0, self.receive_model, model, snapshot, size, True)

    def proceed(self) -> None:
        """Start the next step, or book the phase of what the agent waits for."""
        agent, compute = self.agent, self.compute
        if compute.busy or agent.finished:
            return
        if agent.stopped is None and not self.leaving and not agent.undecided:
            self._ask_for_work()
        if agent.waiting is None:
            if agent.stopped is None and not self.leaving:
                compute.begin_step(agent.rule, self._end_step)
                if self.starved and not compute.busy:
                    self._carry_out(agent.starved())
                return
            self._carry_out(agent.finish())
            if agent.finished:
                return
        phase: Phase = "pull" if agent.fetching else "wait" if agent.waiting == "model" else "push"
        if phase != compute.timer.phase:
            compute.enter(phase)

    def _ask_for_work(self) -> None:
        """Ask for more of the data that all share: ahead, where no other may wait for that."""
        work = self.compute.work
        if work is None or work.end == self.asked:
            return
        ahead = self.context.workload.batch if self.agent.rule.wait == "never" else 0
        if work.end - work.trained <= ahead:
            self.asked = work.end
            self.send(self.context.server.request, AskWork(work.end, self.agent.seq))

    def _end_step(self, seconds: float, examples: tuple[int, ...]) -> None:
        if not self.alive:
            return
        samples, loss = self.compute.end_step(examples)
        known = loss if loss == loss else None  # not NaN
        commands = self.agent.step_done(samples, seconds, loss=known)
        if commands:
            self._carry_out(commands)
        self.proceed()

    def _carry_out(self, commands: Iterable[Command]) -> None:
        context = self.context
        for command in commands:
            if isinstance(command, Cut):
                update = context.workload.cut(self.index)
                if update is not None:
                    update = self.sending.send(update).vector
                self.push_since = context.clock.now
                self.sent_to = command.push.to
                self.outgoing = context.interface.push(
                    self.machine, context.payload.update, self._deliver, context.server.push,
                    command.push, update, command.fetch)
            elif isinstance(command, Expect):
                self.fetch_since = context.clock.now
            elif isinstance(command, Message):
                if isinstance(command, Fetch):
                    self.fetch_since = context.clock.now
                self.send(context.server.request, command)
            elif isinstance(command, Adopt):
                if context.observer is not None:
                    context.observer.adopt(self.index, context.clock.now, command.version,
                                           command.how)
                assert self.snapshot is not None, "nothing is adopted before it is fetched"
                context.workload.adopt(self.index, self.snapshot.vector, command.how)
            elif isinstance(command, Leave):
                self._retire()
                self.send(context.server.leave)

    def _deliver(self, act: Callable[..., None], *args: Any) -> None:
        if self.alive:
            act(self, *args)

    def _retire(self) -> None:
        if not self.over:
            self.settle()
            self.over = True
            self.context.server.present -= 1

    def _end_push(self) -> None:
        self.report.count_push(self.context.clock.now - self.push_since)
        self._show("push", self.push_since)

    def _end_fetch(self, snapshot: Snapshot, size: float) -> None:
        self.report.pull_bytes = int(size)
        self.context.payload.fetched += size
        self.report.count_pull(self.context.clock.now - self.fetch_since)
        self._show("pull", self.fetch_since)
        self.snapshot = snapshot
        self._carry_out(self.agent.fetched(snapshot.version))
        self.proceed()

    def _show(self, phase: Phase, since: float) -> None:
        context = self.context
        if context.observer is not None:
            context.observer.span(self.index, "network", phase, since, context.clock.now)
