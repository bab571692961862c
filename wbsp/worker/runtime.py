"""One worker in one run: the participant's commands, carried out on a replica and a transport.

The compute thread calls `start`, `step_begins` and `step_done` around each step, and `finish`. Only
the compute thread reads and writes the model's variables. This module is independent of Keras.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from wbsp import timeouts
from wbsp.core.agent import Adopt, Command, Cut, Expect, Leave
from wbsp.core.messages import LearningRate, Measured, Message, Stop, StopRun
from wbsp.core.participant import Participant
from wbsp.core.stats import Phase, Report
from wbsp.process.throttle import Throttle
from wbsp.replica.base import Replica
from wbsp.runlog.worker import WorkerLog
from wbsp.sync.base import WorkerRule
from wbsp.sync.batch import least_of
from wbsp.tensors.layout import statistics, total_size
from wbsp.wire.client import SendUpdate, Shares
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m
from wbsp.worker.assignments import Assignments
from wbsp.worker.comm.transport import Transport
from wbsp.worker.metrics import Recorder
from wbsp.worker.share import Share
from wbsp.worker.shared_participant import SharedParticipant

Answer = TypeVar("Answer", bound=Message)
_GRAIN = 0.5  # seconds between two checks for an interrupt while waiting
_NOTICE = 15.0  # seconds between two lines about one wait


class WorkerRuntime:
    """Driver of one worker in one run; used by the compute thread.

    Attributes:
        steps_before: steps of this worker in earlier incarnations.
        has_final: the model is the run's last version.
        stood: seconds of waiting for that while others still trained.
    """

    def __init__(self, transport: Transport, replica: Replica, rule: WorkerRule, joined: m.Joined,
                 log: WorkerLog | None = None, say: Callable[[str], None] = print,
                 interrupted: Callable[[], bool] = lambda: False,
                 usage: Callable[[], Shares] = lambda: (None, None),
                 assignments: Assignments | None = None, share: Share | None = None,
                 again: bool = False):
        """Set up.

        Args:
            transport: of a member.
            replica: of the model.
            rule: of the server's Welcome.
            joined: the result of `transport.join`.
            say: prints a console line.
            interrupted: called while waiting; True ends the wait, and the worker leaves without the
                final version.
            usage: of the machine; called by the communication thread, for each push.
            assignments: receives the server's choice of examples, under a model that makes one.
            share: of the run's shared data; None: this worker has its own data.
        """
        self.transport = transport
        self.replica = replica
        self.steps_before = joined.steps
        self._say = say
        self._interrupted = interrupted
        self._usage = usage
        self._recorder = Recorder(joined.now, log, transport.on)
        self._size = total_size(replica.layout)
        self._share = share
        assert transport.worker is not None, "a member has an index"
        participant = Participant(transport.worker, rule, joined.seq, joined.run_steps,
                                  joined.work, joined.run_examples)
        if share is not None and joined.work is not None:
            share.begin(joined.work, participant)
        self._shared = SharedParticipant(participant, self._recorder, say, assignments,
                                         replica.bring, transport.on, share)
        self.agent = self._shared.agent
        self._on_renewed: Callable[[], object] = lambda: None
        self._renewed = 0
        self._ends_run = False  # this worker has asked the server to
        self._again = again
        self._interruption: str | None = None  # why this worker leaves early
        self.has_final = False
        self.stood = 0.0
        self._trains = False  # the variables hold the progress of steps

    def tell_when_renewed(self, act: Callable[[], object]) -> None:
        """Call `act` when a version has replaced a model that was not finite."""
        self._on_renewed = act

    @property
    def comes_again(self) -> bool:
        """True if the server knows that this process will introduce itself for another run."""
        return self._again and self.has_final

    @property
    def computes(self) -> bool:
        """True if a step has begun, and not ended."""
        return self._shared.participant.computes

    @property
    def holds(self) -> bool:
        """True if other code's writes to the variables change no progress: see `hold`."""
        return not self._trains

    def follows(self, able: bool) -> None:
        """Note whether its loop trains the numbers of examples that the server directs, at a rate
        that goes with them: see `part`."""
        least = least_of(statistics(self.replica.layout)) if able else None
        self._shared.act(lambda one: one.follows(least))

    @property
    def part(self) -> float:
        """The examples of a step, as the server directs them, in those of the run's batch."""
        return self._shared.participant.part

    @property
    def batch_line(self) -> str:
        """The directed batch with its reason, in a line, once a step has it; empty: none has."""
        one = self._shared.participant
        return f"{one.batch} examples a step from here on: {one.reason}" if one.reason else ""

    @property
    def server_ends(self) -> bool:
        """True if the server ends with this run."""
        return self._shared.server_ends

    @property
    def stopped(self) -> str | None:
        """The server's reason to finish, or None."""
        return self.agent.stopped

    @property
    def ends(self) -> bool:
        """True if the run has ended, or this worker has asked the server to end it."""
        return self.stopped is not None or self._ends_run

    def report(self) -> Report:
        """Return this worker's totals, up to its leaving."""
        return self._recorder.report()

    def progress(self) -> str:
        """Return steps, loss, version and share of computing, in one line."""
        report = self.report()
        loss = "-" if math.isnan(report.loss) else f"{report.loss:.4f}"
        return (f"step {self.steps_before + report.steps:,} | loss {loss} | "
                f"version {self.agent.version} | computing {report.share('compute'):.0%}")

    def start(self) -> None:
        """Wait for the other workers and for W, adopt it, and wait for the first step's examples.

        Raises:
            TransportError: the server is lost.
        """
        self.transport.listen(self._shared, self.replica.layout)
        self._wait("the other workers to join")
        self._wait_for_examples()

    def step_begins(self, phase: Phase = "compute") -> bool:
        """Begin a step with this phase, from the model at `start` or `hold`.

        Returns:
            True if other code has written to the variables since; these writes are undone.
        """
        self._shared.act(Participant.step_begins)
        if self._shared.commands:  # a push that began while there were no examples
            with self._shared.changed:
                commands = self._shared.due()
            self._carry_out(commands)
        undone = not self._trains and self.replica.put_back()
        self._trains = True
        self._recorder.step_begins(phase)
        self.transport.wake()
        return undone

    def step_done(self, samples: int, loss: float, epoch_step: int = 0, steps: int = 1) -> None:
        """Handle a trained mini-batch (or `steps` at once) by the rule.

        Args:
            samples: examples; for shared data the share knows them, and this is ignored.
            loss: mean loss; NaN: not known.
            epoch_step: number of the step in its epoch.
            steps: number of mini-batches.

        Raises:
            TransportError: the server is lost.
        """
        self.replica.stepped()
        if self.agent.version is None:
            self._shared.act(Participant.step_dropped)
            return  # the run ended before this worker got a model: the step changed no version
        if self.agent.waiting is not None and self._interrupted():
            raise TransportError(f"worker {self.transport.worker} was interrupted, and its loop "
                                 "makes another step: end it when stop_reason is set")
        seconds = self._recorder.step_ends()
        if self._share is not None:
            samples = self._share.step_done()
        self._recorder.step_done(steps, samples, loss)
        known = loss if math.isfinite(loss) else None
        self._carry_out(self._shared.act(
            lambda one: one.step_done(samples, seconds, steps, known)))
        self._wait("the others")
        if self.transport.error:
            raise self.transport.error
        self._wait_for_examples()
        self._recorder.enter("data")
        self._recorder.log_step(epoch_step, seconds)

    def enter(self, phase: Phase) -> None:
        """Note the compute thread's next phase, if its loop can measure it."""
        self._recorder.enter(phase)

    def hold(self) -> None:
        """Ignore changes of the model's variables as progress until the next step begins."""
        if self.computes:  # the data ended at the begin of a step: the next step has all
            self.replica.stepped()
            self._shared.act(Participant.step_dropped)
        self.replica.hold()
        self._trains = False

    def keep(self) -> None:
        """Hold the present model, including writes of callbacks; see `hold`."""
        self.replica.stepped()
        self.hold()

    def put_back(self) -> bool:
        """Undo writes of other code to the variables since `hold`; return whether any existed."""
        return self.replica.put_back()

    def finish(self, interrupted: str | None = None) -> None:
        """Push the uncut progress and leave; wait for the run's last version.

        Args:
            interrupted: why this worker leaves early, without the last version; None: it does not.

        Raises:
            TransportError: the server is lost.
        """
        self._recorder.enter("push")
        self._shared.end_assignments()
        self._interruption = interrupted
        self._carry_out(self._shared.act(Participant.finish))
        self._wait("the last push to be answered")
        if interrupted is None:
            self._recorder.enter("wait")
            began = self.transport.on.clock.monotonic()
            self._wait("the other workers to finish", lambda: self.has_final)
            self.stood = self.transport.on.clock.monotonic() - began
            self.transport.request(m.Goodbye(self._again))
            self.transport.wake()

    def announce(self) -> None:
        """Announce that this worker will ask for versions of epochs."""
        self.transport.request(m.AskVersion())
        self.transport.wake()

    def tell(self, message: Measured | LearningRate) -> None:
        """Send the server what it tells all workers, and again until it has."""
        now = self.transport.on.clock.monotonic()
        self._carry_out(self._shared.act(lambda one: one.ask(message, type(message), now)))
        self.transport.wake()

    def epoch_version(self, ask: m.AskVersion) -> m.VersionAt | None:
        """Return where to read the version of an epoch, or of an earlier one, or None.

        A worker that reads it pushes its progress first, because the epoch may lack that, and
        others wait for it. If all workers wait for an epoch's results, so does one without a
        version.

        Raises:
            TransportError: the server is lost.
        """
        clock, shared, phase = self.transport.on.clock, self._shared, self._recorder.phase
        end = clock.monotonic() + timeouts.EPOCH_VERSION
        if ask.validates and self.agent.rule.wait == "never" and self.stopped is None:
            self._carry_out(shared.act(Participant.hand_over))
            self._wait("the last push to be answered", lambda: (
                self.agent.handed_over or self.stopped is not None or clock.monotonic() > end))
        what = "an epoch's version"
        if ask.validates and self._share is not None and self._share.waits:
            what, end = f"the results of epoch {ask.epoch + 1}", math.inf
        at = self.ask(ask, m.VersionAt, what, end)
        self._recorder.enter(phase)
        return at if at is not None and at.name else None

    def ask(self, request: Message, answer: type[Answer], what: str, until: float = math.inf
            ) -> Answer | None:
        """Send a request, repeat it where it may be lost, and return its answer.

        Call it between two steps, or before one is done: it handles other messages meanwhile.
        Afterwards the compute thread is in the same phase as before.

        Args:
            request: any request but a push or a fetch.
            answer: type of its answer.
            what: the awaited thing, in words for the user.
            until: seconds of the monotonic clock after which None is returned without an answer.

        Raises:
            TransportError: the server is lost.
        """
        clock, shared, phase = self.transport.on.clock, self._shared, self._recorder.phase
        self._carry_out(shared.act(lambda one: one.ask(request, answer, clock.monotonic(), until)))
        answers = shared.participant.answers
        self._wait(what, lambda: answer in answers or clock.monotonic() > until)
        self._recorder.enter(phase)
        found = answers.get(answer)
        return found if isinstance(found, answer) else None

    def stop_run(self, reason: str) -> None:
        """Request the end of the run for all workers; this one continues until the stop."""
        self._ends_run = True
        if self.stopped is None:
            now = self.transport.on.clock.monotonic()
            self._carry_out(self._shared.act(lambda one: one.ask(StopRun(reason), Stop, now)))
            self.transport.wake()

    def _wait_for_examples(self) -> None:
        """Wait for the next step's examples, or the end of the run, if its data are shared.

        Raises:
            TransportError: the server is lost.
        """
        share = self._share
        if share is None:
            return
        self._wait("examples to train", lambda: share.ready or self.stopped is not None)
        if self.stopped is not None or self._interrupted():
            share.stop()

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Cut():
                    self._push(command)
                case Adopt():
                    self._recorder.enter("pull")
                    self.replica.adopt(self._shared.take_version(command.version), command.how)
                    self.has_final = self.agent.finished
                    if self.agent.renewed > self._renewed:
                        self._renewed = self.agent.renewed
                        self._on_renewed()
                case Expect() | Message():
                    self.transport.request(command)
                case Leave():
                    self._recorder.close()
                    self.transport.leave(self._interruption or "finished",
                                         finished=self._interruption is None)

    def _push(self, command: Cut) -> None:
        self._recorder.enter("push")
        update = self.replica.cut()
        self._recorder.cut(self.transport.update_bytes(self._size))
        self.transport.request(SendUpdate(command.push, update, command.fetch, self._usage,
                                          command.spans))

    def _wait(self, what: str, until: Callable[[], bool] = lambda: True) -> None:
        """Carry out commands until the agent waits for nothing and `until` holds.

        Returns early on an interrupt, but not while a push is unacknowledged.

        Raises:
            TransportError: the server is lost.
        """
        transport, agent, shared = self.transport, self.agent, self._shared
        start = transport.on.clock.monotonic()
        notice = Throttle(_NOTICE, _NOTICE)  # in seconds of waiting
        while True:
            with shared.changed:
                while not (commands := shared.due()) and (
                        agent.waiting is not None or not until()):
                    transport.wake()
                    if transport.error:
                        raise transport.error
                    if self._interrupted():
                        if agent.waiting != "ack":
                            return
                        if transport.cut_off:
                            raise TransportError("interrupted while the server at "
                                                 f"{transport.address} is lost; this "
                                                 "worker's unsent progress is lost, too")
                    shared.wait(_GRAIN)
                    waited = transport.on.clock.monotonic() - start
                    if notice.due(waited):
                        self._say(f"worker {transport.worker}: waiting for "
                                  f"{'the model' if agent.fetching else what} ({waited:.0f} s)")
            if not commands:
                return
            self._carry_out(commands)
