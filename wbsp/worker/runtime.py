"""One worker in one run: the agent's commands, carried out on a replica and a transport.

The compute thread calls `start`, `step_begins` and `step_done` around each step, and `finish`. The
model's variables are read and written by the compute thread alone. Keras is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from wbsp import timeouts
from wbsp.core.agent import Adopt, Agent, Command, Cut, Expect, Leave
from wbsp.core.messages import Message, StopRun
from wbsp.core.stats import Phase, Report
from wbsp.process.throttle import Throttle
from wbsp.replica.base import Replica
from wbsp.runlog.worker import WorkerLog
from wbsp.sync.base import WorkerRule
from wbsp.tensors.layout import total_size
from wbsp.wire.messages import codec as m
from wbsp.worker.assignments import Assignments
from wbsp.worker.comm.communication import SendUpdate, Shares
from wbsp.worker.comm.transport import Transport
from wbsp.worker.errors import TransportError
from wbsp.worker.metrics import Recorder
from wbsp.worker.share import Share
from wbsp.worker.shared_agent import SharedAgent

_GRAIN = 0.5  # seconds between two looks for an interrupt while waiting
_AGAIN = 5.0  # seconds after which the server is told again that the run is to end
_NOTICE = 15.0  # seconds between two lines about the same wait


class WorkerRuntime:
    """Driver of one worker in one run; used by the compute thread.

    steps_before: steps of this worker in earlier incarnations
    has_final:    the model is the run's last version
    stood:        seconds for which it waited for that, since others still trained
    """

    def __init__(self, transport: Transport, replica: Replica, rule: WorkerRule, joined: m.Joined,
                 log: WorkerLog | None = None, say: Callable[[str], None] = print,
                 interrupted: Callable[[], bool] = lambda: False,
                 usage: Callable[[], Shares] = lambda: (None, None),
                 assignments: Assignments | None = None, share: Share | None = None,
                 again: bool = False):
        """`rule`: of the server's Welcome; `joined`: what `transport.join` has just returned.

        say:         prints one line for a person
        interrupted: called while waiting; True ends the wait, and the worker leaves without the
                     final version
        usage:       of the machine; called by the communication thread, for each push
        assignments: takes the server's choice of examples, under a model that makes one
        share:       of the run's shared data; None: this worker's data are its own
        """
        self.transport = transport
        self.replica = replica
        self.steps_before = joined.steps
        self._say = say
        self._interrupted = interrupted
        self._usage = usage
        self._recorder = Recorder(joined.now, log, transport.on)
        self._update_bytes = transport.update_bytes(total_size(replica.layout))
        self._share = share
        if share is not None:
            if joined.work is None:
                raise TransportError(f"the server at {transport.address} hands out no examples: "
                                     "it is of another release of wbsp")
            share.begin(joined.work, ahead=rule.wait == "never")
        agent = Agent(transport.worker, rule, joined.seq, joined.run_steps,
                      None if joined.work is None else joined.work.at)
        self._shared = SharedAgent(agent, self._recorder, say, assignments, replica.bring,
                                   transport.on, share)
        self._stops = Throttle(_AGAIN)
        self._ends_run: StopRun | None = None  # what this worker has told the server
        self._questions = Throttle(_AGAIN)
        self._question: m.AskVersion | None = None  # what it asks the server, and waits for
        self._again = again
        self._interruption: str | None = None  # why this worker leaves early
        self.has_final = False
        self.stood = 0.0
        self._trains = False  # the variables are what steps have made of them
        self._computes = False  # a step has begun, and not ended

    @property
    def comes_again(self) -> bool:
        """Whether the server was told that this process introduces itself for another run."""
        return self._again and self.has_final

    @property
    def server_ends(self) -> bool:
        """Whether the server was ended, with this run."""
        return self._shared.server_ends

    @property
    def agent(self) -> Agent:
        """State of this worker, which the communication thread changes, too."""
        return self._shared.agent

    @property
    def stopped(self) -> str | None:
        """The reason for which the server wants this worker to finish; None: it does not."""
        return self.agent.stopped

    def report(self) -> Report:
        """This worker's totals so far; what follows its leaving is not training."""
        return self._recorder.report()

    def progress(self) -> str:
        """Steps, loss, version and share of computing, in one line."""
        report = self.report()
        return (f"step {self.steps_before + report.steps:,} | loss {report.loss:.4f} | "
                f"version {self.agent.version} | computing {report.share('compute'):.0%}")

    def start(self) -> None:
        """Wait for the other workers and for W, and adopt it, and for the first step's examples.

        Raises TransportError.
        """
        self.transport.listen(self._shared, self.replica.layout)
        self._wait("the other workers to join")
        self._wait_for_examples()

    def step_begins(self, phase: Phase = "compute") -> bool:
        """A step begins, with this phase: after `start` and `hold`, from what the model was then.

        Returns True if other code has written to the variables since, which is undone.
        """
        if self.agent.starving:
            self._carry_out(self._shared.fed())
        undone = not self._trains and self.replica.put_back()
        self._trains = self._computes = True
        self._recorder.step_begins(phase)
        self.transport.wake()
        return undone

    def step_done(self, samples: int, loss: float, epoch_step: int = 0, steps: int = 1) -> None:
        """A mini-batch (or `steps` at once) was trained: act as the rule says.

        samples: of shared data it is known here, and the argument does not count

        Raises TransportError when the server is lost.
        """
        self.replica.stepped()
        self._computes = False
        if self.agent.version is None:
            return  # the run ended before this worker got a model: the step changed no version
        seconds = self._recorder.step_ends()
        if self._share is not None:
            samples = self._share.step_done(seconds)
        self._recorder.step_done(steps, samples, loss)
        with self._shared.changed:
            commands = self.agent.step_done(samples, seconds, steps, loss)
        self._carry_out(commands)
        self._wait("the others")
        if self.transport.error:
            raise self.transport.error
        self._wait_for_examples()
        self._recorder.enter("data")
        self._recorder.log_step(epoch_step, seconds)

    def enter(self, phase: Phase) -> None:
        """The compute thread goes on with this, as far as its loop can tell."""
        self._recorder.enter(phase)

    def hold(self) -> None:
        """Until the next step begins, changes of the model's variables are no progress."""
        if self._computes:  # the data has ended where a step was to begin: the next one has it all
            self.replica.stepped()
        self.replica.hold()
        self._trains = self._computes = False

    def keep(self) -> None:
        """As `hold`, of what the model is now, whichever callback has written to it."""
        self.replica.stepped()
        self.hold()

    def put_back(self) -> bool:
        """Undo what other code has written to the variables since `hold`. Returns True if there was
        something."""
        return self.replica.put_back()

    def finish(self, interrupted: str | None = None) -> None:
        """Push the uncut progress and leave; wait for the run's last version, if not `interrupted`:
        why this worker leaves early.

        Raises TransportError when the server is lost.
        """
        self._recorder.enter("push")
        self._shared.end_assignments()
        self._interruption = interrupted
        with self._shared.changed:
            commands = self.agent.finish()
        self._carry_out(commands)
        self._wait("the last push to be answered")
        if interrupted is None:
            self._recorder.enter("wait")
            began = self.transport.on.clock.monotonic()
            self._wait("the other workers to finish", lambda: self.has_final)
            self.stood = self.transport.on.clock.monotonic() - began
            self.transport.request(m.Goodbye(self._again))
            self.transport.wake()

    def tell(self, message: Message) -> None:
        """Send the server a message that it does not answer."""
        self.transport.request(message)
        self.transport.wake()

    def epoch_version(self, ask: m.AskVersion) -> m.VersionAt | None:
        """Where the version of an epoch is, or of one before; None: this worker is given none.

        A worker that is to look at it hands over what it has trained first: that may be what the
        epoch lacks, and others wait for it. Where all wait for an epoch's results, so does who is
        given no version. Raises TransportError when the server is lost.
        """
        clock, shared, phase = self.transport.on.clock, self._shared, self._recorder.phase
        end = clock.monotonic() + timeouts.EPOCH_VERSION
        if ask.validates and self.agent.rule.wait == "never" and self.stopped is None:
            with shared.changed:
                commands = self.agent.starved()
            self._carry_out(commands)
            self._wait("the last push to be answered", lambda: (
                self.agent.handed_over or self.stopped is not None or clock.monotonic() > end))
        with shared.changed:
            shared.version_at = None
        what = "an epoch's version"
        if ask.validates and self._share is not None and self._share.waits:
            what, end = f"the results of epoch {ask.epoch + 1}", math.inf
        self._question, self._questions.next = ask, -math.inf
        self._wait(what, lambda: shared.version_at is not None or clock.monotonic() > end)
        self._question = None
        self._recorder.enter(phase)
        at = shared.version_at
        return at if at is not None and at.name else None

    def stop_run(self, reason: str) -> None:
        """End the run for all workers; this one goes on until the server says so, too."""
        self._ends_run = StopRun(reason)
        self._ask()
        self.transport.wake()

    def _wait_for_examples(self) -> None:
        """Wait for the next step's examples, or the end of the run, where its data are shared.

        Raises TransportError when the server is lost.
        """
        share = self._share
        if share is None:
            return
        with self._shared.changed:
            commands = self.agent.starved() if share.dry else []
        self._carry_out(commands)
        self._wait("examples to train", lambda: share.ready or self.stopped is not None)
        if self.stopped is not None or self._interrupted():
            share.stop()

    def _ask(self) -> None:
        """Request what the server is to be asked or told beside pushes and fetches, if it is due.
        """
        if self._share is not None and not self.agent.undecided and (
                question := self._share.question(self.agent.seq)):
            self.transport.request(question)
        if (self._ends_run is not None and self.stopped is None
                and self._stops.due(self.transport.on.clock.monotonic())):
            self.transport.request(self._ends_run)
        if self._question is not None and self._questions.due(self.transport.on.clock.monotonic()):
            self.transport.request(self._question)  # again, where a connection was broken

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Cut():
                    self._push(command)
                case Adopt():
                    self._recorder.enter("pull")
                    self.replica.adopt(self._shared.take_version(command.version), command.how)
                    self.has_final = self.agent.finished
                case Expect() | Message():
                    self.transport.request(command)
                case Leave():
                    self._recorder.close()
                    self.transport.leave(self._interruption or "finished",
                                         finished=self._interruption is None)

    def _push(self, command: Cut) -> None:
        self._recorder.enter("push")
        update = self.replica.cut()
        self._recorder.cut(self._update_bytes)
        self.transport.request(SendUpdate(command.push, update, command.fetch, self._usage))

    def _wait(self, what: str, until: Callable[[], bool] = lambda: True) -> None:
        """Carry out commands until the agent waits for nothing and `until` holds.

        Returns early on an interrupt, but not while a push is unacknowledged. Raises
        TransportError when the server is lost.
        """
        start = self.transport.on.clock.monotonic()
        notice = Throttle(_NOTICE, _NOTICE)  # in seconds of waiting
        shared = self._shared
        while True:
            self._ask()
            if self.agent.waiting is not None or not until():
                self.transport.wake()
            with shared.changed:
                while not shared.commands and (self.agent.waiting is not None or not until()):
                    if self.transport.error:
                        raise self.transport.error
                    if self._interrupted():
                        if self.agent.waiting != "ack":
                            return
                        if self.transport.cut_off:
                            raise TransportError("interrupted while the server at "
                                                 f"{self.transport.address} is lost, and with it "
                                                 "what this worker has not handed over")
                    shared.wait(_GRAIN)
                    self._ask()
                    self.transport.wake()
                    waited = self.transport.on.clock.monotonic() - start
                    if notice.due(waited):
                        self._say(f"worker {self.transport.worker}: waiting for "
                                  f"{'the model' if self.agent.fetching else what} "
                                  f"({waited:.0f} s)")
                commands, shared.commands = shared.commands, []
            if not commands:
                return
            self._carry_out(commands)
