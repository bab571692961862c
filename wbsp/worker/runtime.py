"""One worker in one run: the agent's commands, carried out on a replica and a link.

The compute thread calls `start`, `step_done` at each step's end, and `finish`. What comes in over
the link is told to the agent in the communication thread; the model's variables are read and
written by the compute thread alone. Keras is not known here.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wbsp.layout import TensorSpec
from wbsp.runlog.report import PhaseTimer, Report
from wbsp.runlog.worker import WorkerLog
from wbsp.wire import messages as m
from wbsp.worker.agent import Adopt, Agent, Command, Cut, CutQuery, Fetch, Leave
from wbsp.worker.transport import Transport

if TYPE_CHECKING:
    from wbsp.worker.stream import Assignments

_GRAIN = 0.5  # seconds between two looks for an interrupt while waiting
_SAY_EVERY = 15.0  # seconds between two lines about the same wait


class Replica(Protocol):
    """The live model x and its anchor, as flat float32 vectors [size]."""

    layout: Sequence[TensorSpec]

    def read(self) -> np.ndarray:
        """x; from here on to the next `stepped` or `adopt` it is what it is now, whatever is
        written to the variables."""

    def cut(self) -> np.ndarray:
        """Return x - anchor, a new array; anchor = x."""

    def adopt(self, vector: np.ndarray, how: str) -> None:
        """`replace`: x = W; `rebase`: x = W + (x - anchor); anchor = W. `vector` is kept."""

    def stepped(self) -> None:
        """A step has changed x."""


class WorkerRuntime:
    """Listener of a link and driver of an agent.

    interrupted: asked while waiting; True ends the wait, and the worker leaves without the final
                 version
    usage:       answers with the shares (0..1) of the processors and of the memory in use
    assignments: hears which examples this worker is to train next, under a model that says so
    """

    def __init__(self, link: Transport, replica: Replica, log: WorkerLog | None = None,
                 say: Callable[[str], None] = print,
                 interrupted: Callable[[], bool] = lambda: False,
                 usage: Callable[[], tuple[float, float]] = lambda: (None, None),
                 assignments: Assignments | None = None):
        self.link, self.replica, self.log = link, replica, log
        self._say, self._interrupted = say, interrupted
        self._usage, self._assignments = usage, assignments
        self.agent: Agent | None = None
        self.book: PhaseTimer | None = None
        self.steps_before = 0  # of this worker in earlier lives
        self._totals = Report()
        self._news = threading.Condition()
        self._todo: list[Command] = []  # for the compute thread
        self._early: list[m.Message] = []  # heard before the agent was there to be told
        self._fetched: dict[int, np.ndarray] = {}  # version -> vector, until adopted
        self._held: np.ndarray | None = None  # newest adopted version, where a rule returns to it
        self._rejected, self._rejected_said = 0, -math.inf  # pushes; when they were last spoken of
        self._last_report: Report | None = None
        self._reason, self._wants_final, self._has_final = "finished", True, False
        self._newest, self._final_told = -1, False  # fetched version; Final was heard
        self._offset = 0.0  # of the run's time zero from the monotonic clock

    @property
    def stopped(self) -> str | None:
        """The reason for which the server wants this worker to finish, or None."""
        return self.agent.stopped

    def now(self) -> float:
        """Seconds since the run's time zero, which all its processes share."""
        return time.monotonic() - self._offset

    # The compute thread.

    def start(self, timeout: float) -> None:
        """Join, wait for the others and for W, adopt it. Raises TransportError."""
        layout = self.replica.layout
        joined = self.link.join(layout, self.replica.read, self, timeout)
        self._offset = time.monotonic() - joined.now
        self.steps_before = joined.steps
        with self._news:
            self.book = PhaseTimer(self.now(), "wait")
            self.agent = Agent(self.link.worker, joined.rule, joined.seq)
            for message in self._early:
                self.told(message)
        self._wait("the other workers to join")

    def step_begins(self) -> None:
        """What the thread does from here on is compute."""
        if self._totals.steps:
            self._switch("compute")
        else:  # training begins: what came before is start-up
            with self._news:
                self.book = PhaseTimer(self.now(), "compute")
        self.link.wake()

    def step_done(self, samples: int, loss: float, epoch_step: int = 0, steps: int = 1) -> None:
        """A mini-batch (or `steps` at once) was trained: do what the rule wants.

        Raises TransportError when the server is lost.
        """
        if self.agent.version is None:
            return  # the run ended before this worker got a model: its step is about nothing
        seconds = self._switch("push")
        self.replica.stepped()
        totals = self._totals
        totals.steps += steps
        totals.samples += samples
        totals.loss = loss
        with self._news:
            commands = self.agent.step_done(samples, seconds, steps, loss)
        self._carry_out(commands)
        self._wait("the others")
        if self.link.error:
            raise self.link.error
        self._switch("data")
        if self.log:
            self.log.step(self.now(), epoch_step, self.report(), seconds)

    def hold(self) -> None:
        """Until the next step, what is done to the model's variables is no progress."""
        self.replica.read()

    def finish(self, reason: str = "finished", final: bool = True) -> None:
        """Hand over what is left and leave; with `final` wait for the run's last version."""
        self._switch("push")
        self._end_assignments()
        with self._news:
            commands = self.agent.finish()
        self._reason, self._wants_final = reason, final
        self._carry_out(commands)
        self._wait("the last push to be answered")
        if final:
            self._switch("wait")
            self._wait("the other workers to finish", lambda: self._has_final)
            self.link.goodbye()

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Cut():
                    self._switch("push")
                    update = self.replica.cut()
                    self._totals.push_bytes = update.nbytes
                    cpu, memory = self._usage()
                    self.link.push(command.push._replace(cpu=cpu, memory=memory), update,
                                   command.fetch)
                case Adopt():
                    self._switch("pull")
                    vector = self._fetched.pop(command.version, self._held)
                    self.replica.adopt(vector, command.how)
                    if self.agent.rule.push == "on_adopt":
                        self._held = vector
                    self._has_final = self.agent.finished
                case Fetch():
                    self.link.fetch(*command)
                case CutQuery():
                    self.link.query(*command)
                case Leave():
                    self._last_report = self.report()
                    self.link.leave(self._reason, self._wants_final)

    def _wait(self, what: str, until: Callable[[], bool] | None = None) -> None:
        """Carry out what comes up until the agent waits for nothing (and `until` holds)."""
        start, said = time.monotonic(), _SAY_EVERY
        while True:
            if self.agent.waiting is not None or until is not None:
                self.link.wake()
            with self._news:
                while not self._todo and (self.agent.waiting is not None
                                          or (until is not None and not until())):
                    if self.link.error:
                        raise self.link.error
                    if self._interrupted() and self.agent.waiting != "ack":
                        return  # nothing of this worker's is under way
                    self._switch("push" if self.agent.waiting in ("ack", "answer") else
                                 "pull" if self.agent.fetching else "wait")
                    self._news.wait(_GRAIN)
                    waited = time.monotonic() - start
                    if waited > said:
                        said += _SAY_EVERY
                        now_for = "the model" if self.agent.fetching else what
                        self._say(f"worker {self.link.worker}: waiting for {now_for} "
                                  f"({waited:.0f} s)")
                commands, self._todo = self._todo, []
            if not commands:
                return
            self._carry_out(commands)

    def _switch(self, kind: str) -> float:
        with self._news:
            now = self.now()
            previous, since = self.book.phase, self.book.since
            if kind == previous:
                return 0.0
            seconds = self.book.switch(kind, now)
        if self.log:
            self.log.span("compute", previous, since, now)
        return seconds

    # The communication thread (and whoever tells it something).

    def report(self) -> Report:
        """This worker's totals so far; what follows its leaving is not training."""
        if self._last_report is not None:
            return self._last_report
        with self._news:
            report = self._totals.copy()
            if self.book is not None:
                report.seconds = self.book.at(self.now())
            return report

    def answered(self, answer: m.Ack, seconds: float) -> None:
        totals = self._totals
        totals.pushes += 1
        totals.push_seconds += seconds
        totals.last_push_seconds = seconds
        totals.control_bytes = len(m.encode(answer))
        self._log_network("push", seconds, seq=answer.seq)
        if not answer.accepted:
            self._say_rejected(answer)
        with self._news:
            self._react(self.agent.acked(answer.granted, answer.hold))

    def fetched(self, version: int, vector: np.ndarray, seconds: float) -> None:
        totals = self._totals
        totals.pulls += 1
        totals.pull_seconds += seconds
        totals.last_pull_seconds = seconds
        totals.pull_bytes = vector.nbytes
        self._log_network("pull", seconds, version=version)
        with self._news:
            self._newest = version
            self._fetched[version] = vector
            self._react(self.agent.fetched(version))

    def told(self, message: m.Message) -> None:
        with self._news:
            if self.agent is None:  # the answer to Join has not been read yet
                self._early.append(message)
                return
            match message:
                case m.Granted():
                    if message.version > self._newest:  # else: told twice
                        self._react(self.agent.granted(message.version))
                case m.Directed():
                    direct = message.direct
                    if direct.batch is not None and self._assignments is not None:
                        self._assignments.assign(direct.batch, direct.start)
                    self._react(self.agent.directed(direct))
                case m.CutDecision():
                    self._react(self.agent.told(message.number, message.cut))
                case m.Stop():
                    self._react(self.agent.stop(message.reason))
                case m.Final():
                    if not self._final_told:
                        self._final_told = True
                        self._react(self.agent.final(message.version))

    def _say_rejected(self, answer: m.Ack) -> None:
        """Some models reject by rule, and often: one line now and then."""
        self._rejected += 1
        now = time.monotonic()
        if now - self._rejected_said > _SAY_EVERY:
            self._rejected_said = now
            self._say(f"worker {self.link.worker}: push {answer.seq} was rejected: "
                      f"{answer.reason} ({self._rejected} so far)")

    def _end_assignments(self) -> None:
        if self._assignments is not None:
            self._assignments.end()

    def failed(self) -> None:
        self._end_assignments()
        with self._news:
            self._news.notify_all()

    def _react(self, commands: Sequence[Command]) -> None:
        """Fetch at once; leave the rest, which touches the model, to the compute thread."""
        for command in commands:
            if isinstance(command, Fetch):
                self.link.fetch(*command)
            else:
                self._todo.append(command)
        self._news.notify_all()

    def _log_network(self, kind: str, seconds: float, **fields: int) -> None:
        if self.log:
            now = self.now()
            self.log.span("network", kind, now - seconds, now, **fields)
