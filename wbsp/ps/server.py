"""The parameter server: one event loop that owns the model's decisions and the store.

It receives, asks the engine, answers; nothing else runs in this thread, so there are no locks and
no torn reads. TensorFlow is never imported here.
"""

from __future__ import annotations

import math
import pathlib
import signal
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq

from wbsp.layout import TensorSpec, difference, total_size
from wbsp.ps import engine
from wbsp.ps.background import Background, Evaluation, Evaluator
from wbsp.ps.rejections import Rejections
from wbsp.ps.store import Ledger, Store
from wbsp.runlog.console import Status
from wbsp.runlog.report import KINDS, Report
from wbsp.sync.base import SyncModel
from wbsp.wire import messages as m
from wbsp.wire.chunks import Assembly, split
from wbsp.wire.outbox import Outbox
from wbsp.wire.pace import Pace
from wbsp.wire.sockets import ServerSocket

WORKER_TIMEOUT = 10.0  # seconds of silence after which a worker counts as dead
STALE = 3.0  # seconds of silence after which a newcomer may take over its index
STOP_PATIENCE = 120.0  # seconds a worker may take to finish its step and leave
INTERRUPT_PATIENCE = 15.0  # the same, after Ctrl-C
GOODBYE_PATIENCE = 20.0  # seconds for fetching the final version
_POLL = 0.05  # seconds between two looks at the timers


@dataclass
class Peer:
    """A worker as the wire sees it."""

    identity: bytes
    worker: int
    heard: float
    joined: bool = False
    updates: Assembly | None = None  # set for good at the first join


@dataclass
class Rules:
    """What ends a run and what paces it. Times in seconds, `bandwidth` in bytes per second."""

    worker_num: int
    stop_samples: float = math.inf
    target_accuracy: float = math.inf
    check_period: float = 5.0
    connect_timeout: float = 120.0
    bandwidth: float | None = None


class Server:
    """One run of training.

    settings:  what joining workers must agree on or take over (name -> text)
    log:       the run's ServerLog; console: its Console
    evaluator: None: versions are not evaluated, and the first worker brings W_0
    """

    def __init__(self, model: SyncModel, socket: ServerSocket, rules: Rules,
                 settings: dict[str, str], folder: pathlib.Path, log: Any, console: Any,
                 evaluator: Evaluator | None = None):
        self.model, self.socket, self.rules = model, socket, rules
        self.settings, self.folder, self.log, self.console = settings, folder, log, console
        self.evaluator = evaluator
        self.engine: engine.Engine | None = None  # until there is a W_0
        self.layout: list[TensorSpec] | None = None
        self.evaluation: Evaluation | None = None
        self.reports: dict[int, Report] = {}
        self.rejections = Rejections(self._say, log.event)
        self._background: Background | None = None
        self._peers: dict[bytes, Peer] = {}
        self._by_worker: dict[int, Peer] = {}
        self._initial: Assembly | None = None
        self._outbox = Outbox(socket.socket, Pace(rules.bandwidth))
        self._receive_pace = Pace(rules.bandwidth)
        self._zero = time.monotonic()
        self._signal: int | None = None
        self._alone_since = 0.0  # no worker is there since then
        self._first_came = math.inf  # when the first worker joined
        self._stopping_since: float | None = None
        self._done_since: float | None = None

    # Life of a run.

    def begin(self, vector: np.ndarray, layout: list[TensorSpec],
              state: dict[str, Any] | None = None) -> None:
        """Take W_0 (float32 [size]), or the version of a checkpoint with its `state`."""
        state = state or {}
        ledger = Ledger({int(w): seq for w, seq in state.get("next_seq", {}).items()})
        self.engine = engine.Engine(
            self.model, Store(vector, state.get("version", 0)), self.rules.worker_num,
            self.rules.stop_samples, ledger, self.log.event)
        for worker, steps in state.get("steps", {}).items():
            self.engine.members[int(worker)] = engine.Member(steps=steps)
        self.engine.steps, self.engine.samples = state.get("totals", (0, 0))
        self.layout = list(layout)
        self._zero -= state.get("elapsed", 0.0)
        self._alone_since = self.now()
        self._background = Background(self.folder, self.layout, self.engine,
                                      self.rules.check_period, self.evaluator)
        for peer in list(self._peers.values()):
            if peer.joined:  # before there was a model
                self._admit(peer)

    def now(self) -> float:
        """Seconds since the run's time zero."""
        return time.monotonic() - self._zero

    def _say(self, text: str) -> None:
        self.console.line(text, self.now())

    def interrupt(self, signum: int, frame: Any = None) -> None:
        """Signal handler: the first asks everyone to finish, the second ends at once."""
        if self._signal is not None:
            raise SystemExit(128 + signum)
        self._signal = signum

    def run(self) -> int:
        """Serve until training is over; return the exit code."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self.interrupt)
        poller = zmq.Poller()
        poller.register(self.socket.socket, zmq.POLLIN)
        self._say(f"{self.model.name}: listening on port {self.socket.port}, waiting for "
                          f"{self.rules.worker_num} worker(s)")
        code = None
        while code is None:
            if self.engine is None and self.evaluator and (initial := self.evaluator.initial()):
                self.begin(*initial)
            now = self.now()
            pause = self._receive_pace.delay(now)
            if pause:
                time.sleep(min(pause, self._outbox.delay(now), _POLL))
            elif poller.poll(1000 * min(self._outbox.delay(now), _POLL)):
                self._receive()
            self._outbox.flush(self.now())
            code = self._timers(self.now())
        return self._end(code)

    def _timers(self, now: float) -> int | None:
        """Everything that time alone brings about; the exit code when the run is over."""
        if failed := self.socket.failed_handshakes():
            self.rejections.count("a peer that does not speak the protocol or know the token", now,
                                  failed)
        self.rejections.flush(now)
        for peer in list(self._peers.values()):
            if now - peer.heard > WORKER_TIMEOUT:
                self._lose(peer, f"nothing heard for {WORKER_TIMEOUT:g} s")
        if self._peers:
            self._alone_since = now
        if self._signal is not None and self._stopping_since is None:
            name = signal.Signals(self._signal).name
            self._say(f"{name}: asking the workers to finish; once more to end at once")
            if self.engine is None:
                return 128 + self._signal
            self._stop(f"interrupted by {name}", now)
        if self.engine is None:
            if now - self._alone_since > self.rules.connect_timeout:
                self._say(f"no worker came within {self.rules.connect_timeout:g} s")
                return 1
            return None
        return self._timers_of_run(now)

    def _timers_of_run(self, now: float) -> int | None:
        core = self.engine
        if core.done:
            return self._ending(now)
        if not core.started and core.stop_reason is None:
            if core.active and now - self._first_came > self.rules.connect_timeout:
                self._say(f"starting with {len(core.active)} of {self.rules.worker_num} "
                                  f"workers: no other came within {self.rules.connect_timeout:g} s")
                self._deliver(core.start(now))
        elif self.model.alarm is not None and now >= self.model.alarm:
            self._deliver(core.tick(now))
        if result := self._background.poll(now):
            self._take_evaluation(*result)
        if core.stop_reason is not None and self._stopping_since is None:
            self._stopping_since = now
            self._say(f"stopping: {core.stop_reason}")
        if self._stopping_since is not None:
            patience = STOP_PATIENCE if self._signal is None else INTERRUPT_PATIENCE
            if now - self._stopping_since > patience:
                for worker in core.active:
                    self._lose(self._by_worker[worker], f"did not finish within {patience:g} s")
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
        if any(p.updates for p in self._peers.values()):
            if now - self._done_since < GOODBYE_PATIENCE:
                return None
            self._say("not every worker fetched the final version; ending without them")
        return 0 if self._signal is None else 128 + self._signal

    def _show(self, now: float) -> None:
        core, evaluation = self.engine, self.evaluation
        done = core.samples / self.rules.stop_samples if self.rules.stop_samples < math.inf else None
        self.console.update(Status(
            now, core.store.latest.version, core.members, self.reports, done,
            evaluation and evaluation.loss, evaluation and evaluation.accuracy,
            {peer.worker: peer.heard for peer in self._peers.values()}))

    def _stop(self, reason: str, now: float) -> None:
        self._deliver(self.engine.stop(reason, now))
        self._stopping_since = now

    def _take_evaluation(self, time_: float, version: int, result: Evaluation) -> None:
        self.evaluation = result
        self.log.evaluation(time_, version, *result, self.engine.members, self.reports)
        if result.accuracy >= self.rules.target_accuracy:
            self._deliver(self.engine.stop(
                f"target accuracy {self.rules.target_accuracy:g} reached at {time_:.1f} s "
                f"(version {version}: {result.accuracy:.4f})", self.now()))

    def _end(self, code: int) -> int:
        """Leave everything in order behind."""
        now = self.now()
        if self._background is not None:
            if code == 0:
                self._say("saving the final version")
            for result in self._background.finish(now, final=code == 0):
                self._take_evaluation(*result)
            accuracy = self.evaluation.accuracy if self.evaluation else None
            self.console.close()
            print(self.log.summary(now, self.engine.members, self.reports,
                                   self.engine.store.latest.version, accuracy,
                                   self.engine.stop_reason or "all workers finished"), flush=True)
        self.close()
        return code

    def close(self) -> None:
        """Let go of everything, in whatever state."""
        if self.evaluator is not None:
            self.evaluator.close()
        self.log.close()
        self.console.close()
        self.socket.close()

    def _receive(self) -> None:
        """Take what has come in, but come back often enough for the timers."""
        for _ in range(64):
            if self._receive_pace.delay(self.now()):
                return
            try:
                identity, *frames = self.socket.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._receive_pace.spend(sum(map(len, frames)), self.now())
            try:
                self._handle(identity.bytes, frames)
            except m.WireError as error:
                self.rejections.count(str(error), self.now())

    def _handle(self, identity: bytes, frames: list[zmq.Frame]) -> None:
        if not 1 <= len(frames) <= 2:
            raise m.WireError(f"a message of {len(frames)} frames")
        message = m.decode(m.FromWorker, frames[0].buffer)
        body = frames[1].buffer if len(frames) == 2 else None
        if (body is not None) != isinstance(message, m.Initial | m.Update):
            raise m.WireError(f"{type(message).__name__} with {len(frames)} frames")
        peer = self._peers.get(identity)
        if isinstance(message, m.Hello):
            self._hello(identity, message)
            return
        if peer is None:
            self._send(identity, m.Refused(
                "the server does not know this session: it was restarted, or heard nothing for "
                f"{WORKER_TIMEOUT:g} s; start this worker again"))
            raise m.WireError(f"{type(message).__name__} from an unknown session")
        peer.heard = self.now()
        match message:
            case m.Heartbeat():
                self._take_report(peer, message.report)
                self._send(identity, m.Alive())
            case m.Join():
                self._join(peer, message)
            case m.Initial():
                self._take_initial(peer, message, body)
            case m.Leaving():
                self._take_report(peer, message.report)
                self._leave(peer, message.reason[:200], message.finished)
            case m.Goodbye():
                self._forget(peer)
            case m.Update():
                self._update(peer, message, body)
            case m.Fetch():
                self._fetch(peer, message.request)

    # Messages.

    def _hello(self, identity: bytes, hello: m.Hello) -> None:
        now = self.now()
        reason = self._objection(hello, now)
        if reason:
            self._send(identity, m.Refused(reason))
            self._say(f"refused: {reason}")
            self.log.event(now, "refused", worker=hello.worker, reason=reason)
            return
        old = self._by_worker.get(hello.worker)
        if old is not None and old.identity != identity:
            self._lose(old, f"replaced after {now - old.heard:.0f} s of silence")
        if identity not in self._peers:
            self._peers[identity] = self._by_worker[hello.worker] = Peer(
                identity, hello.worker, now)
        self._send(identity, m.Welcome(self.settings, now))

    def _objection(self, hello: m.Hello, now: float) -> str | None:
        """Why this worker may not take part, in one line for both sides; None if it may."""
        me = f"worker {hello.worker}"
        if hello.protocol != m.PROTOCOL:
            return (f"{me} speaks protocol {hello.protocol}, the server {m.PROTOCOL}; install the "
                    "same wbsp on both")
        if not 0 <= hello.worker < self.rules.worker_num:
            return (f"{me} does not exist: the server was started with --worker_num="
                    f"{self.rules.worker_num}, so the index must be 0 to "
                    f"{self.rules.worker_num - 1}")
        for name, value in hello.claims.items():
            if name in self.settings and self.settings[name] != value:
                return (f"{me} and the server disagree: {name} is {value!r} on the worker and "
                        f"{self.settings[name]!r} on the server; start both with the same value")
        old = self._by_worker.get(hello.worker)
        if old is not None and now - old.heard < STALE:
            return (f"{me} is already connected (heard {now - old.heard:.1f} s ago); start each "
                    "worker with its own --worker_index")
        if self.engine is not None and self.engine.done:
            return f"{me} comes too late: the run has ended ({self.engine.stop_reason or 'done'})"
        return None

    def _join(self, peer: Peer, join: m.Join) -> None:
        try:
            size = total_size(join.layout)
        except ValueError as error:
            raise m.WireError(str(error)) from None
        if not 0 < size <= m.MAX_MODEL:
            raise m.WireError(f"a model of {size} floats")
        if self.layout is None:
            self.layout = join.layout
        reason = difference(join.layout, self.layout)
        if reason:
            reason = f"worker {peer.worker} has another model than the server: {reason} (here: " \
                     "worker, there: server); use the same --model"
            self._send(peer.identity, m.Refused(reason))
            self._say(f"refused: {reason}")
            self._forget(peer)
            return
        if peer.joined:
            return
        peer.joined = True
        peer.updates = Assembly(size, reuse=True)
        if self.engine is not None:
            self._admit(peer)
        elif self.evaluator is None and self._initial is None:
            self._initial = Assembly(size, reuse=False)
            self._send_joined(peer, bring_initial=True)

    def _admit(self, peer: Peer) -> None:
        self._send_joined(peer, bring_initial=False)
        self._say(f"worker {peer.worker} joined")
        now = self.now()
        self._first_came = min(now, self._first_came)
        self._deliver(self.engine.join(peer.worker, now))

    def _send_joined(self, peer: Peer, bring_initial: bool) -> None:
        seq = steps = 0
        if self.engine is not None:
            seq = self.engine.ledger.next_seq(peer.worker)
            member = self.engine.members.get(peer.worker)
            steps = member.steps if member else 0
        self._send(peer.identity,
                   m.Joined(self.model.rule, seq, steps, bring_initial, self.now()))

    def _take_initial(self, peer: Peer, initial: m.Initial, body: memoryview) -> None:
        if self._initial is None or self.engine is not None:
            raise m.WireError(f"worker {peer.worker} brought an initial model unasked")
        vector = self._initial.add(initial.offset, initial.size, body)
        if vector is not None:
            self._initial = None
            try:
                self.begin(vector, self.layout)
            except ValueError as error:
                self._send(peer.identity, m.Refused(f"worker {peer.worker}: {error}"))
                self._forget(peer)

    def _update(self, peer: Peer, update: m.Update, body: memoryview) -> None:
        push = update.push
        if not peer.joined or self.engine is None:
            raise m.WireError(f"worker {peer.worker} pushed before it joined")
        if (push.worker != peer.worker or push.seq < 0 or push.steps < 1 or push.samples < 0
                or not 0 <= push.base <= self.engine.store.latest.version
                or not 0 <= push.seconds < math.inf):
            raise m.WireError(f"worker {peer.worker} pushed with impossible metadata {push}")
        vector = peer.updates.add(update.offset, update.size, body)
        if vector is None:
            return
        try:
            effects = self.engine.push(push, vector, self.now())
        except ValueError as error:
            raise m.WireError(str(error)) from None
        self._deliver(effects)

    def _fetch(self, peer: Peer, request: int) -> None:
        if self.engine is None or peer.updates is None:
            raise m.WireError(f"worker {peer.worker} fetched before it joined")
        version, vector = self.engine.store.latest
        for offset, chunk in split(vector):
            self._send(peer.identity, m.Model(request, version, offset, vector.size), chunk)

    def _take_report(self, peer: Peer, report: Report | None) -> None:
        if report is None:
            return
        if set(report.seconds) != set(KINDS) or not all(map(math.isfinite,
                                                            report.seconds.values())):
            raise m.WireError(f"worker {peer.worker} sent an impossible report")
        self.reports[peer.worker] = report

    def _leave(self, peer: Peer, reason: str, finished: bool) -> None:
        if self.engine is None or not peer.joined:
            self._forget(peer)
            return
        self._say(f"worker {peer.worker} left: {reason}")
        peer.joined = False
        effects = self.engine.leave(peer.worker, self.now(), reason, finished)
        if not finished:
            self._forget(peer)
        self._deliver(effects)

    def _lose(self, peer: Peer, reason: str) -> None:
        """A worker is gone without a word."""
        self._forget(peer)
        if peer.joined and self.engine is not None:
            self._say(f"worker {peer.worker} was lost: {reason}; "
                              "the others go on without it")
            self._deliver(self.engine.leave(peer.worker, self.now(), reason))

    def _forget(self, peer: Peer) -> None:
        self._peers.pop(peer.identity, None)
        if self._by_worker.get(peer.worker) is peer:
            del self._by_worker[peer.worker]

    # Sending.

    def _deliver(self, effects: list[engine.Effect]) -> None:
        for effect in effects:
            peer = self._by_worker.get(effect.worker)
            if peer is not None:
                self._send(peer.identity, _to_message(effect))

    def _send(self, identity: bytes, message: m.Message, body: memoryview | None = None) -> None:
        frames = [identity, m.encode(message)] + ([] if body is None else [body])
        self._outbox.post(*frames, now=self.now())


def _to_message(effect: engine.Effect) -> m.Message:
    match effect:
        case engine.Ack():
            return m.Answer(*effect[1:])
        case engine.Granted():
            return m.Granted(effect.version)
        case engine.Directed():
            return m.Directed(effect.direct)
        case engine.Stop():
            return m.Stopping(effect.reason)
        case engine.Final():
            return m.Final(effect.version)
