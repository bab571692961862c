"""The parameter server: one event loop that owns the model's decisions and the store.

It receives, asks the engine, answers; nothing else runs in this thread, so there are no locks and
no torn reads. TensorFlow is never imported here.

A server lives in two phases, which the loop turns alike: it is `Waiting` until there is a W_0, and
from then on it is a `Run`.
"""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Callable, Iterable
from typing import IO, Any, TypeVar

import numpy as np

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.store import UNSENT
from wbsp.process.signals import Interrupts
from wbsp.ps.checkpoint.state import RunState
from wbsp.ps.config import Reporter, RunInfo
from wbsp.ps.dispatcher import Dispatcher
from wbsp.ps.evaluation import Evaluator, EvaluatorError, EvaluatorWatch
from wbsp.ps.file_server import RunFiles
from wbsp.ps.run import Run
from wbsp.ps.series import Series
from wbsp.ps.sessions.handlers import Peer
from wbsp.ps.sharding.coordinator import ShardLost, Shards
from wbsp.runlog.awaited import Awaited, named
from wbsp.sync import MODELS
from wbsp.sync.base import ContractError, SyncModel
from wbsp.tensors.frozen import NOTHING, FrozenValues
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.liveness import Nap
from wbsp.wire.loop import POLL, Loop, Part
from wbsp.wire.messages import codec as m
from wbsp.wire.sockets import ServerSocket

T = TypeVar("T")


class Waiting:
    """A server before there is a W_0: the first worker brings it, or the evaluator does.

    hasty: a signal or a failure has ended the run before it began
    """

    version = 0

    def __init__(self, server: Server, watch: EvaluatorWatch | None):
        """`watch`: at the evaluator, while it builds its network; None: there is none."""
        self._server, self._watch = server, watch
        self.hasty = self._failed = self._told = False
        self._over_since: float | None = None  # no worker is to come
        self._awaited = Awaited(server.reporter.say)

    def hasten(self, reason: str, failed: bool) -> None:
        """As of `Run`."""
        self.hasty = True
        self._failed = failed
        self._server.dispatcher.entrance.dismiss(
            f"the run has ended before it began ({reason})", ends=not failed)

    def woke(self, seconds: float) -> None:
        """Nothing here has its time."""

    def timers(self, alone: float) -> bool | None:
        """As of `Run`. Raises EvaluatorError."""
        if self.hasty:
            living = self._server.dispatcher.info.series.living
            told, self._told = self._told, True  # what they are told leaves in the next turn
            awaited = living and not self._failed and self._awaits(True)
            return None if awaited or not told else True
        initial = None if self._watch is None else self._watch.initial()
        if initial is not None and self._wanted:
            try:
                self._server.begin(*initial)
            except ValueError as error:
                raise EvaluatorError(str(error)) from None
            return None
        sessions = self._server.dispatcher.sessions
        series = sessions.series
        say = self._server.reporter.say
        if series.followed and not (series.living or len(sessions)):
            if self._awaits_others(series):
                return None
            say("the processes of all workers have ended, and so does this server")
            return True
        if alone > (patience := self._server.config.connect_timeout):
            say(f"no worker came within {patience:g} s" if not series.followed else
                f"{named(series.living)}: lost between two fits, and not back within "
                f"{patience:g} s; this server ends")
            return series.followed
        if not len(sessions):
            workers = series.living if series.followed else range(self._server.config.worker_num)
            self._awaited.wait(workers, "to come back" if series.followed else "to come",
                               patience - alone, "this server ends",
                               self._server.reporter.clock.now())
        return None

    @property
    def _wanted(self) -> bool:
        """Whether the run is to begin: the first one, or another that a worker asks to join."""
        dispatcher = self._server.dispatcher
        return not dispatcher.info.series.followed or any(
            session.joined for session in dispatcher.sessions)

    def _awaits_others(self, series: Series) -> bool:
        """Whether the standby of the run before, and processes that have read its versions, are
        still to come, to be told that there is no other one."""
        dispatcher = self._server.dispatcher
        return self._awaits(dispatcher.readers.number < series.readers
                            or (series.standby and not dispatcher.replication.followed))

    def _awaits(self, away: bool) -> bool:
        """Whether those who are `away` are waited for, to be told that no run follows."""
        now = self._server.reporter.clock.now()
        if self._over_since is None:
            self._over_since = now
        return away and now - self._over_since < timeouts.OTHERS_BACK

    def finish(self, well: bool, wanted: Callable[[], bool]) -> bool:
        """As of `Run`: who has followed this server from the run before waits for no other one."""
        dispatcher = self._server.dispatcher
        if dispatcher.info.series.followed:
            dispatcher.replication.end("no other run follows")
            dispatcher.sessions.planes.end("no other run follows")
        return True

    def abandon(self) -> None:
        """Nothing works on versions."""


class Server:
    """The event loop of one run of training, from the first connection to the last.

    record:    notes changes of the run's settings in its folder, and returns them all; raises
               OSError where they cannot be written
    start_evaluator: None: versions are not evaluated, and the first worker brings W_0
    hold:      what keeps other servers out of the folder, until this one is closed
    """

    def __init__(self, model: SyncModel, socket: ServerSocket, info: RunInfo, reporter: Reporter,
                 interrupts: Interrupts, record: Callable[..., dict[str, Any]] = dict,
                 start_evaluator: Callable[[], Evaluator] | None = None, hold: IO | None = None):
        """Raises OSError where a shard's process does not come up."""
        self._model = model
        self._socket = socket
        self.config = info.config
        self.reporter = reporter
        self._hold = hold
        self._record = record
        self._clock = reporter.clock
        self._nap = Nap(self._clock.now())
        socket.limit(self.config.bandwidth)
        self._shards = Shards(info, socket, reporter.say)
        self._files = RunFiles(reporter.folder, (info.run, info.epoch), self.config.host,
                               self.config.watch_port, self.config.token, socket.on)
        self._watch: EvaluatorWatch | None = None
        self._interrupts = interrupts
        self._interrupts.at_once.append(reporter.console.abandon)
        if start_evaluator is not None:
            self._watch = EvaluatorWatch(start_evaluator(), reporter.say, socket.on)
            self._interrupts.at_once.append(self._watch.evaluator.kill)
        self.dispatcher = Dispatcher(socket, info, reporter, self._shards, self._files.at, record,
                                     None if start_evaluator else self.begin)
        self.phase: Waiting | Run = Waiting(self, self._watch)
        # In the order in which they are served, after the messages that have come.
        self._parts: list[Part] = [self._shards, self.dispatcher]
        self._failure: str | None = None  # what went wrong in the server itself
        self._alone_since = self._clock.now()  # no worker is there since then

    @property
    def engine(self) -> Engine | None:
        """The run's engine, once there is a W_0."""
        return self.phase.engine if isinstance(self.phase, Run) else None

    def begin(self, vector: np.ndarray, layout: list[TensorSpec], state: RunState | None = None,
              outer: dict[str, np.ndarray] | None = None,
              frozen: FrozenValues = NOTHING) -> None:
        """Take W_0 (float32 [size]) and what is frozen, or a checkpoint's version and all that is
        beside it. Raises ValueError, in one line, for a model that cannot be served."""
        planes = self.dispatcher.sessions.planes
        planes.check(vector.size)
        outer = outer or {}
        self.config.outer.restore(outer)
        version = 0
        if state is not None:
            self._clock.go_on(state.elapsed)
            version = state.version
        self.dispatcher.info.frozen = frozen
        store = planes.store(vector, version, self.config.outer, outer.get(UNSENT))
        self.phase = Run(self._model, store, layout, state, self.reporter, self.dispatcher,
                         self._watch, self._model_failed)
        self._alone_since = self._clock.now()

    @property
    def epoch(self) -> int:
        """As of `RunInfo`."""
        return self.dispatcher.info.epoch

    def tell(self, kind: str, **facts: Any) -> None:
        """Tell the log of this server that it has come in the place of another, and why."""
        self.reporter.event(kind, epoch=self.epoch, version=self.phase.version, **facts)

    def run(self, attend: Callable[[str], None] | None = None,
            earlier: Callable[[], Iterable[tuple[Peer, m.Message]]] | None = None) -> int:
        """Serve until training is over; return the exit code.

        attend:  as in `Shards.gather`
        earlier: of a server that takes over: who came to this process before, and with which
                 message. It is asked when everything is there, and before anything is heard: shards
                 may be waited for longer than peers take silence for life.

        Raises ShardLost where the run is to go on from its newest checkpoint; everything is closed
        then.
        """
        self._say(f"{self._model.name}: listening on port {self._socket.port}, waiting for "
                  f"{self.config.worker_num} worker(s)")
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
                self._guard(self._serve)  # the workers are to finish all the same
                self._guard(self._send_all_off)
            code = self._guard(self._finish, 1 if code is None else code)
            return 1 if code is None else code
        except ShardLost as error:
            if self.phase.hasty or self._interrupts.first is not None:
                self._say(f"stopping: {error}; what came after the newest checkpoint is lost")
                return self._code or 1
            if error.later > self.epoch:
                self._say(f"stopping: {error}: it serves in the place of this one")
                self.reporter.event("superseded", reason=str(error))
                return 1
            self._say(f"{error}; going back to the newest checkpoint")
            error.standby = self.dispatcher.replication.holder
            self._files.kill()  # the next server of this process has its own
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Release all resources; callable in any state."""
        if self._watch is not None:
            self._watch.evaluator.close()
        self.phase.abandon()
        for part in self._parts:
            part.close()
        self.reporter.close()
        self._socket.close(timeouts.SERVER_LINGER)
        if self._hold is not None:
            self._hold.close()
        self._files.close()

    def _guard(self, act: Callable[..., T], *args: Any) -> T | None:
        """What `act` returns; when it fails, say so, and None."""
        try:
            return act(*args)
        except ShardLost:
            raise
        except EvaluatorError as error:
            self._failure = str(error)
            self._say(f"stopping: {error}")
        except Exception as error:
            self._failure = f"the server failed: {error!r}"
            self._say(f"stopping: {self._failure}; this is a fault of wbsp, please report it:\n"
                      + "".join(traceback.format_exception(error)).rstrip())
        return None

    def _model_failed(self, error: BaseException) -> bool:
        """The synchronization model broke its contract, or raised something: the run ends.

        What a model of wbsp raises is another matter: a fault of ours, which is to cost no one but
        the worker whose message brought it about.
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
        """After a failure that came again: the workers that are left are told that nothing comes
        any more, and do not wait for it."""
        dispatcher = self.dispatcher
        for session in list(dispatcher.sessions):
            dispatcher.send_off(session, self._failure or "the server failed")
        dispatcher.serve()
        return 1

    def _serve(self) -> int:
        """The event loop, until the run is over; return the exit code so far."""
        loop = Loop(self._socket, self.dispatcher.sessions.watch)
        for part in self._parts:
            part.register(loop.poller)
        return loop.run(self._timers, lambda: self._step(loop))

    def _step(self, loop: Loop) -> None:
        """Wait for something to do, not for long, and do it."""
        ready = loop.wait(min(POLL, *(part.delay() for part in self._parts)))
        if self._socket.socket in ready:
            self.dispatcher.receive()
        if self.dispatcher.sessions.lending.fd in ready:
            self.dispatcher.receive_shared()
        for part in self._parts:
            part.serve()

    def _timers(self, now: float) -> int | None:
        """Do the periodic work; the exit code when the run is over."""
        if not self.phase.hasty and (self._interrupts.first or self._failure) is not None:
            self._hasten()
        if self._nap.over(now):
            self.dispatcher.woke(now)
            self._alone_since += self._nap.seconds
            self.phase.woke(self._nap.seconds)
        self.dispatcher.check_silence()
        if len(self.dispatcher.sessions):
            self._alone_since = now
        well = self.phase.timers(now - self._alone_since)
        return None if well is None else self._code if well else 1

    def _hasten(self) -> None:
        """A signal or a failure ends the run early."""
        reason = f"interrupted: {self._failure}"
        if self._failure is None and self._interrupts.first is not None:
            name = signal.Signals(self._interrupts.first).name
            reason = f"interrupted by {name}"
            self._say(f"{name}: asking the workers to finish; press Ctrl-C again to end at once")
        self.phase.hasten(reason, failed=self._failure is not None)

    @property
    def _code(self) -> int:
        """Exit code of a run that has come to its end, perhaps by a signal, or by a failure."""
        if self._failure is not None:
            return 1
        return 0 if self._interrupts.first is None else 128 + self._interrupts.first

    def _finish(self, code: int) -> int:
        done = self.phase.finish(code == 0, self._attend)
        code = (code or self._code) or int(not done)
        readers, series = self.dispatcher.readers, self.dispatcher.info.series
        follows = isinstance(self.phase, Run) and code == 0 and series.goes_on
        series.readers = readers.number
        series.standby = self.dispatcher.replication.followed
        if not follows and self._failure is None and self.dispatcher.replication.superseded is None:
            readers.dismiss()
        if code == 0:
            with contextlib.suppress(OSError):
                self._record(ended=True)
        return code

    def _attend(self) -> bool:
        """While the last files are made: answer those who ask; False once a signal has come."""
        self.dispatcher.sessions.watch()
        self.dispatcher.receive()
        self.dispatcher.serve()
        return self._interrupts.first is None

    def _say(self, text: str) -> None:
        self.reporter.say(text)
