"""A worker for any training loop: its connection, its membership in a run, and its end.

The loop calls `enter`, `join`, then `step_begins` and `step_done` around each step, `finish`, and
`end`, all within `leaving_on_error`. This module is independent of Keras.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from wbsp import given, timeouts
from wbsp.access import Access
from wbsp.core.stats import Phase
from wbsp.environment import Task
from wbsp.process.files import check_files
from wbsp.process.forks import forget, in_child
from wbsp.process.host import HOST, Host
from wbsp.process.streams import fill_numbers
from wbsp.process.throttle import Throttle
from wbsp.replica.base import Replica
from wbsp.replica.frozen import Frozen
from wbsp.runlog.worker import WorkerLog
from wbsp.sync.base import WorkerRule
from wbsp.tensors.layout import Entry, LayerState, subject
from wbsp.wire.errors import ForeignServer, RunOver, ServerEnds, TransportError
from wbsp.wire.messages import codec as m
from wbsp.worker.assignments import Assignments
from wbsp.worker.comm.transport import Transport
from wbsp.worker.errors import ends_trial, in_one_line
from wbsp.worker.metrics import Usage
from wbsp.worker.next_run import Line, NextRun, line_of
from wbsp.worker.passed import PassedRun
from wbsp.worker.process import Part, Process
from wbsp.worker.runtime import WorkerRuntime
from wbsp.worker.share import Share
from wbsp.worker.signals import Signals

_STOOD = 0.1  # of its time: a worker that waits for longer prints how to share data
_SHORT = 1.0  # seconds that need no line
_NOTICE = 15.0  # seconds between two lines about one wait

_CONNECTS = "access", "_expected", "_on"  # what a connection is made with

PROCESS: Process[Worker] = Process()  # this one


class Loop:
    """The code in which a worker trains, such as a call of `fit`; this one is unknown code.

    Attributes:
        failure: why the worker leaves if the loop ends without a call.
        not_begun_from: the line on weights that other code has set before the first step.
        undone: the line on weights that other code has set between two steps.
        shares: how such a loop trains data that the workers share.
    """

    failure = "its training was interrupted or failed"
    not_begun_from = "weights that were set before the first step are not begun from"
    undone = "weights that were set between two steps are put back"
    shares = ""

    @property
    def running(self) -> bool:
        """True if the loop is known and has not ended."""
        return False

    @property
    def over(self) -> bool:
        """True if the loop is known and has ended."""
        return False

    def leave_in(self, frame: FrameType | None, leave: Callable[[], bool]) -> None:
        """Have other code that runs at `frame` for long, between two steps or in one, call `leave`
        soon, until it returns True.

        It may raise. A signal handler calls this, in the loop's thread.
        """

    def forget(self) -> None:
        """Release the loop: the worker has left the run."""


def advice(sync: str, rule: WorkerRule, of: str) -> Iterator[str]:
    """Yield lines on the model `sync` for a script that may not have been written for it.

    `of`: what makes its steps.
    """
    if rule.micro_batches != 1:
        yield (f"under {sync} a step of {of} is one of {rule.micro_batches} micro-batches, and "
               "counts as a part of a step: a script that batches its data by b trains as under "
               f"the other models once it batches them by b // {rule.micro_batches}")


class Worker:
    """One worker of a run, and of the next one when it enters another loop.

    Attributes:
        access: to its server.
        transport: the newest connection, or None.
        welcome: the server's answer to it.
        interrupted: why this worker must leave, or None.
        runtime: of the newest training, or None.
        passed: the run of the newest loop, if that run had ended before: see `pass_by`.
        loop: from `enter` until this worker has left the run; else None.
        assignments: examples of the steps, if the server chooses them.
        batch: examples of a step of such a dataset, if the worker sets their number; None: no such
            dataset.
        share: this worker's share of the run's shared data; None: this worker has its own data.
        dataset: the dataset that its loop received for the share, if known.
    """

    def __init__(self, address: str | None = None, worker_index: int | None = None,
                 token_file: str | None = None, connect_timeout: float = timeouts.CONNECT,
                 band_width_limit: float | None = None, expected: dict[str, str] | None = None,
                 say: Callable[[str], None] = print, patience: float = timeouts.WORKER_PATIENCE,
                 transport: str | None = None, on: Host = HOST, again: bool = True,
                 name: str = "worker"):
        """Set up; the other arguments are those of `SyncCallback`.

        Args:
            name: of what the user has made, for lines and errors.
            again: this process may join another run after one that it has left in good order.

        Raises:
            ValueError: an argument is bad.
            OSError: the token file cannot be read.
        """
        fill_numbers()
        if not callable(say):
            raise ValueError(f"say={given.shown(say)}: it must be a function that prints a line")
        self.access = Access.of(address, token_file, connect_timeout, patience, band_width_limit,
                                transport)
        self.task = Task.complete(self.access.address, worker_index)
        self._say = say
        self._on = on
        self._again, self._name = again, name
        self._expected = given.texts("expected", expected)
        self._begin()

    def _begin(self) -> None:
        """Set the fields that belong to this worker, and not to its copies."""
        self._index = self.task.worker
        self.transport: Transport | None = None
        self.welcome: m.Welcome | None = None
        self.interrupted: str | None = None
        self.runtime: WorkerRuntime | None = None
        self.passed: PassedRun | None = None
        self.loop: Loop | None = None
        self.assignments = Assignments(self._on)
        self.batch: int | None = None
        self.share: Share | None = None
        self.dataset: Any = None
        self.access.warn(self._say)
        self._log: WorkerLog | None = None
        self._published = False  # the next training is an experiment's, not a user's own
        self._said: set[str] = set()  # since `enter`
        self._signals = Signals(self.interrupt, self._leave_soon)
        self._ending = threading.RLock()

    def trains(self, share: Share | None, dataset: Any = None) -> None:
        """Train a share of the run's data, from this dataset if there is one."""
        self.share, self.dataset = share, dataset

    def streams(self, batch: int) -> None:
        """Train a stream, `batch` examples a step if the model leaves that to the worker."""
        self.batch = batch

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy for another process, which is not connected. The secret stays
        in its file.

        Raises:
            TypeError: this worker cannot be copied now, or not there.
        """
        if self.batch is not None or self.share is not None:
            raise TypeError(f"the data of this {self._name} belong to this process; make another "
                            "one there")
        return self._settings()

    def _settings(self) -> dict[str, Any]:
        """Return what a copy has. Raises TypeError if this worker cannot be copied now."""
        if self.in_run and self.loop is not None:
            raise TypeError(f"worker {self._index} is in a run, and a copy of its {self._name} "
                            "would be a second worker in its place; make a new one")
        return {name: self.__dict__[name] for name in (
            "access", "task", "_say", "_on", "_again", "_name", "_expected")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __copy__(self) -> Worker:
        """Return a copy that is not connected, and trains the same dataset, one after the other."""
        made = object.__new__(type(self))
        made.__setstate__(self._settings())
        made.assignments, made.batch = self.assignments, self.batch
        made.trains(self.share, self.dataset)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Worker:
        return self.__copy__()

    @property
    def _part(self) -> Part[Worker]:
        """What this process remembers of its task."""
        return PROCESS.part(self.task)

    @property
    def index(self) -> int:
        """Index of this worker. If the server chooses it, and has not yet, this connects.

        Raises:
            TransportError: no server answers, or it refuses.
        """
        if self._index is None:
            if (other := self._part.member) is not None:
                return other.index  # of this process
            self.connect()
        assert self._index is not None, "the server has chosen it"
        return self._index

    @property
    def passes(self) -> bool:
        """True if this process's next fit belongs to an ended run: see `messages.AskPast`."""
        return self.welcome is not None and self.welcome.passes > 0

    @property
    def in_run(self) -> bool:
        """True from `connect` until this worker has left the run."""
        return self._part.member is self

    @property
    def stop_reason(self) -> str | None:
        """Why training ends before the loop is done, or None."""
        if self.passed is not None:
            return self.interrupted or self.passed.reason
        return self.interrupted or (self.runtime.stopped if self.runtime else None)

    @property
    def run_examples(self) -> int:
        """Examples that all workers have trained, as far as this worker knows: see `Agent`."""
        runtime, share = self.runtime, self.share
        if self.passed is not None:
            return min(self.passed.examples, share.total if share else self.passed.examples)
        if runtime is None:
            return 0
        if share is None:
            return runtime.agent.run_examples
        whole = runtime.stopped is not None and not share.early
        return share.total if whole else min(runtime.agent.run_examples, share.total)

    def run_steps(self, batch: int | None) -> int:
        """Return the number of steps of `batch` examples that all workers have made, as far as
        this worker knows; None: of steps of any size."""
        if batch is None and self.passed is not None:
            return self.passed.steps
        if batch is None:
            return self.runtime.agent.run_steps if self.runtime else 0
        return -(-self.run_examples // batch)

    @property
    def signalled(self) -> bool:
        """True if a signal waits until this worker has left: see `stop_due`."""
        return self._signals.caught is not None

    def say(self, text: str) -> None:
        """Print a console line with this worker's index, once that is known."""
        self._say(text if self._index is None else f"worker {self._index}: {text}")

    def say_once(self, text: str) -> None:
        """Print a console line, unless it was printed since the loop began."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def write_log(self, log: WorkerLog) -> None:
        """Write the text files and timeline of the next training to `log`."""
        self._log = log
        self._published = True

    def interrupt(self, reason: str) -> None:
        """Leave at this step's end; a wait for the server ends with a TransportError.

        A signal handler may call this.
        """
        self.interrupted = given.reason("reason", reason)

    def stop_run(self, reason: str) -> None:
        """End the run for all workers, unless it has ended.

        Raises:
            RuntimeError: no training has begun.
            ValueError: the reason is no text.
        """
        with in_one_line():
            reason = given.reason("reason", reason)
        if self.passed is None:
            self.begun().stop_run(reason)

    def progress(self) -> str:
        """Return steps, loss, version and share of computing time, in one line.

        Raises:
            RuntimeError: no training has begun.
        """
        if self.passed is not None:
            return f"version {self.passed.saved.state.version:,}: {self.passed.reason}"
        return self.begun().progress()

    # The connection.

    def connect(self) -> tuple[Transport, m.Welcome]:
        """Introduce this worker, unless that was done; return connection and server's answer.

        Raises:
            TransportError: no server answers, or it refuses.
            OSError: this process can open too few files; one line.
        """
        if not self.in_run:
            self._take_line()
            self._part.enters(self)
            atexit.register(self._abandon)
            in_child(self._forked)
        assert self.transport is not None and self.welcome is not None
        return self.transport, self.welcome

    def _clear_place(self) -> None:
        """End the rest of an earlier training of this task in this process.

        Raises:
            TransportError: that training still runs. The server would take this worker for it.
        """
        other = self._part.member
        if other not in (None, self) and other.loop and other.loop.running:
            raise TransportError(
                f"worker {other._index} is already connected, by a training of this process that "
                "still runs; start each worker with its own worker_index")
        if other is not None and not (other.loop and other.loop.running):
            self.say(f"closing an earlier {other._name} of this process")
            other.close()
        if self.transport is not None:
            self.say(f"connecting again to {self.task.address}")
            self.interrupted = None

    def _take_over(self) -> Line | None:
        """Take the connection of a worker of this process that has only asked for its index.

        So the index is held all the time.
        """
        other = self._part.member
        if other is None or other.loop is not None or other.runtime is not None:
            return None
        alike = all(getattr(self, name) == getattr(other, name) for name in _CONNECTS)
        if not alike or other.transport is None or other.welcome is None or other.transport.error:
            return None
        return other._hands_over()

    def _hands_over(self) -> tuple[Transport, m.Welcome]:
        """Return the connection, which is another worker's from here on."""
        assert self.transport is not None and self.welcome is not None, "it has asked for its index"
        line, self.transport, self.welcome = (self.transport, self.welcome), None, None
        self._lets_go()
        return line

    def _lets_go(self) -> None:
        """Be in no run any more."""
        atexit.unregister(self._abandon)
        forget(self._forked)
        self._part.leaves()

    def _take_line(self) -> None:
        """Take the connection that this process has, or has kept since its last run, or make one.
        """
        def interrupted() -> bool:
            return self.interrupted is not None
        if not PROCESS.was_in_run:
            check_files("a worker")
        line = self._take_over()
        if line is not None:
            line[0].serve(self._say, interrupted)
        else:
            self._clear_place()
            kept = line_of(self.task)
            try:
                line = kept.take(self._say, interrupted) if kept is not None else None
            except ServerEnds as error:  # another one may run by now
                self._part.begins_anew(str(error))
        if PROCESS.was_in_run:
            gc.collect()  # objects of a run refer to each other, and hold its vectors
        self.transport, self.welcome = line or self._introduce(self._say, interrupted)
        self._index = self.transport.worker
        self._part.connects()

    def _introduce(self, say: Callable[[str], None], interrupted: Callable[[], bool],
                   leaves: Callable[[], bool] = lambda: False) -> tuple[Transport, m.Welcome]:
        """Introduce this worker over a new connection; `leaves`: whether its process ends.

        A worker waits while the server reports that another run follows. A worker that was in a run
        also waits while the server only saves the last version of that run. It does not wait for a
        server that was ended, unless that runs again.

        Raises:
            TransportError: no server answers, or it refuses.
        """
        part, own = self._part, PROCESS.own(self._on.scheduler)
        ended, timeout = part.ended, self.access.timeout
        left = timeout if ended is None else min(timeout, timeouts.SERVER_ENDED)
        end = self._on.clock.monotonic() + left
        patient, notice = part.was_in_run, Throttle(_NOTICE)
        while True:
            given = part.given
            transport = Transport(self.access, self.task.worker if given is None else given,
                                  say, interrupted, self._on)
            last = leaves()
            try:
                (series, behind), early = part.behind, part.left_early
                series, fit = early or (series, behind + 1)
                welcome = transport.hello(self._expected, left, series, fit, last, own=own,
                                          given=given is not None, left=early is not None,
                                          anew=part.anew, key=part.key)
            except BaseException as error:
                transport.close()
                if isinstance(error, ForeignServer) and self.access.other():
                    continue
                if isinstance(error, RunOver) and error.follows:
                    now, patient = self._on.clock.monotonic(), True
                    end = now + timeout
                    if notice.due(now):
                        say("the present run has ended: waiting for the server's next one")
                left = end - self._on.clock.monotonic()
                again = patient and isinstance(error, RunOver) and left > 0 and not last
                if not again or interrupted():
                    if ended is not None and isinstance(error, TransportError):
                        raise TransportError(f"{ended}; restart it for another run") from None
                    raise
                self._on.clock.sleep(timeouts.NEXT_RUN)
            else:
                part.welcomed(welcome.key, transport.worker if self.task.worker is None else None)
                return transport, welcome

    # Training.

    def enter(self, loop: Loop) -> None:
        """Begin a loop; until its end, the first signal makes this worker leave in good order."""
        if self.loop is not None:  # an earlier one, whose end was not reported
            self.end(self._failure)
        self.loop, self.passed = loop, None
        self._said.clear()
        self._signals.hold(needed=lambda: not loop.over)

    def join(self, replica: Replica, layers: list[LayerState] | None = None,
             frozen: Frozen | None = None, sgd: bool = False,
             local: Sequence[str] = (), entries: Sequence[Entry] = ()) -> bool:
        """Become a member of the run; wait for the others and for W, and adopt it.

        Args:
            layers: what this worker's layers have and no version carries; None: not known.
            frozen: what no step changes, and no version carries; None: nothing.
            sgd: see `messages.Join`.
            local: names of variables that this worker keeps for itself.
            entries: further entries of a file of its model, without the variables.

        Returns:
            False if the run has ended meanwhile and another one follows: `passes` is true by then.

        Raises:
            TransportError: the server is lost, or refuses.
        """
        usage = Usage(self._on.clock.monotonic)
        while True:
            transport, welcome = self.connect()
            if self.passes:
                return False
            try:
                joined = transport.join(replica.layout, replica.read, self.access.timeout, layers,
                                        self.share, frozen, sgd, local, entries)
                break
            except RunOver as error:
                if not self._comes_late(transport):
                    raise
                self.say(f"{error}: connecting again for the server's next one")
                transport.close()
                self._lets_go()
        run = welcome.run
        self._log = self._log or WorkerLog.of_run(self._on.disk.path(run.path), run.id, self.index,
                                                  run.sync, self._say)
        if local and joined.steps and self.runtime is None:
            self.say(f"{subject(local)} local, and what this worker's earlier process has learned "
                     "there is lost; continuing from the values that they have here")
        if frozen is not None and transport.frozen is not None:
            names = frozen.take(transport.frozen)
            if names:
                self.say(f"{subject(names, 'has', 'have')} other values here than in the run, and "
                         "no step changes them: the run's are taken over")
        self.runtime = WorkerRuntime(
            transport, replica, welcome.rule, joined, self._log, self._say,
            lambda: self.interrupted is not None, usage, self.assignments, self.share,
            self._again and not self._single)
        self.runtime.start()
        return True

    def pass_by(self) -> PassedRun:
        """Read the run that has ended, in place of `join`: see `passes`.

        Raises:
            TransportError: its final version cannot be read.
            OSError: it cannot be written here.
            ValueError: it is damaged.
        """
        transport, welcome = self.connect()
        self.passed = PassedRun(transport, welcome, self.access)
        return self.passed

    def begun(self) -> WorkerRuntime:
        """Return the newest training.

        Raises:
            RuntimeError: none has begun.
        """
        if self.runtime is None:
            raise RuntimeError(f"this {self._name} has not been part of a run yet")
        return self.runtime

    def connected(self) -> WorkerRuntime:
        """Return the running training.

        Raises:
            TransportError: the connection has ended.
        """
        runtime = self.begun()
        if error := runtime.transport.error:
            self.end(self._failure)
            with in_one_line():
                raise error
        return runtime

    def step_begins(self, phase: Phase = "compute") -> None:
        """Begin a step with this phase, from the model at `start` or `hold`.

        Writes of other code to the model since then are undone.

        Raises:
            TransportError: the connection has ended.
        """
        runtime = self.connected()
        self.assignments.step_begins()
        if runtime.step_begins(phase) and self.loop is not None:
            steps = runtime.report().steps
            self.say_once(self.loop.undone if steps else self.loop.not_begun_from)

    def stop_due(self) -> bool:
        """Return whether the loop must end; after a signal, leave and re-raise it here."""
        if self.signalled:
            reason = self.interrupted or "interrupted by a signal"
            if self.passed is None:
                self.finish(reason)
                self.say(f"{reason}; its unsent progress is pushed")
            self.end(None)
        return self.stop_reason is not None

    def _leave_soon(self, frame: FrameType | None) -> None:
        """After a signal, do not wait until the code at `frame` has ended, if it runs for long."""
        if self.loop is not None:
            self.loop.leave_in(frame, self._leave_now)

    def _leave_now(self) -> bool:
        """Leave, and re-raise the signal here; return False if `stop_due` will come first."""
        if not self.signalled or self.loop is None:
            return True  # it has left
        with self.leaving_on_error():
            if self.passes or self.runtime is None:
                self.end(self.interrupted)
            elif self.runtime.computes:  # the values may be in the middle of a change
                self.say(f"{self.interrupted} within a step: leaving without what it has trained "
                         "since its last push")
                self.end(self.interrupted)
            elif self.runtime.holds:
                self.stop_due()
            else:
                return False
        return True

    def finish(self, interrupted: str | None = None) -> None:
        """Finish as `WorkerRuntime.finish` does; print a remedy after a long wait."""
        runtime = self.begun()
        if interrupted is None:
            self._tell_why_ended(runtime)
        runtime.finish(interrupted)
        if interrupted is None:
            self._tell_why_ended(runtime)  # others may have ended it while this worker waited
        stood, trained = runtime.stood, runtime.report().wall
        whole = stood + trained
        if (self.share is None and not runtime.agent.rule.shared and not self._published
                and self.loop is not None and self.loop.shares
                and stood > max(_STOOD * whole, _SHORT)):
            self.say(f"all its steps were done after {trained:.0f} s; it then waited "
                     f"{stood:.0f} s for the other workers. Shared data are assigned by speed, so "
                     f"that no worker waits: {self.loop.shares}")

    def _tell_why_ended(self, runtime: WorkerRuntime) -> None:
        """Print why the run has ended, unless all of its data were trained."""
        reason = runtime.stopped
        if reason is None or self._published or (self.share is not None and not self.share.early):
            return
        if reason.startswith("interrupted"):
            reason = f"the server was {reason}"
        self.say_once(f"the run was ended early: {reason}")

    # Leaving.

    @contextlib.contextmanager
    def leaving_on_error(self) -> Iterator[None]:
        """Leave the run if the body raises."""
        try:
            with in_one_line():
                yield
        except BaseException:
            self.end(self.interrupted or self._failure)
            raise

    def left_by(self, error: BaseException) -> None:
        """Leave the run because of an error that leaves the loop.

        An error that ends a tuner's trial ends the run for all workers. If it has ended, or ends,
        this worker leaves it in good order, so that its next loop is the next run.
        """
        runtime = self.runtime
        if self.loop is None:
            return
        if self.passed is not None and self.interrupted is None and isinstance(error, Exception):
            self.end(None)
            return
        if runtime is not None and self.in_run and self.interrupted is None and (
                ends_trial(error) or (runtime.ends and isinstance(error, Exception))):
            try:
                if not runtime.ends:
                    self.stop_run(f"its trial has ended ({type(error).__name__})")
                self.finish()
                self.end(None)
                return
            except TransportError as lost:
                self.say(f"{type(error).__name__} ended its trial, and the server was lost "
                         f"meanwhile: {lost}")
        reason = self.interrupted or f"its loop was left by {type(error).__name__}"
        self.say(f"{reason}: leaving the run")
        self.end(reason)

    def lost(self, loop: Loop) -> None:
        """Leave the run, if this loop has ended without doing so; any thread may call this."""
        with self._ending:
            if self.loop is loop:
                self.say(f"{self._failure}: leaving the run")
                self.end(self._failure)

    def close(self) -> None:
        """Leave the run, if that was not done, without the uncut progress; join no other."""
        self.end(f"its {self._name} was closed")
        if (line := line_of(self.task)) is not None:
            line.close()
        self._part.begins_anew()

    def end(self, reason: str | None) -> None:
        """Leave the run and release the signals; a delayed signal is raised now.

        Any thread may call this, repeatedly. `reason`: None: the run was left in good order.
        """
        with self._ending:
            self._signals.release()
            if self.loop is not None:
                self.loop.forget()
                self.loop = None
            if self.transport is not None and self.in_run:
                self._leave(self.transport, reason)
        self._signals.raise_again()

    def _leave(self, transport: Transport, reason: str | None) -> None:
        self.assignments.end()
        if self.share is not None:
            self.share.end()
        passes = self.passes
        again = self._comes_late(transport) or (reason is None and (
            passes or (self.runtime is not None and self.runtime.comes_again)))
        if reason is not None and not passes:
            transport.leave(reason, finished=False)
        if passes or (self.runtime is not None and self.runtime.has_final):
            self._count_fit(transport, passes)
        else:
            self._note_early()
        transport.close()
        if self._log is not None:
            self._log.close()
            self._log = None
        self._lets_go()
        if not passes and self.runtime is not None and self.runtime.server_ends:
            self._part.begins_anew(f"the server at {self.task.address} was ended "
                                   f"({self.runtime.stopped})")
        elif self._single:
            self._part.begins_anew()
        elif again:
            NextRun(self.task, self._introduce, self._on)

    def _comes_late(self, transport: Transport) -> bool:
        """True if the run ended as this worker was about to join it.

        The server then expects its process for the next run, unless it refuses that, too.
        """
        return self._again and isinstance(transport.error, RunOver) and not self._single

    @property
    def _single(self) -> bool:
        """True if this worker's server serves one run only, as far as it is known."""
        return self.welcome is None or self.welcome.run.single

    def _count_fit(self, transport: Transport, passes: bool) -> None:
        """Count a fit that has ended, now or before."""
        assert self.welcome is not None
        run = self.welcome.run
        if passes:
            transport.request(m.Goodbye(again=True))
            transport.wake()
        self._part.has_done(
            (run.series, self.welcome.passes or run.fit) if run.series else None)

    def _note_early(self) -> None:
        """Note a run that was left in mid-run: the next loop rejoins it, if it has not ended."""
        run = None if self.welcome is None else self.welcome.run
        if self.runtime is not None and run is not None and run.series:
            self._part.leaves_early((run.series, run.fit))

    @property
    def _failure(self) -> str:
        return (self.loop or Loop).failure

    def _abandon(self) -> None:
        """Leave the run at the end of a process whose loop has not ended."""
        self.end("its process ended in mid-training")

    def _forked(self) -> None:
        """Be part of no run, in a process that was forked from this worker's."""
        self._part.leaves()
        self._index = self.task.worker
        atexit.unregister(self._abandon)
        self._signals.forked()
        if self.transport is not None:
            self.transport.forked()
