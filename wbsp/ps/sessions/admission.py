"""Admission of workers to a run: who may introduce itself, who may join, who brings W_0."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from wbsp.ps.checkpoint.state import IndexOwner, Totals
from wbsp.ps.clock import Clock
from wbsp.ps.config import RunInfo
from wbsp.ps.sessions.handlers import Handlers, Peer
from wbsp.ps.sessions.registry import SessionManager
from wbsp.ps.sessions.requests import Members
from wbsp.ps.sessions.session import WorkerSession, check_reattach, disagreement, other_protocol
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import LayerState, TensorSpec, difference, other_state, total_size
from wbsp.wire.assembly import VectorStream
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Bond
from wbsp.wire.shm.link import check_name

# How far workers may be ahead of the checkpoint that this server began with: seconds of the run's
# time, pushes and versions. No claim goes beyond, or a few would use up what numbers there are.
_AHEAD, _AHEAD_NUMBERS = 86_400.0, 1 << 32
INITIAL_PATIENCE = 60.0  # seconds without a chunk after which another worker is asked


class _Asked(NamedTuple):
    session: WorkerSession
    stream: VectorStream


class InitialModel:
    """Asks one worker at a time for W_0, the first that has built its model."""

    def __init__(self, pool: BufferPool):
        self._pool = pool
        self._asked: _Asked | None = None
        self._progress_at = 0.0

    def choose(self, sessions: Iterable[WorkerSession], now: float) -> WorkerSession | None:
        """The worker that is to be asked now; None if one was, or there is none yet."""
        if self._asked is not None:
            return None
        for session in sessions:
            if session.joined and session.layout is not None:
                size = total_size(session.layout)
                self._asked = _Asked(session, VectorStream([size], self._pool))
                self._progress_at = now
                return session
        return None

    def is_from(self, session: WorkerSession) -> bool:
        """True if `session` is that of the worker that was asked."""
        return self._asked is not None and session is self._asked.session

    def add(self, initial: m.Initial, body: memoryview, now: float) -> np.ndarray | None:
        """Take a chunk; return W_0 (float32 [size]) when it was the last. Raises WireError."""
        if self._asked is None:
            raise m.WireError("an initial model that was not requested")
        found = self._asked.stream.add(initial.offset, body, initial.size)
        self._progress_at = now
        return None if found is None else found[0]

    def give_up(self) -> None:
        """The worker that was asked will not bring W_0."""
        self._asked = None

    def overdue(self, now: float) -> WorkerSession | None:
        """The worker that was asked and sends nothing, if so."""
        if self._asked is None or now - self._progress_at <= INITIAL_PATIENCE:
            return None
        return self._asked.session


class Admission:
    """From a worker's first message to its membership; used by the event loop.

    lose:    ends a session, with a reason
    on_initial: as in `Dispatcher`
    reports: each worker's totals, over all its incarnations
    prove:   (identity, request, keys) -> what a peer has proven; as `Challenges.proven`
    owners:  worker -> its newest process that was a member
    began:   number of this start of the run's server, and of its ledger
    epoch:   the same, or a later one, if its standby was lost
    hear_of: hears of a later server of this run: its epoch, and the worker that knows it
    doubt:   says why it is not certain that this server serves; None: it is
    """

    def __init__(self, info: RunInfo, sessions: SessionManager, reports: dict[int, Totals],
                 clock: Clock, lose: Callable[[WorkerSession, str], None],
                 prove: Callable[..., Bond | None],
                 on_initial: Callable[[np.ndarray, list[TensorSpec]], None] | None):
        self._info, self._sessions, self._reports = info, sessions, reports
        self._prove = prove
        self._on_initial = on_initial
        self._clock, self._lose = clock, lose
        self.layout: list[TensorSpec] | None = None  # of the run's model, once there is one
        self._members: Members | None = None  # the same
        # What layers have and no version carries, as the worker that brought W_0, or was first, has
        # it; None: not known yet.
        self.layers: list[LayerState] | None = None
        self._initial = InitialModel(BufferPool())
        self._began = 0.0  # time of the run at which there was one
        self._known = 0  # highest number of a version or push then
        self._over: str | None = None  # why no worker can join any more
        self.owners: dict[int, IndexOwner] = {}
        self.began = self.epoch = info.epoch
        self.hear_of: Callable[[int, int], None] = lambda epoch, worker: None
        self.doubt: Callable[[], str | None] = lambda: None

    def begin(self, members: Members, layout: list[TensorSpec]) -> None:
        """There is a model; admit the workers that wait for it."""
        self._members, self.layout = members, layout
        self._began, store = self._clock.run(), members.engine.store
        self._known = max(store.latest.version, *members.engine.ledger.state().values(), 0)
        for session in list(self._sessions):
            if session.joined:
                self._admit(session)

    def handlers(self) -> Handlers:
        """The messages by which workers enter."""
        return Handlers({m.Hello: self.hello, m.Reattach: self.reattach},
                        {m.Join: self.join, m.Initial: self.initial})

    def hello(self, peer: Peer, hello: m.Hello) -> None:
        """A worker introduces itself."""
        identity, line = peer.identity, peer.line
        session = self._sessions.get(identity)
        if session is not None and session.line is not line and not (
                hello.own and hello.own == session.own):
            self._sessions.answer(identity, m.Refused(
                f"worker {hello.worker} is already connected, by another process"))
            return
        if self._is_late(identity, hello):
            return
        if self._over is None and (doubt := self.doubt()) is not None:
            # the server that serves takes it; where that is this one, it comes again
            self._sessions.turn_away(identity, hello.worker, doubt)
            return
        reason = self._objection(identity, hello)
        if reason:
            self._sessions.refuse(identity, hello.worker, reason, self._over is not None)
            return
        old = self._sessions.of(hello.worker)
        if old is not None and old.identity != identity:
            self._lose(old, "its connection is gone, and another has come in its place")
        if session is None:
            if not self._sessions.may_come(hello.worker):
                self._put_off(identity, hello.worker)
                return
            session = self._sessions.open(identity, hello.worker, self._reports.get(hello.worker),
                                          own=hello.own)
        session.line = line
        self._sessions.send(identity,
                            m.Welcome(self._info.settings, self._clock.run(), self._info.rule,
                                      self.epoch))

    def reattach(self, peer: Peer, request: m.Reattach) -> None:
        """A member has a new connection, and perhaps the run a new server.

        Until it has proven to be the process that it names it is challenged, and nothing else.
        Raises WireError.
        """
        check_reattach(request)
        identity, line = peer.identity, peer.line
        session, info, worker = self._sessions.get(identity), self._info, request.worker
        if request.protocol != m.PROTOCOL or request.run != info.run:
            if session is not None:
                raise m.WireError(f"worker {worker} of another run in the session of worker "
                                  f"{session.worker}")
            self._turn_down(identity, request)
            return
        ticket = info.ticket(worker, request.owner, request.epoch)
        if self._prove(identity, request, ticket) is None:
            self._sessions.challenge(identity, request.nonce, ticket)
            return
        if self._is_late(identity, request):
            self.hear_of(request.epoch, worker)
            return
        if session is None:
            self._readmit(identity, request, line)
        elif session.worker != request.worker or session.updates is None or not self._members:
            raise m.WireError(f"worker {request.worker} attached again in the session of "
                              f"worker {session.worker}")
        else:
            session.line = line
            session.note_message(self._clock.now())
            session.attached_at = self._clock.now()
            self._members.come_again(session, request)

    def ticket(self, worker: int) -> bytes:
        """What the process of this member proves itself with from here on."""
        return self._info.ticket(worker, self.owners[worker].owner, self.epoch)

    def join(self, session: WorkerSession, join: m.Join) -> None:
        """A worker has built its model. Raises WireError for a layout that cannot be."""
        try:
            size = total_size(join.layout)
            check_name(join.socket)
        except ValueError as error:
            raise m.WireError(str(error)) from None
        if not 0 < size <= m.MAX_MODEL:
            raise m.WireError(f"a model of {size} floats")
        if session.layout is not None:
            if join.layout != session.layout:
                raise m.WireError(f"worker {session.worker} joined twice")
            if session.answer is not None:
                self._answer_again(session, session.answer)
            return
        session.request, session.joined = join, True
        if self._members is not None:
            self._admit(session)
        else:
            self._ask_for_initial()

    def initial(self, session: WorkerSession, initial: m.Initial, body: memoryview) -> None:
        """Take a chunk of W_0. Raises WireError where none was asked for."""
        asked, take = self._initial.is_from(session), self._on_initial
        if asked and self._members is not None and session.answer is not None:
            # W_0 came, but the answer to it was lost
            self._answer_again(session, session.answer)
            return
        if not asked or self._members is not None or take is None or session.layout is None:
            raise m.WireError(f"worker {session.worker} sent an initial model that was not "
                              "requested")
        now = self._clock.now()
        try:
            vector = self._initial.add(initial, body, now)
            if vector is not None:
                self._note_layers(session)
                take(vector, session.layout)
        except m.WireError:
            raise
        except (ValueError, MemoryError) as error:
            self.layers = None
            self._refuse(session, f"worker {session.worker}: {error}")
        else:
            for waiting in self._sessions:
                waiting.progress.note_received(now)
            self._sessions.tell_progress_now_and_then(session)

    def check(self) -> None:
        """Refuse a worker that was asked for W_0 and sends nothing of it."""
        late = self._initial.overdue(self._clock.now())
        if self._members is None and late is not None:
            self._refuse(late, f"worker {late.worker} was asked for the initial model and sent "
                               f"nothing of it for {INITIAL_PATIENCE:g} s")

    def forget(self, session: WorkerSession) -> None:
        """A session was closed: another worker brings W_0, if this one was to."""
        if self._initial.is_from(session) and self._members is None:
            self._initial.give_up()
            self._ask_for_initial()

    def dismiss(self, reason: str) -> None:
        """Nobody can join any more: refuse those who are about to, now or later."""
        self._over = reason
        for session in [s for s in self._sessions if s.updates is None]:
            self._refuse(session, f"worker {session.worker} comes too late: {reason}")

    def _is_late(self, identity: bytes, worker: m.Hello | m.Reattach) -> bool:
        """True for a worker that knows a later server of this run: it has no place here, and what
        it keeps is for that one."""
        if worker.run != self._info.run or worker.epoch <= self.epoch:
            return False
        if session := self._sessions.get(identity):
            self._sessions.unshare(session)  # it hears what comes over the network alone
        self._sessions.turn_away(identity, worker.worker,
                                 f"there is a later server of this run, of epoch {worker.epoch}; "
                                 f"this one is of epoch {self.epoch}")
        return True

    def _readmit(self, identity: bytes, request: m.Reattach, line: object) -> None:
        """Let a member in that has no session, unless it is none."""
        worker = request.worker
        if reason := self._objection(identity, request) or self._objection_to_return(request):
            self._sessions.refuse(identity, worker, reason)
            return
        assert self._members is not None and self.layout is not None
        if not self._sessions.may_come(worker):
            self._put_off(identity, worker)
            return
        if (old := self._sessions.of(worker)) is not None:
            self._lose(old, "its connection is gone, and another has come in its place")
        owner = self.owners.get(worker)
        if owner is None or owner.owner != request.owner:
            owner = self.owners[worker] = IndexOwner(request.owner, self._reports.get(worker))
        if not self._members.engine.started:  # later, a leap would fool the model
            self._clock.go_on(min(request.now, self._began + _AHEAD))
        session = self._sessions.open(identity, worker, owner.earlier, line)
        session.request, session.attached_at = request, self._clock.now()
        self._sessions.attach(session, total_size(self.layout), request.socket)
        self._members.come_back(session, request)

    def _turn_down(self, identity: bytes, request: m.Reattach) -> None:
        """Answer a member of another server's run."""
        me, worker = f"worker {request.worker}", request.worker
        foreign = f"{me} is of run {request.run}, and this server's run is {self._info.run}"
        if reason := other_protocol(me, request.protocol):
            self._sessions.refuse(identity, worker, reason, nonce=request.nonce)
        elif self._info.others_wait:
            self._sessions.turn_away(
                identity, worker, f"{foreign}; the worker waits for its own: to have that, end "
                "this server and start it again with --resume")
        else:
            self._sessions.refuse(identity, worker, foreign, nonce=request.nonce)

    def _objection_to_return(self, request: m.Reattach) -> str | None:
        """Why this worker cannot go on where it is, in one line for both sides; None if it can."""
        me, worker = f"worker {request.worker}", request.worker
        if self._members is None or self.layout is None:
            return f"{me} is in mid-training, and this server has no checkpoint of it to go on from"
        if reason := difference(request.layout, self.layout):
            return (f"{me} has another model than the server: {reason} (here: the worker, there: "
                    "the server)")
        engine, owner = self._members.engine, self.owners.get(worker)
        ledger = engine.ledger
        newest = engine.store.latest.version
        if request.version > newest and request.ledger >= self.began or max(
                request.version, request.answered) > max(newest, self._known) + _AHEAD_NUMBERS:
            return f"{me} names a version or a push that no server of this run can have made"
        due = ledger.next_seq(worker)
        # A process that the checkpoint does not know is a later one, or gave up its place.
        if owner is not None and owner.owner != request.owner and request.first < due:
            return f"{me}: another process has taken its place; start it again"
        over = engine.done or (engine.rendezvous.ended and not engine.started)
        if over and (not request.left or request.answered > due):
            return f"{me} comes too late: the run has ended without it"
        try:
            ledger.lacks(worker, request.first, request.answered)
        except ValueError as error:
            return str(error)
        return None

    def _put_off(self, identity: bytes, worker: int) -> None:
        """This worker comes and goes too fast."""
        reason = f"worker {worker} has come too often in the last seconds: once more in a moment"
        self._sessions.told.tell(f"worker {worker}, too often here", reason)
        self._sessions.send(identity, m.NotServing(reason))

    def _objection(self, identity: bytes, hello: m.Hello | m.Reattach) -> str | None:
        """Why this worker may not take part, in one line for both sides; None if it may."""
        me, info = f"worker {hello.worker}", self._info
        if reason := other_protocol(me, hello.protocol):
            return reason
        if not 0 <= hello.worker < info.worker_num:
            return (f"{me} does not exist: the server was started with --worker_num="
                    f"{info.worker_num}, so the index must be 0 to {info.worker_num - 1}")
        expected = hello.expected if isinstance(hello, m.Hello) else {}
        if reason := disagreement(me, "worker", expected, info.settings):
            return reason
        old, now = self._sessions.of(hello.worker), self._clock.now()
        if old is not None and old.identity != identity and self._sessions.reaches(old):
            return (f"{me} is already connected (heard {now - old.liveness.heard:.1f} s ago); "
                    "start each worker with its own worker_index")
        finished = isinstance(hello, m.Reattach) and hello.left
        if self._over is not None and not finished:
            return f"{me} comes too late: {self._over}"
        return None

    def _admit(self, session: WorkerSession) -> None:
        assert self._members is not None and self.layout is not None
        assert session.layout is not None and session.request is not None
        engine = self._members.engine
        if engine.done:  # since a moment ago: the others are given the version that there is
            self.dismiss(f"the run has ended ({engine.stop_reason or 'done'})")
            return
        reason = difference(session.layout, self.layout)
        if reason:
            self._refuse(session, f"worker {session.worker} has another model than the server: "
                                  f"{reason} (here: the worker, there: the server); use the same "
                                  "model")
            return
        self._note_layers(session)
        if reason := self._other_layers(session):
            self._refuse(session, f"worker {session.worker} has another model than the others: "
                                  f"{reason} (a vocabulary, boundaries or constants), and no "
                                  "version carries them; make them the same on all workers, say "
                                  "by adapting to the same data")
            return
        self._sessions.attach(session, total_size(self.layout), session.request.socket)
        self.owners[session.worker] = IndexOwner(self._info.owner(session.identity),
                                                 session.earlier)
        self._answer(session, send_initial=False)
        self._members.join(session)

    def _note_layers(self, session: WorkerSession) -> None:
        """The run's layers are this worker's, where they are not known."""
        if self.layers is None and isinstance(session.request, m.Join):
            self.layers = session.request.layers

    def _other_layers(self, session: WorkerSession) -> str | None:
        """What its layers have that is not the run's, in words; None: nothing that is known."""
        layers = session.request.layers if isinstance(session.request, m.Join) else None
        return None if layers is None or self.layers is None else other_state(layers, self.layers)

    def _ask_for_initial(self) -> None:
        """Have a worker send W_0, unless the evaluator makes it."""
        if self._on_initial is None:
            return
        if session := self._initial.choose(self._sessions, self._clock.now()):
            assert session.layout is not None
            self._sessions.expect(total_size(session.layout))
            self._answer(session, send_initial=True)

    def _answer(self, session: WorkerSession, send_initial: bool) -> None:
        seq = steps = run_steps = 0
        if self._members is not None:
            engine = self._members.engine
            seq = engine.ledger.next_seq(session.worker)
            member = engine.members.get(session.worker)
            steps, run_steps = member.steps if member else 0, engine.steps
        owner = "" if send_initial else self.owners[session.worker].owner
        session.answer = m.Joined(seq, steps, send_initial, self._clock.run(), self.epoch,
                                  session.group, session.inbox, run_steps, owner,
                                  self.ticket(session.worker) if owner else b"")
        self._sessions.send(session.identity, session.answer)

    def _answer_again(self, session: WorkerSession, answer: m.Joined) -> None:
        """The answer was lost on its way, and what came after it: over a connection that was."""
        if answer.ticket:  # a member's, and the epoch may be a later one by now
            answer = msgspec.structs.replace(answer, epoch=self.epoch,
                                             ticket=self.ticket(session.worker))
        if session.updates is not None and session.request is not None:
            self._sessions.share(session, session.updates.size, session.request.socket)
            answer = session.answer = msgspec.structs.replace(answer, memory=session.inbox)
        self._sessions.send(session.identity, answer)
        self._sessions.repeat(session)

    def _refuse(self, session: WorkerSession, reason: str) -> None:
        self._sessions.refuse(session.identity, session.worker, reason, self._over is not None)
        self._lose(session, reason)
