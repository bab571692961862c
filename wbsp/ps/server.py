"""The parameter server: one event loop that owns the model's decisions and the store.

It receives, asks the engine, answers; nothing else runs in this thread, so there are no locks and
no torn reads. TensorFlow is never imported here.
"""

from __future__ import annotations

import math
import pathlib
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np
import zmq

from wbsp.layout import TensorSpec, difference
from wbsp.ps.background import (
    CHECKPOINT,
    Checkpoints,
    Evaluation,
    Evaluations,
    Evaluator,
    EvaluatorError,
)
from wbsp.ps.dispatcher import Dispatcher
from wbsp.ps.engine import Engine
from wbsp.ps.interrupt import Interrupts
from wbsp.ps.store import Store
from wbsp.runlog.console import Status, say
from wbsp.runlog.report import Report
from wbsp.sync.base import ContractError, SyncModel
from wbsp.wire.sockets import ServerSocket

# Seconds without progress: for finishing a step and pushing it, for fetching the final version.
STOP_PATIENCE, GOODBYE_PATIENCE = 120.0, 60.0
INTERRUPT_PATIENCE = 15.0  # seconds for all of the former, after a signal or a failure
_LINGER = 1.0  # seconds for the last messages to leave
_POLL = 0.05  # seconds between two looks at the timers
_WATCH = 0.005  # the same at connections, while there are some that no worker speaks through


@dataclass
class ServerConfig:
    """What ends a run and what paces it. Times in seconds, `bandwidth` in bytes per second."""

    worker_num: int
    stop_samples: float = math.inf
    target_accuracy: float = math.inf
    check_period: float = 5.0
    connect_timeout: float = 120.0
    bandwidth: float | None = None


class Server:
    """One run of training.

    settings:   what joining workers must agree on or take over (name -> text)
    log:        the run's ServerLog; console: its Console
    evaluator:  None: versions are not evaluated, and the first worker brings W_0
    interrupts: None: no signal ends the run
    hold:       what keeps other servers out of the folder, until this one is closed
    """

    def __init__(self, model: SyncModel, socket: ServerSocket, rules: ServerConfig,
                 settings: dict[str, str], folder: pathlib.Path, log: Any, console: Any,
                 evaluator: Evaluator | None = None, interrupts: Interrupts | None = None,
                 hold: IO | None = None):
        self.model, self.socket, self.rules = model, socket, rules
        self.settings, self.folder, self.log, self.console = settings, folder, log, console
        self.evaluator, self._hold = evaluator, hold
        self.engine: Engine | None = None  # until there is a W_0
        self._checkpoints: Checkpoints | None = None
        self._evaluations: Evaluations | None = None
        self._zero = time.monotonic()
        self.reception = Dispatcher(
            socket, model.rule, rules.worker_num, settings, rules.bandwidth, self.now, self._say,
            log.event, self.begin if evaluator is None else None)
        self._network = False  # the evaluator has built its own
        self._failure: str | None = None  # what went wrong in the server itself
        self._hasty = False  # a signal or a failure ends the run early
        self._alone_since = 0.0  # no worker is there since then
        self._stopping_since: float | None = None
        self._done_since: float | None = None
        self._interrupts = interrupts or Interrupts()
        self._interrupts.at_once += [console.abandon, *([evaluator.kill] if evaluator else [])]

    def begin(self, vector: np.ndarray, layout: list[TensorSpec],
              state: dict[str, Any] | None = None) -> None:
        """Take W_0 (float32 [size]), or the version of a checkpoint with its `state`."""
        state = state or {}
        self.engine = Engine(
            self.model, Store(vector, state.get("version", 0)), self.rules.worker_num,
            self.rules.stop_samples, log=self.log.event)
        if state:
            self._go_on(state)
        self._alone_since = self.now()
        period = self.rules.check_period
        self._checkpoints = Checkpoints(self.folder, layout, self.engine, period,
                                        self._state, self._say)
        self._evaluations = Evaluations(self.engine, self.evaluator, period,
                                        self._take_evaluation, self._go_without_evaluations)
        self.reception.begin(self.engine, layout)

    def _go_on(self, state: dict[str, Any]) -> None:
        """Take up what `_state` left."""
        self.engine.restore(state)
        self.reception.reports.update(
            {int(worker): Report(**totals) for worker, totals in state.get("reports", {}).items()})
        self.log.resume(state["elapsed"], state["version"], state.get("staleness", {}))
        self._zero -= state["elapsed"]

    def _state(self, now: float) -> dict[str, Any]:
        """All but the tensors of a checkpoint made at `now`; the log says so before it is there."""
        self.log.event(now, "checkpoint", version=self.engine.store.latest.version)
        self.log.flush()
        return {"elapsed": now, **self.engine.state(), "staleness": self.log.staleness,
                "reports": {w: asdict(report) for w, report in self.reception.reports.items()}}

    def now(self) -> float:
        """Seconds since the run's time zero."""
        return time.monotonic() - self._zero

    def _say(self, text: str) -> None:
        self.console.line(text, self.now())

    @property
    def _signal(self) -> int | None:
        """The signal that asked the run to end."""
        return self._interrupts.first

    def run(self) -> int:
        """Serve until training is over; return the exit code."""
        self._say(f"{self.model.name}: listening on port {self.socket.port}, waiting for "
                  f"{self.rules.worker_num} worker(s)")
        try:
            code = self._guard(self._serve)
            if self._failure is not None:
                self._guard(self._serve)  # the workers are to finish all the same
            return self._guard(self._finish, code)
        finally:
            self.close()

    def _guard(self, act: Callable[..., int], *args: Any) -> int:
        """What `act` returns; when it fails, say so, and 1."""
        try:
            return act(*args)
        except EvaluatorError as error:
            self._failure = str(error)
            self._say(f"stopping: {error}")
        except ContractError as error:
            self._failure = f"the synchronization model broke its contract: {error}"
            self._say(f"stopping: {self._failure}")
        except Exception as error:
            self._failure = f"the server failed: {error!r}"
            self._say(f"stopping: {self._failure}; this is a fault of wbsp, please report it:\n"
                      + "".join(traceback.format_exception(error)).rstrip())
        return 1

    def _serve(self) -> int:
        """The event loop, until the run is over; return the exit code so far."""
        poller = zmq.Poller()
        poller.register(self.socket.socket, zmq.POLLIN)
        poller.register(self.socket.monitor, zmq.POLLIN)
        due = 0.0
        while True:
            if (now := self.now()) >= due:  # not after every message: it costs more than one
                due = now + _POLL
                if (code := self._timers(now)) is not None:
                    return code
            self._step(poller)

    def _step(self, poller: zmq.Poller) -> None:
        """Wait for something to do, not for long, and do it."""
        if self.evaluator and not (self._network or self._hasty):
            self._look_for_network()
        desk, strangers = self.reception, self.socket.guard.strangers
        pause, wait = desk.delay, min(desk.sessions.queues.delay(self.now()), _POLL)
        if strangers:
            wait = min(wait, _WATCH)
        if pause is not None:
            time.sleep(min(pause, wait))
            desk.receive()
        else:
            ready = dict(poller.poll(math.ceil(1000 * wait)))
            if strangers or self.socket.monitor in ready:
                desk.sessions.watch()
            if self.socket.socket in ready:
                desk.receive()
        desk.sessions.queues.flush(self.now())

    def _look_for_network(self) -> None:
        """Begin with the evaluator's W_0 when it is there, or compare it with the checkpoint."""
        initial = self.evaluator.initial()
        if initial is None:
            return
        self._network = True
        if self.engine is None:
            self.begin(*initial)
        elif reason := difference(self.reception.layout, initial[1]):
            raise EvaluatorError(f"the checkpoint is of another model: {reason} (here: the "
                                 "checkpoint, there: --model); resume with the same --model")

    def _timers(self, now: float) -> int | None:
        """Everything that time alone brings about; the exit code when the run is over."""
        if not self._hasty and (self._signal or self._failure) is not None:
            self._hasten(now)
        self.reception.check_silence()
        if self.reception.sessions.peers:
            self._alone_since = now
        if self.engine is not None:
            return self._timers_of_run(now)
        if self._hasty:
            return 1 if self._signal is None else 128 + self._signal
        if now - self._alone_since > self.rules.connect_timeout:
            self._say(f"no worker came within {self.rules.connect_timeout:g} s")
            return 1
        return None

    def _hasten(self, now: float) -> None:
        """A signal or a failure: a checkpoint first, no more evaluations, and everyone finishes."""
        self._hasty, reason = True, f"interrupted: {self._failure}"
        if self._failure is None:
            name = signal.Signals(self._signal).name
            reason = f"interrupted by {name}"
            self._say(f"{name}: asking the workers to finish; once more to end at once")
        if self.engine is None:
            self.reception.dismiss(f"the run has ended before it began ({reason})")
            return
        self._checkpoints.hurry()
        self._evaluations.stop(reason)
        if not self.engine.done:
            self._stop(reason, now)

    def _timers_of_run(self, now: float) -> int | None:
        core = self.engine
        if core.done:
            self._checkpoints.hurry()  # the final version is safe before it is fetched
            self._checkpoints.poll(now)
            return self._ending(now)
        if not core.started and core.stop_reason is None:
            if core.active and now - self.reception.first_came > self.rules.connect_timeout:
                self._say(f"starting with {len(core.active)} of {self.rules.worker_num} "
                          f"workers: no other came within {self.rules.connect_timeout:g} s")
                self.reception.deliver(core.start(now))
        elif self.model.alarm is not None and now >= self.model.alarm:
            self.reception.deliver(core.tick(now))
        self._checkpoints.poll(now)
        if self._network:
            self._evaluations.poll(now)
        if core.stop_reason is not None and self._stopping_since is None:
            self._stopping_since = now
            self._say(f"stopping: {core.stop_reason}")
        if self._stopping_since is not None:
            if not self._hasty:
                self.reception.lose_idle(self._stopping_since, STOP_PATIENCE)
            elif now - self._stopping_since > INTERRUPT_PATIENCE:
                for worker in core.active:
                    self.reception.lose(worker, f"did not finish within {INTERRUPT_PATIENCE:g} s")
        elif now - self._alone_since > self.rules.connect_timeout:
            self._say(f"no worker was there for {self.rules.connect_timeout:g} s")
            self._stop("no worker left", now)
            return 1
        self._show(now)
        return None

    def _ending(self, now: float) -> int | None:
        """Training is over; wait until the workers that want the final version have it."""
        if self._done_since is None:
            self._done_since = now
            self.reception.dismiss(f"the run has ended ({self.engine.stop_reason or 'done'})")
        self.reception.lose_idle(self._done_since, GOODBYE_PATIENCE)
        if self.reception.sessions.peers:
            return None
        return 0 if self._signal is None else 128 + self._signal

    def _show(self, now: float) -> None:
        core, evaluation = self.engine, self._evaluations.newest
        if self._evaluations.missing:
            evaluation = None  # an old one would look like the newest
        limit = self.rules.stop_samples
        done = core.samples / limit if limit < math.inf else None
        self.console.update(Status(
            now, core.store.latest.version, core.members, self.reception.reports, done,
            evaluation and evaluation.loss, evaluation and evaluation.accuracy,
            {peer.worker: peer.heard for peer in self.reception.sessions.peers.values()}))

    def _stop(self, reason: str, now: float) -> None:
        self.reception.deliver(self.engine.stop(reason, now))
        self._stopping_since = now

    def _go_without_evaluations(self, reason: str) -> None:
        target = self.rules.target_accuracy
        unseen = "" if target == math.inf else f"; nobody sees whether {target:g} is reached"
        self._say(f"going on without evaluations: {reason}{unseen}")

    def _take_evaluation(self, time_: float, version: int, result: Evaluation) -> None:
        self.log.evaluation(time_, version, *result, self.engine.members, self.reception.reports)
        if result.accuracy >= self.rules.target_accuracy:
            self.reception.deliver(self.engine.stop(
                f"target accuracy {self.rules.target_accuracy:g} reached at {time_:.1f} s "
                f"(version {version}: {result.accuracy:.4f})", self.now()))

    def _finish(self, code: int) -> int:
        """Leave everything in order, the newest version first; return the exit code.

        A good end also evaluates the last version and saves it as a model, until a signal comes.
        """
        if self.engine is None:
            return code
        now = self.now()
        for worker in self.engine.active:  # after two failures
            self.engine.leave(worker, now, "the server failed")
        if code == 0:
            self._say("saving the final version")
        self._checkpoints.finish(now)
        if code == 0:
            code = self._complete(now)
        newest = self.engine.store.latest.version
        self.console.close()
        say(self.log.summary(now, self.engine.members, self.reception.reports, newest,
                             self._evaluations.accuracy_of(newest),
                             self.engine.stop_reason or "all workers finished"), sys.stdout)
        return code or int(self._checkpoints.failed)

    def _complete(self, now: float) -> int:
        """Evaluate and save the final version; return the exit code."""
        self._evaluations.complete(now, self.folder / "model.keras", lambda: self._signal is None)
        if reason := self._evaluations.missing:
            accuracy = self._evaluations.accuracy_of(self.engine.store.latest.version)
            what = "no model.keras" if accuracy is not None else "no final accuracy, no model.keras"
            self._say(f"{what}: {reason}; {CHECKPOINT} holds the final version")
        return 0 if self._signal is None else 128 + self._signal

    def close(self) -> None:
        """Let go of everything, in whatever state."""
        self.reception.sessions.rejections.flush(self.now(), at_once=True)
        if self.evaluator is not None:
            self.evaluator.close()
        self.log.close()
        self.console.close()
        self.socket.close(_LINGER)
        if self._hold is not None:
            self._hold.close()

