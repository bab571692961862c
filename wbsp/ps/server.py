"""The parameter server: one event loop that owns the model's decisions and the store.

It receives messages, calls the engine, and sends answers; nothing else runs in this thread, so that
it needs no locks and has no torn reads. TensorFlow is never imported here.

A server has two phases in one loop: it is `Waiting` until W_0 exists, and then it is a `Run`.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable
from typing import IO, Any, TypeVar

import numpy as np

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.store import UNSENT
from wbsp.process.own_address import EVERY_INTERFACE
from wbsp.process.signals import Interrupts
from wbsp.process.throttle import Throttle
from wbsp.ps.checkpoint.format import Checkpoint
from wbsp.ps.config import Above, AboveError, Model, Reporter, RunInfo
from wbsp.ps.dispatcher import Dispatcher
from wbsp.ps.evaluation import Evaluator, EvaluatorAt, EvaluatorError, EvaluatorWatch
from wbsp.ps.full_disk import FullDisk
from wbsp.ps.run import Run
from wbsp.ps.series import Series
from wbsp.ps.sessions.handlers import Peer
from wbsp.ps.sharding.coordinator import ShardLost, Shards
from wbsp.runlog.awaited import Awaited
from wbsp.runlog.folder import SETTINGS
from wbsp.sync import MODELS
from wbsp.sync.base import ContractError, SyncModel
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import TensorSpec, statistics
from wbsp.wire.liveness import Nap
from wbsp.wire.loop import POLL, Loop, Part
from wbsp.wire.messages import codec as m
from wbsp.wire.sockets import ServerSocket

T = TypeVar("T")
_NOTICE = 15.0  # seconds between two lines on one subject
_QUIET = 1.0  # seconds behind a run's summary: most scripts end there, and nothing waits


class Waiting:
    """A server without W_0 yet: the first worker sends it, or for a site the server above.

    What it waits for returns the run.

    Attributes:
        hasty: a signal or a failure has ended the run before it began.
    """

    version = 0

    def __init__(self, model: SyncModel, reporter: Reporter, dispatcher: Dispatcher,
                 watch: EvaluatorWatch | None, on_fault: Callable[[BaseException], bool],
                 above: Above | None):
        """Start to wait; the arguments are those of the `Run`."""
        self._model, self._reporter, self._dispatcher = model, reporter, dispatcher
        self._watch, self._on_fault, self._above = watch, on_fault, above
        self._config, self._clock = dispatcher.info.config, reporter.clock
        self.hasty = self._failed = self._told = False
        self._over_since: float | None = None  # time since which no worker can join
        self._brought: Model | None = None  # by a site's first worker
        self._awaited = Awaited(reporter.say)
        self._patience = Throttle(timeouts.PROGRESS)  # of a site's workers
        self._waits_since: float | None = None  # for the next run; None once that is printed
        if dispatcher.info.series.later:
            self._waits_since = self._clock.now()

    def hasten(self, reason: str, failed: bool) -> None:
        """End early; see `Run.hasten`."""
        self.hasty = True
        self._failed = failed
        self._dispatcher.entrance.dismiss(
            f"the run has ended before it began ({reason})", ends=not failed)

    def woke(self, seconds: float) -> None:
        """Do nothing: this phase has no timeouts of its own."""

    def begin(self, vector: np.ndarray, layout: list[TensorSpec], frozen: FrozenValues,
              saved: Checkpoint | None = None) -> Run:
        """Return the run that begins with W_0, float32 [size], or resumes from the version `saved`.

        Raises:
            ValueError: the model cannot be served; one line.
        """
        above, info, config = self._above, self._dispatcher.info, self._config
        state, outer = (None, {}) if saved is None else (saved.state, saved.outer)
        if state is not None and (state.above is None) != (above is None):
            raise ValueError("this run was started "
                             + ("without --upstream, and is not a site's: leave that out"
                                if state.above is None else "as a site's: give its --upstream"))
        planes = self._dispatcher.sessions.planes
        planes.check(vector.size)
        config.outer.restore(outer)
        if state is None:
            if info.series.followed:
                self._reporter.say(f"the files of this run are in {self._reporter.folder}")
            info.series.begun()
        else:
            self._clock.go_on(state.elapsed)
        info.freeze(frozen)
        store = planes.store(vector, 0 if state is None else state.version, config.outer,
                             outer.get(UNSENT), None if above is None else outer,
                             statistics(layout))
        return Run(self._model, store, layout, state, self._reporter, self._dispatcher,
                   self._watch, self._on_fault, above)

    def take(self, vector: np.ndarray, layout: list[TensorSpec],
             frozen: FrozenValues) -> Run | None:
        """Take the first worker's W_0; return the run, unless that of a site needs W_0 from above.

        Raises:
            ValueError: the model cannot be served; one line.
        """
        if self._above is None:
            return self.begin(vector, layout, frozen)
        info = self._dispatcher.info
        self._dispatcher.sessions.planes.check(vector.size)
        if self._brought is None:
            self._brought = Model(vector, layout, frozen, info.layers, info.local, info.data,
                                  info.first_epoch, info.entries)
            self._above.bring(self._brought)
        return None

    def hear_above(self) -> Run | None:
        """Handle news from the server above at once; return the run if W_0 has come from there.

        Raises:
            AboveError: it cannot come.
        """
        above, now = self._above, self._clock.now()
        if above is None or self.hasty or self._dispatcher.replication.superseded is not None:
            return None
        above.poll()
        if (initial := above.initial()) is None:
            if self._brought is not None and self._patience.due(now):
                self._dispatcher.wait(now)
            return None
        vector, frozen = initial
        assert self._brought is not None, "the server above has its layout from here"
        return self.begin(vector, self._brought.layout, frozen)

    def timers(self, alone: float) -> Run | bool | None:
        """Do the periodic work; return the run if it begins, or as `Run.timers`.

        Raises:
            EvaluatorError: the evaluator failed.
        """
        dispatcher, say = self._dispatcher, self._reporter.say
        series, sessions = dispatcher.info.series, dispatcher.sessions
        dispatcher.poll_standby()
        if (superseded := dispatcher.replication.superseded) is not None:
            say(f"stopping: {superseded}")
            return False
        if self.hasty:
            told, self._told = self._told, True  # the messages leave in the next turn
            awaited = series.living and not self._failed and self._awaits(True)
            return None if awaited or not told else True
        if (run := self.hear_above()) is not None:
            return run
        if self._watch is not None:
            self._watch.look(dispatcher.readers.own_work)
        if series.later and not (series.goes_on or len(sessions)):
            if self._awaits_others(series):
                return None
            say("the processes of all workers have ended; ending this server"
                if not series.outrun else
                f"stopping: workers have ended fit {series.fit}, and its final version is not "
                "here: start the process that served it")
            return not series.outrun
        now = self._clock.now()
        if (self._waits_since is not None and series.goes_on
                and now - self._waits_since >= _QUIET):
            self._waits_since = None
            say(f"waiting for the next fit of {series.awaited}, or the end of its process; "
                f"the files of that run will be in {self._reporter.folder}")
        if alone > (patience := self._config.connect_timeout):
            say(f"no worker connected within {patience:g} s; ending this server"
                if not series.later else
                f"lost {series.awaited} between two fits: no reconnection within "
                f"{patience:g} s; ending this server")
            return series.later and not series.outrun
        if not len(sessions):
            workers = series.awaited if series.later else range(self._config.worker_num)
            self._awaited.wait(workers, "to reconnect" if series.later else "to connect",
                               patience - alone, "this server ends", now)
        elif not series.later:
            self._awaited.wait(*sessions.unready(), None, "training begins", now)
        return None

    def _awaits_others(self, series: Series) -> bool:
        """Return whether the earlier run's standby or readers must still learn that no run follows.
        """
        dispatcher = self._dispatcher
        return self._awaits(dispatcher.readers.number < series.readers
                            or (series.standby and not dispatcher.replication.followed))

    def _awaits(self, away: bool) -> bool:
        """Return whether to wait for `away` processes, so that they learn that no run follows."""
        now = self._clock.now()
        if self._over_since is None:
            self._over_since = now
        return away and now - self._over_since < timeouts.OTHERS_BACK

    def finish(self, well: bool, wanted: Callable[[], bool]) -> bool:
        """Notify the standby and shards of the previous run that no other run follows."""
        dispatcher = self._dispatcher
        if dispatcher.replication.superseded is not None:
            return False
        if dispatcher.info.series.followed:
            dispatcher.replication.end("no other run follows")
            dispatcher.sessions.planes.end("no other run follows")
        return True

    def abandon(self) -> None:
        """Do nothing: no work on versions is in progress."""


class Server:
    """The event loop of one run of training, from the first connection to the last.

    Args:
        record: writes changes of the run's settings to its folder, and returns all settings; raises
            OSError if they cannot be written.
        start_evaluator: starts the server's own evaluator; None: it has none.
        hold: lock on the folder against other servers, until this one is closed.

    Attributes:
        follows: this server has ended, and another run of its process follows.
    """

    def __init__(self, model: SyncModel, socket: ServerSocket, info: RunInfo, reporter: Reporter,
                 interrupts: Interrupts, record: Callable[..., dict[str, Any]] = dict,
                 start_evaluator: Callable[[EvaluatorAt], Evaluator] | None = None,
                 hold: IO[bytes] | None = None):
        """Start the shards.

        Raises:
            OSError: a shard's process does not start.
        """
        self._model = model
        self._socket = socket
        self.config = info.config
        self.reporter = reporter
        self._hold = hold
        self._record = record
        self._clock = reporter.clock
        self._nap = Nap(self._clock.now())
        socket.limit(self.config.bandwidth)
        self._shards = Shards(info, socket, reporter.say,
                              lambda shard, message: self.dispatcher.hear_shard(shard, message))
        self.above = None if self.config.above is None else self.config.above(
            socket.on, reporter)
        self._watch: EvaluatorWatch | None = None
        self._interrupts = interrupts
        self._interrupts.end_with(reporter.console.abandon)
        if start_evaluator is not None:
            here = "localhost" if self.config.host in EVERY_INTERFACE else self.config.host
            self._watch = EvaluatorWatch(start_evaluator, f"{here}:{socket.port}", socket.token,
                                         reporter.folder, reporter.say, socket.on)
            self._interrupts.end_with(self._watch.kill)
        self.dispatcher = Dispatcher(socket, info, reporter, self._shards, record,
                                     self.take, self.above,
                                     self._watch.key if self._watch else b"")
        self.phase: Waiting | Run = Waiting(model, reporter, self.dispatcher, self._watch,
                                            self._model_failed, self.above)
        # In the order in which they are served, after received messages.
        self._parts: list[Part] = [self._shards, self.dispatcher]
        if self.above is not None:
            self._parts.append(self.above)
        self._failure: str | None = None  # what went wrong in the server itself
        self._alone_since = self._clock.now()  # no worker is connected since then
        self.follows = False
        self._noting = FullDisk(self._say, reporter.folder, endless=True)  # of the series' state

    @property
    def engine(self) -> Engine | None:
        """The run's engine, once W_0 exists."""
        return self.phase.engine if isinstance(self.phase, Run) else None

    def resume(self, saved: Checkpoint) -> None:
        """Resume the run. Raises ValueError, in one line, if the model cannot be served."""
        assert isinstance(self.phase, Waiting), "a server serves one run"
        self._goes_on(self.phase.begin(saved.vector, saved.layout, saved.frozen, saved))

    def take(self, vector: np.ndarray, layout: list[TensorSpec], *, frozen: FrozenValues) -> None:
        """Take the first worker's W_0; see `Waiting.take`."""
        assert isinstance(self.phase, Waiting), "workers are asked for W_0 only then"
        self._goes_on(self.phase.take(vector, layout, frozen))

    def _goes_on(self, run: Run | None) -> None:
        """Enter the run, if it begins."""
        if run is not None:
            self.phase, self._alone_since = run, self._clock.now()

    @property
    def epoch(self) -> int:
        """Epoch of this start; see `RunInfo`."""
        return self.dispatcher.info.epoch

    def tell(self, kind: str, **facts: Any) -> None:
        """Log that this server has replaced another, and why."""
        self.reporter.event(kind, epoch=self.epoch, version=self.phase.version, **facts)

    def run(self, attend: Callable[[str], None] | None = None,
            earlier: Callable[[], Iterable[tuple[Peer, m.Message]]] | None = None) -> int:
        """Serve until training is over; return the exit code.

        Args:
            attend: as in `Shards.gather`.
            earlier: for a server that takes over: returns the peers that connected to this process
                before, and their messages. It is called when all shards follow and before the
                server handles messages, because waiting for shards may exceed peers' timeouts.

        Raises:
            ShardLost: the run must resume from its newest checkpoint; all is closed.
        """
        if isinstance(self.phase, Run) or not self.dispatcher.info.series.followed:
            self._say(f"{self._model.name}: listening on port {self._socket.port}, waiting for "
                      f"{self.config.worker_num} worker(s)")
            if earlier is None:  # else they were printed
                for line in self.config.reach:
                    self._say(line)
        try:
            patience = (self.config.connect_timeout if isinstance(self.phase, Waiting)
                        else timeouts.SHARDS_MISSING)
            if (missing := self._shards.gather(self._interrupts, patience, attend)) is not None:
                return missing
            if self._shards:
                self._say(f"shards at {', '.join(self._shards.names)}")
            if earlier is not None:
                self.dispatcher.take_over(earlier())
            code = self._guard(self._serve)
            if code is None:
                self._guard(self._serve)  # so that the workers finish
                self._guard(self._send_all_off)
            code = self._guard(self._finish, 1 if code is None else code)
            return 1 if code is None else code
        except ShardLost as error:
            hasty = self.phase.hasty or self._interrupts.first is not None
            if hasty:
                self._say(f"stopping: {error}; pushes after the newest checkpoint are lost")
                return self._code or 1
            if error.later > self.epoch:
                self._say(f"stopping: {error}: that server replaces this one")
                self.reporter.event("superseded", reason=str(error))
                return 1
            self._say(f"{error}; resuming from the newest checkpoint")
            raise ShardLost(str(error), standby=self.dispatcher.replication.holder) from error
        finally:
            self.close()

    def close(self) -> None:
        """Release all resources; callable in any state.

        The socket stays bound for a run that follows: a refused connection proves that a process
        has ended.
        """
        if self._watch is not None:
            self._watch.close()
        self.phase.abandon()
        for part in self._parts:
            part.close()
        self.reporter.close()
        if not self.follows:
            self._socket.close(timeouts.SERVER_LINGER)
        if self._hold is not None:
            self._hold.close()

    def _guard(self, act: Callable[..., T], *args: Any) -> T | None:
        """Return what `act` returns; if it fails, print the error and return None."""
        try:
            return act(*args)
        except ShardLost:
            raise
        except EvaluatorError as error:
            self._failure = str(error)
            self._say(f"stopping: {error}")
        except AboveError as error:
            self._failure = str(error)
            self._say(f"stopping: {error}; restart with --resume to continue from this point")
        except Exception as error:
            self._failure = f"the server failed: {error!r}"
            self._say(f"stopping: {self._failure}; this is a bug of wbsp, please report it:\n"
                      + "".join(traceback.format_exception(error)).rstrip())
        return None

    def _model_failed(self, error: BaseException) -> bool:
        """End the run after a failure of the synchronization model; return whether it was ended.

        An exception in a model of wbsp is an internal error, which only drops the worker whose
        message caused it.
        """
        if self._model.name in MODELS and not isinstance(error, ContractError):
            return False
        if isinstance(error, ContractError):
            self._failure = f"the synchronization model broke its contract: {error}"
            self._say(f"stopping: {self._failure}")
        else:
            self._failure = f"the synchronization model {self._model.name} failed: {error!r}"
            self._say(f"{''.join(traceback.format_exception(error))}stopping: {self._failure}")
        return True

    def _send_all_off(self) -> int:
        """Dismiss the remaining workers after a repeated failure, so that they do not wait."""
        self.dispatcher.send_all_off(self._failure or "the server failed")
        return 1

    def _serve(self) -> int:
        """Run the event loop until the run is over; return the exit code so far."""
        loop = Loop(self._socket, self.dispatcher.sessions.watch)
        for part in self._parts:
            part.register(loop.poller)
        return loop.run(self._timers, lambda: self._step(loop))

    def _step(self, loop: Loop) -> None:
        """Wait briefly for events, and handle them."""
        ready = loop.wait(min(POLL, *(part.delay() for part in self._parts)))
        if self._socket.socket in ready:
            self.dispatcher.receive()
        if self.dispatcher.sessions.lending.fd in ready:
            self.dispatcher.receive_shared()
        for part in self._parts:
            part.serve()
        if self.above is not None and self.above.stirred():
            self._goes_on(self.phase.hear_above())
        self.reporter.log.settle()  # after the answers

    def _timers(self, now: float) -> int | None:
        """Do the periodic work; return the exit code when the run is over, else None."""
        if not self.phase.hasty and (self._interrupts.first or self._failure) is not None:
            self._hasten()
        if self._interrupts.complete and isinstance(self.phase, Run):
            self.phase.expect_no_more()
        if self._nap.over(now):
            self.dispatcher.woke(now)
            self._alone_since += self._nap.seconds
            self.phase.woke(self._nap.seconds)
        self.dispatcher.check_silence()
        self._note_series(now)
        if len(self.dispatcher.sessions):
            self._alone_since = now
        well = self.phase.timers(now - self._alone_since)
        if isinstance(well, Run):
            self._goes_on(well)
            return None
        return None if well is None else self._code if well else 1

    def _note_series(self, now: float) -> None:
        """Write which processes call `fit` again, and which workers have the final version, if that
        has changed."""
        series = self.dispatcher.info.series
        if not series.unsaved or not self._noting.due(now):
            return
        try:
            series.save(self._record)
        except OSError as error:
            self._noting.failed(f"cannot write {SETTINGS}: {error.strerror}", now)
        else:
            self.dispatcher.replication.noted()

    def _hasten(self) -> None:
        """End the run early after a signal or a failure."""
        reason = f"interrupted: {self._failure}"
        if self._failure is None and self._interrupts.first is not None:
            name = signal.Signals(self._interrupts.first).name
            reason = f"interrupted by {name}"
            self._say(f"{name}: asking the workers to finish; press Ctrl-C again to end at once")
        self.phase.hasten(reason, failed=self._failure is not None)

    @property
    def _code(self) -> int:
        """Return the exit code of a run that has ended, perhaps by a signal or a failure."""
        if self._failure is not None or (self.engine is not None and self.engine.failed):
            return 1
        return 0 if self._interrupts.first is None else 128 + self._interrupts.first

    def _finish(self, code: int) -> int:
        done = self.phase.finish(code == 0, self._attend)
        code = (code or self._code) or int(not done)
        if code == 0:
            code = self._note_end()
        readers, series = self.dispatcher.readers, self.dispatcher.info.series
        self.follows = follows = isinstance(self.phase, Run) and code == 0 and series.goes_on
        series.ended(readers.number, self.dispatcher.replication.followed,
                     self._record().get("standby"), self.epoch)
        if not follows and self._failure is None and self.dispatcher.replication.superseded is None:
            readers.dismiss()
            if code == 0:  # who came while the last files were written would wait for a server
                self.dispatcher.entrance.close()
                self._attend()
        return code

    def _note_end(self) -> int:
        """Write that the run has ended; return the exit code.

        A full disk is waited for as for the last version: a server that resumes would serve the run
        again, and none would know which one follows.
        """
        folder, series = self.reporter.folder, self.dispatcher.info.series
        needed = isinstance(self.phase, Run)  # else no run has ended
        try:
            FullDisk(self._say, folder).persist(
                lambda: series.save(self._record, ended=True), f"cannot write {SETTINGS}",
                self._socket.on.clock, lambda: needed and self._attend())
        except OSError as error:
            if needed:
                self._say(f"cannot note in {SETTINGS} of {folder} that the run has ended: "
                          f"{error.strerror}; --resume writes that")
            return int(needed)
        return 0

    def _attend(self) -> bool:
        """Answer peers while the last files are written; return False after a signal."""
        self.dispatcher.sessions.watch()
        self.dispatcher.receive()
        self.dispatcher.serve()
        return self._interrupts.first is None

    def _say(self, text: str) -> None:
        self.reporter.say(text)
