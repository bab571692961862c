"""Where workers' messages arrive: who they are, what they may, what the engine makes of it.

Every message is checked here before it can touch anything. Whatever no correct peer sends is
counted, logged, and changes nothing.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable

import numpy as np
import zmq

from wbsp.layout import TensorSpec, difference, total_size
from wbsp.ps import engine
from wbsp.ps.initial import INITIAL_PATIENCE, InitialModel
from wbsp.ps.session_manager import SessionManager
from wbsp.ps.worker_session import WorkerSession, check_report, one_line, to_message
from wbsp.runlog.report import Report
from wbsp.sync.base import WorkerRule
from wbsp.wire import messages as m
from wbsp.wire.chunks import Reassembler
from wbsp.wire.memory import BufferPool
from wbsp.wire.rate import RateLimitedReceiver, RateLimiter
from wbsp.wire.sockets import ServerSocket

TELL = 1.0  # seconds between two words to a worker on how much of its vector has come


class Dispatcher:
    """The server's side of every conversation; used by the event loop alone.

    settings:      what joining workers must agree on or take over (name -> text)
    on_initial:    takes W_0 and its layout from the first worker; None: no worker is asked
    """

    def __init__(self, socket: ServerSocket, rule: WorkerRule, worker_num: int,
                 settings: dict[str, str], bandwidth: float | None, clock: Callable[[], float],
                 say: Callable[[str], None], event: Callable[..., None],
                 on_initial: Callable[[np.ndarray, list[TensorSpec]], None] | None):
        self.socket, self.rule, self.worker_num = socket, rule, worker_num
        self.settings, self.clock, self.say, self.event = settings, clock, say, event
        self.on_initial = on_initial
        self.engine: engine.Engine | None = None  # until there is a W_0
        self.layout: list[TensorSpec] | None = None
        self.sessions = SessionManager(socket, bandwidth, clock, say, event)
        self.reports: dict[int, Report] = {}  # of each worker, over all its lives
        self.first_came = math.inf  # when the first worker joined
        self._inlet = RateLimitedReceiver(socket.socket, RateLimiter(bandwidth))
        self._spare = BufferPool()
        self._initial = InitialModel(self._spare)
        self._over: str | None = None  # why nobody can join any more

    def begin(self, core: engine.Engine, layout: list[TensorSpec]) -> None:
        """There is a model; let in those who wait."""
        self.engine, self.layout = core, layout
        for peer in list(self.sessions.peers.values()):
            if peer.joined:
                self._admit(peer)

    @property
    def delay(self) -> float | None:
        """Seconds until a message that has begun to come in is there; None: none has."""
        return self._inlet.delay(self.clock())

    def receive(self) -> None:
        """Take what has come in, but come back often enough for the timers."""
        for _ in range(64):
            message = self._inlet.receive(self.clock())
            if message is None:
                return
            identity, *frames = message
            try:
                self._handle(identity.bytes, frames)
            except m.WireError as error:
                self.sessions.rejections.count(str(error), self.clock())
            except Exception as error:  # a fault of ours; it must not cost the others their run
                self._fail(identity.bytes, error)

    def _fail(self, identity: bytes, error: Exception) -> None:
        """A message was one too many for the server: go on without the worker that sent it."""
        reason = one_line(f"handling its message failed: {error!r}")
        self.event(self.clock(), "error", traceback=traceback.format_exception(error))
        if peer := self.sessions.peers.get(identity):
            self._refuse(peer, f"worker {peer.worker}: {reason} (events.jsonl has the traceback)")
        else:
            self.sessions.rejections.count(reason, self.clock())

    def _handle(self, identity: bytes, frames: list[zmq.Frame]) -> None:
        if frames:
            self.socket.received(frames[0], identity in self.sessions.peers)
        if not 1 <= len(frames) <= 2:
            raise m.WireError(f"a message of {len(frames)} frames")
        message = m.decode(m.FromWorker, frames[0].buffer)
        body = frames[1].buffer if len(frames) == 2 else None
        if (body is not None) != isinstance(message, m.Initial | m.Update):
            raise m.WireError(f"{type(message).__name__} with {len(frames)} frames")
        peer = self.sessions.peers.get(identity)
        if isinstance(message, m.Hello):
            self._hello(identity, message)
            return
        if peer is None:
            self.sessions.send(identity, m.Refused(
                "the server does not know this session: it was restarted, or gave this worker up; "
                "start this worker again"))
            raise m.WireError(f"{type(message).__name__} from an unknown session")
        peer.said_something(self.clock())
        match message:
            case m.Heartbeat():
                self._take_report(peer, message.report)
                peer.fetched(message.chunks, self.clock())
                if not self.sessions.queues.waiting(identity):  # else what waits says as much
                    self.sessions.tell_progress(peer)
            case m.Resync():
                self.sessions.queues.drop_transfer(identity)
                for retained in peer.retained.values():
                    self.sessions.send(identity, retained)
            case m.Join():
                self._join(peer, message)
            case m.Initial():
                self._take_initial(peer, message, body)
            case m.Leaving():
                self._take_report(peer, message.report)
                self._leave(peer, one_line(message.reason), message.finished)
            case m.Goodbye():
                self.lose(peer.worker, "said goodbye in mid-run")
            case m.Update():
                self._update(peer, message, body)
            case m.Fetch():
                self._fetch(peer, message.request)
            case m.CutQuery():
                self._query(peer, message)

    def check_silence(self) -> None:
        """Give up those who are gone, and count those who never spoke properly."""
        now = self.clock()
        self.sessions.watch()
        self.sessions.rejections.flush(now)
        if self.engine is None and (late := self._initial.overdue(now)):
            self._refuse(late, f"worker {late.worker} was asked for the initial model and sent "
                               f"nothing of it for {INITIAL_PATIENCE:g} s")
        for peer, reason in self.sessions.lost():
            self.lose(peer.worker, reason)

    def lose(self, worker: int, reason: str) -> None:
        """A worker is gone without a word."""
        peer = self.sessions.of(worker)
        member = peer.joined and peer.updates is not None
        self._forget(peer)
        if member:
            self.say(f"worker {worker} was lost: {reason}; the others go on without it")
            self.deliver(self.engine.leave(worker, self.clock(), reason))

    def lose_idle(self, since: float, patience: float) -> None:
        """Nobody waits longer than `patience` seconds, from `since` on, for who makes no progress.
        """
        for peer in self.sessions.idle(since, patience):
            what = "its last push" if peer.joined else "the final version"
            self.say(f"worker {peer.worker}: nothing of {what} came through for {patience:g} s; "
                     "ending without it")
            self.lose(peer.worker, f"no progress for {patience:g} s")

    def dismiss(self, reason: str) -> None:
        """Nobody can join any more: tell those who are about to, now or later."""
        self._over = reason
        for peer in [p for p in self.sessions.peers.values() if p.updates is None]:
            self._refuse(peer, f"worker {peer.worker} comes too late: {reason}")

    # Messages.

    def _hello(self, identity: bytes, hello: m.Hello) -> None:
        now = self.clock()
        reason = self._objection(identity, hello, now)
        if reason:
            self.sessions.refuse(identity, hello.worker, reason)
            return
        old = self.sessions.of(hello.worker)
        if old is not None and old.identity != identity:
            self.lose(hello.worker, "its connection is gone, and another has come in its place")
        if identity not in self.sessions.peers:
            self.sessions.open(identity, hello.worker, self.reports.get(hello.worker))
        self.sessions.send(identity, m.Welcome(self.settings, now, self.rule))

    def _objection(self, identity: bytes, hello: m.Hello, now: float) -> str | None:
        """Why this worker may not take part, in one line for both sides; None if it may."""
        me = f"worker {hello.worker}"
        if hello.protocol != m.PROTOCOL:
            return (f"{me} speaks protocol {hello.protocol}, the server {m.PROTOCOL}; install the "
                    "same wbsp on both")
        if not 0 <= hello.worker < self.worker_num:
            return (f"{me} does not exist: the server was started with --worker_num="
                    f"{self.worker_num}, so the index must be 0 to {self.worker_num - 1}")
        for name, value in hello.expected.items():
            if name in self.settings and self.settings[name] != value:
                return (f"{me} and the server disagree: {name} is {value!r} on the worker and "
                        f"{self.settings[name]!r} on the server; start both with the same value")
        old = self.sessions.of(hello.worker)
        if old is not None and old.identity != identity and self.sessions.reaches(old):
            return (f"{me} is already connected (heard {now - old.heard:.1f} s ago); start each "
                    "worker with its own worker_index")
        if self._over is not None:
            return f"{me} comes too late: {self._over}"
        return None

    def _join(self, peer: WorkerSession, join: m.Join) -> None:
        try:
            size = total_size(join.layout)
        except ValueError as error:
            raise m.WireError(str(error)) from None
        if not 0 < size <= m.MAX_MODEL:
            raise m.WireError(f"a model of {size} floats")
        if peer.layout is not None:
            if join.layout != peer.layout:
                raise m.WireError(f"worker {peer.worker} joined twice")
            if peer.answer is not None:  # it was lost on its way
                self.sessions.send(peer.identity, peer.answer)
            return
        peer.layout, peer.joined = join.layout, True
        if self.engine is not None:
            self._admit(peer)
        else:
            self._ask_for_initial()

    def _ask_for_initial(self) -> None:
        """Have a worker bring W_0, where nobody else makes it."""
        if self.on_initial is None:
            return
        if peer := self._initial.choose(self.sessions.peers.values(), self.clock()):
            self._send_joined(peer, send_initial=True)

    def _admit(self, peer: WorkerSession) -> None:
        reason = difference(peer.layout, self.layout)
        if reason:
            self._refuse(peer, f"worker {peer.worker} has another model than the server: {reason} "
                               "(here: the worker, there: the server); use the same model")
            return
        peer.updates = Reassembler(total_size(self.layout), self._spare)
        self._send_joined(peer, send_initial=False)
        self.say(f"worker {peer.worker} joined")
        now = self.clock()
        self.first_came = min(now, self.first_came)
        self.deliver(self.engine.join(peer.worker, now))

    def _refuse(self, peer: WorkerSession, reason: str) -> None:
        self.sessions.refuse(peer.identity, peer.worker, reason)
        self.lose(peer.worker, reason)

    def _send_joined(self, peer: WorkerSession, send_initial: bool) -> None:
        seq = steps = 0
        if self.engine is not None:
            seq = self.engine.ledger.next_seq(peer.worker)
            member = self.engine.members.get(peer.worker)
            steps = member.steps if member else 0
        peer.answer = m.Joined(self.rule, seq, steps, send_initial, self.clock())
        self.sessions.send(peer.identity, peer.answer)

    def _take_initial(self, peer: WorkerSession, initial: m.Initial, body: memoryview) -> None:
        if self._initial.is_from(peer) and self.engine is not None and peer.answer is not None:
            # W_0 came, but the answer to it was lost
            self.sessions.send(peer.identity, peer.answer)
            return
        if not self._initial.is_from(peer) or self.engine is not None:
            raise m.WireError(f"worker {peer.worker} brought an initial model unasked")
        now = self.clock()
        try:
            vector = self._initial.add(initial, body, now)
            if vector is not None:
                self.on_initial(vector, peer.layout)
        except m.WireError:
            raise
        except (ValueError, MemoryError) as error:
            self._refuse(peer, f"worker {peer.worker}: {error}")
        else:
            for waiting in self.sessions.peers.values():
                waiting.chunk_came(now)
            self._tell_progress(peer, now)

    def _update(self, peer: WorkerSession, update: m.Update, body: memoryview) -> None:
        if not peer.joined or peer.updates is None:
            raise m.WireError(f"worker {peer.worker} pushed before it joined")
        peer.check_push(update.push, self.engine.store.latest.version)
        vector, now = peer.updates.add(update.offset, update.size, body), self.clock()
        if vector is None:
            peer.chunk_came(now)
            self._tell_progress(peer, now)
            return
        peer.pushed()
        try:
            effects = self.engine.push(update.push, vector, now)
        except ValueError as error:
            raise m.WireError(str(error)) from None
        self.deliver(effects)
        granted = any(isinstance(e, engine.Ack) and e.granted is not None for e in effects)
        if update.fetch and granted:
            self._fetch(peer, update.fetch)

    def _fetch(self, peer: WorkerSession, request: int) -> None:
        if peer.updates is None:
            raise m.WireError(f"worker {peer.worker} fetched before it joined")
        version, vector = self.engine.store.latest
        self.sessions.send_model(peer, request, version, vector)

    def _query(self, peer: WorkerSession, ask: m.CutQuery) -> None:
        if not peer.joined or peer.updates is None:
            raise m.WireError(f"worker {peer.worker} asked before it joined")
        peer.check_query(ask)
        try:
            self.deliver(self.engine.query(peer.worker, ask.number, ask.steps, ask.seconds,
                                         self.clock()))
        except ValueError as error:
            raise m.WireError(str(error)) from None

    def _take_report(self, peer: WorkerSession, report: Report | None) -> None:
        if report is not None:
            check_report(report, peer.worker)
            self.reports[peer.worker] = peer.earlier + report if peer.earlier else report

    def _leave(self, peer: WorkerSession, reason: str, finished: bool) -> None:
        if peer.updates is None:
            self._forget(peer)
            return
        if not peer.joined:  # said twice, since Final is not there yet
            return
        self.say(f"worker {peer.worker} left: {reason}")
        peer.joined = False
        effects = self.engine.leave(peer.worker, self.clock(), reason, finished)
        if not finished:
            self._forget(peer)
        self.deliver(effects)

    def _forget(self, peer: WorkerSession) -> None:
        self.sessions.close(peer)
        if self._initial.is_from(peer) and self.engine is None:
            self._initial.give_up()
            self._ask_for_initial()

    # Sending.

    def deliver(self, effects: list[engine.Effect]) -> None:
        for effect in effects:
            peer = self.sessions.of(effect.worker)
            if peer is not None:
                message = to_message(effect)
                peer.remember(message)
                self.sessions.send(peer.identity, message)

    def _tell_progress(self, peer: WorkerSession, now: float) -> None:
        """Now and then, to a worker whose vector comes in pieces."""
        if now - peer.told > TELL:
            self.sessions.tell_progress(peer)
