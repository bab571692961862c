"""Admission of workers to a run: introduction, joining, and the transfer of W_0."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np

from wbsp import timeouts
from wbsp.ps.checkpoint.state import IndexOwner
from wbsp.ps.clock import Clock
from wbsp.ps.config import RunInfo
from wbsp.ps.sessions.handlers import Handlers, Peer
from wbsp.ps.sessions.registry import SessionRegistry
from wbsp.ps.sessions.requests import Requests
from wbsp.ps.sessions.session import WorkerSession, check_reattach, disagreement, other_protocol
from wbsp.runlog.awaited import named
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.frozen import Division, FrozenValues, other_model
from wbsp.tensors.layout import (
    TensorSpec,
    difference,
    other_state,
    total_size,
)
from wbsp.wire.assembly import VectorStream
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import key_of_process, ticket

# How far workers may be ahead of the checkpoint that this server began with: seconds of the run's
# time, pushes and versions. Higher claims are refused, because they could exhaust the numbers.
_AHEAD, _AHEAD_NUMBERS = 86_400.0, 1 << 32
_MOST_ASKED = 1000  # processes that wait for an index
_LITTLE = 1 << 13  # floats in one message to a worker with shared memory


class OtherServer(Protocol):
    """Another server of this run: see `wbsp.ps.replication.primary`.

    Attributes:
        doubt: why that server may serve in place of this one, in one line; None: it does not.
        cleared: that server does not begin this run in place of this one.
    """

    @property
    def doubt(self) -> str | None: ...

    @property
    def cleared(self) -> bool: ...

    def hear_of(self, epoch: int, worker: int) -> None:
        """Handle a worker that knows a later server of this run."""

    def came(self, worker: int | None, own: bytes) -> None:
        """Handle a worker's new process that connects while there is a doubt."""

    def chooses(self, worker: int, own: bytes) -> str | None:
        """Note that this index was chosen for a process, for any later server of the run.

        Returns:
            Why that cannot be noted, in one line; None: it is.
        """


class Begin(Protocol):
    """Function that takes W_0 (float32 [size]), its layout, and frozen values; see `Server`."""

    def __call__(self, vector: np.ndarray, layout: list[TensorSpec], *,
                 frozen: FrozenValues) -> None: ...


class Entrance(ABC):
    """From a worker's first message to its request to join; used by the event loop.

    It is a `Lobby` until a model exists, and then `Admission`.
    """

    def __init__(self, info: RunInfo, sessions: SessionRegistry, clock: Clock, other: OtherServer):
        self._info = info
        self._sessions = sessions
        self._clock = clock
        self._other = other
        self._begun = False  # a model exists
        self._over: str | None = None  # why no worker can join any more
        self._ends = False  # no other run follows, either
        self._asked: dict[bytes, float] = {}  # processes that wait for an index -> when they asked
        # Those that wait for the next run -> when they asked first, and last.
        self._new: dict[bytes, tuple[float, float]] = {}
        # Workers whose processes retry until it is certain that the run ends -> the newest time
        self._retry: dict[int | None, float] = {}

    def handlers(self) -> Handlers:
        """Return the handlers for messages with which workers enter."""
        return Handlers({m.Hello: self.hello, m.Reattach: self.reattach},
                        {m.Join: self.join, m.Initial: self.initial})

    @property
    def _unsafe(self) -> str | None:
        """Return why the end of the run is not certain, in one line; None: it is, or it runs."""
        return None

    def _has_left(self) -> bool:
        """Return whether a process that has left this run cannot join it again, because it ends."""
        return False

    def _owes(self, worker: int, replaces: bool) -> bool:
        """Return whether a worker had finished, and its new process lacks only the last version.

        `replaces`: as in `Hello`, or it was admitted; others begin anew, and are too late.
        """
        return False

    @abstractmethod
    def _comes_for_next(self, worker: int, proven: bool) -> None:
        """Handle a process that waits for the next run: as a worker that has the final version of
        this one, or, unless it is `proven`, in place of a process that has ended."""

    @property
    def _awaits_some(self) -> bool:
        """Return whether a worker may still come for this run's final version."""
        return False

    @abstractmethod
    def initial(self, session: WorkerSession, initial: m.Initial, body: memoryview) -> None:
        """Take a chunk of W_0.

        Raises:
            WireError: it was not requested.
        """

    @abstractmethod
    def lose(self, session: WorkerSession, reason: str, replaced: bool = False) -> None:
        """End a session without a word from the worker; `replaced`: as in `Engine.leave`."""

    @abstractmethod
    def _joined(self, session: WorkerSession) -> None:
        """Handle a worker that has requested to join."""

    @abstractmethod
    def _return(self, peer: Peer, request: m.Reattach, session: WorkerSession | None) -> None:
        """Handle a worker that has proven to be a former member; `session`: its session, if any."""

    def hello(self, peer: Peer, hello: m.Hello) -> None:
        """Handle the introduction of a worker."""
        identity, line = peer.identity, peer.line
        session = self._sessions.get(identity)
        if session is not None and session.line is not line and not (
                hello.own and hello.own == session.own):
            self._sessions.answer(identity, m.Refused(
                f"worker {session.worker} is already connected, by another process"))
            return
        proven = bool(hello.nonce) and hello.worker is not None
        if proven and self._sessions.proven(identity, hello, key_of_process(
                self._info.secret, hello.worker or 0, hello.own)) is None:
            return
        if hello.leaves and not proven:  # of nobody that is waited for
            self._sessions.answer(identity, m.Refused(
                "only the process that was a worker can say that it ends", over=True))
            return
        if self._is_late(identity, hello):
            return
        if hello.run not in ("", self._info.run):
            # that run ended as the worker was about to join, and the worker was not notified
            self._sessions.refuse(identity, hello.worker, (
                f"{_name(hello.worker)} is too late for run {hello.run}: this server serves "
                f"another one ({self._info.run}); start the worker again"), over=True)
            return
        if self._over is None and (doubt := self._other.doubt or self._unsafe) is not None:
            # the serving server takes it; if that is this one, the worker retries
            self._other.came(hello.worker, hello.own)
            if hello.worker is None or 0 <= hello.worker < self._info.config.worker_num:
                self._retry[hello.worker] = self._clock.now()
            self._sessions.refuse(identity, hello.worker, doubt, elsewhere=True)
            return
        self._retry.pop(hello.worker, None)
        series = self._sessions.series
        try:
            due = series.due(hello.series, hello.fit, hello.anew, self._begun)
        except ValueError as error:
            if proven and hello.worker is not None and hello.fit > series.fit:
                series.is_outrun(hello.worker, hello.own, hello.leaves)
            self._sessions.refuse(identity, hello.worker, f"{_name(hello.worker)} {error}")
            return
        old = self._sessions.owned(hello.own)
        if self._over is not None and old is not None and old.identity != identity:
            # it has left that session, and its Goodbye was lost with the connection
            self._sessions.returns(old)
            self.lose(old, "it left in mid-run")
        worker, chosen = hello.worker, False
        rival = None if worker is None else self._sessions.of(worker)
        if proven and rival not in (None, session) and not (rival.proven or rival.plane):
            self.lose(rival, "the process that was this worker before has come")
        if due > series.fit and self._over is None:
            self._sessions.refuse(identity, worker, (
                f"{_name(worker)} has the last version of fit {series.fit}, which was lost with "
                "its server: that fit continues here from an earlier one; restart the worker"))
            return
        if due > series.fit:
            if proven and worker is not None:
                self._comes_for_next(worker, proven)
            self._wait_for_next(identity, hello, worker, proven)
            return
        if (proven and worker is not None and hello.left and due == series.fit
                and hello.series == series.id and not series.single and self._has_left()
                and self._over is None):  # it retries until the next run begins
            series.comes(worker, hello.own, proven)
            self._sessions.answer(identity, m.Refused("the run has ended", over=True, follows=True))
            return
        owed = worker is not None and self._owes(worker, hello.replaces)
        if self._over is not None and not owed:
            self._wait_for_next(identity, hello, worker, proven)
            return
        if worker is None or hello.given:
            worker = self._index_for(identity, hello)
            if worker is None:
                self._refuse_without_index(identity, hello)
                return
            chosen = True
        if self._turns_away(identity, worker, hello):
            return
        if session is None and not proven and not self._sessions.may_come(worker):
            self._put_off(identity, worker)
            return
        if chosen and hello.own and (why := self._other.chooses(worker, hello.own)) is not None:
            self._sessions.refuse(identity, None, (
                f"{_name(None)} waits: its index cannot be noted: {why}"), elsewhere=True)
            return
        old = self._sessions.of(worker)
        if old is not None and old.identity != identity:
            self.lose(old, "a new connection has replaced this one", hello.replaces)
        if session is None:
            session = self._sessions.open(identity, worker, hello.own, proven)
        session.introduced(line, proven, hello.replaces,
                           0 if hello.left or due >= series.fit else due)
        self._sessions.send(identity, m.Welcome(
            self._info.settings, self._clock.run(), self._info.rule, self._info.epoch,
            None if worker == hello.worker else worker,
            key_of_process(self._info.secret, worker, hello.own), session.passes))

    def _wait_for_next(self, identity: bytes, hello: m.Hello, worker: int | None,
                       proven: bool) -> None:
        """Have a process wait for the next run, or refuse it if none follows.

        It retries until the next run begins, or its process ends. A process that has not proven to
        be this worker can extend the series, but not end it.
        """
        sessions, series = self._sessions, self._sessions.series
        # The worker's own process may come before its Goodbye, over another connection.
        if worker is None or hello.given or proven:
            if (reason := self._stranger(worker, hello)) is not None:
                sessions.refuse(identity, worker, reason)
                return
        elif self._turns_away(identity, worker, hello):
            return
        why = self._over or ""
        known = worker in series.living
        if proven and worker is not None and (hello.leaves or self._ends):
            series.departs(worker, hello.own, proven)
        ends = self._ends or not (proven or self._awaits_some or len(sessions)
                                  or series.goes_on or series.lost(self._info.config.worker_num))
        if not (hello.leaves or ends or series.single):
            series.comes(worker if worker in range(self._info.config.worker_num) else None,
                         hello.own, proven)
            if worker is not None and not proven:
                self._comes_for_next(worker, proven)
            if worker is None and hello.own and len(self._new) < _MOST_ASKED:
                now = self._clock.now()
                self._new[hello.own] = self._new.get(hello.own, (now, now))[0], now
            sessions.answer(identity, m.Refused(why, over=True, follows=True))
        elif hello.leaves or known:  # as announced
            sessions.answer(identity, m.Refused(why, over=True, ends=ends))
        else:
            sessions.refuse(identity, worker, f"{_name(worker)} is too late: {why}", over=True,
                            ends=ends and not series.single)

    def reattach(self, peer: Peer, request: m.Reattach) -> None:
        """Handle a member with a new connection, and perhaps from an earlier server of the run.

        It is challenged until it has proven its identity.

        Raises:
            WireError: the message is invalid.
        """
        check_reattach(request)
        identity = peer.identity
        session, info, worker = self._sessions.get(identity), self._info, request.worker
        if request.protocol != m.PROTOCOL or request.run != info.run:
            if session is not None:
                raise m.WireError(f"worker {worker} of another run in the session of worker "
                                  f"{session.worker}")
            self._turn_down(identity, request)
            return
        key = ticket(info.secret, worker, request.owner, request.epoch)
        if self._sessions.proven(identity, request, key) is None:
            return
        if self._is_late(identity, request):
            self._other.hear_of(request.epoch, worker)
            return
        if session is not None and (session.worker != worker or session.plane is None):
            raise m.WireError(f"worker {worker} attached again in the session of "
                              f"worker {session.worker}")
        self._return(peer, request, session)

    def join(self, session: WorkerSession, join: m.Join) -> None:
        """Handle a worker that has built its model.

        Raises:
            WireError: the layout is impossible.
        """
        try:
            size = total_size(join.layout)
            still = total_size(join.frozen)
        except ValueError as error:
            raise m.WireError(str(error)) from None
        if not 0 < size <= size + still <= m.MAX_MODEL:
            raise m.WireError(f"a model of {size} floats, and {still} that are frozen")
        if session.layout is not None:
            if join.layout != session.layout:
                raise m.WireError(f"worker {session.worker} joined twice")
            if session.answer is not None:
                self._answer_again(session, session.answer)
            return
        session.asks_to_join(join)
        self._joined(session)

    def awaits_retry(self, now: float) -> bool:
        """Return whether a process that retries is about to learn that the run has ended."""
        return any(now - at < timeouts.RETRY for at in self._retry.values())

    def dismiss(self, reason: str, ends: bool = False) -> None:
        """Refuse workers that ask to join from now on; `ends`: as in `messages.Refused`."""
        self._over = reason
        self._ends = ends
        for session in [one for one in self._sessions if one.plane is None]:
            if self._owes(session.worker, session.replaces):
                if session.joined:
                    self._joined(session)
                continue
            self._sessions.lives(session)
            self._refuse(session, f"worker {session.worker} is too late: {reason}",
                         follows=not (ends or self._sessions.series.single))
            if ends:
                self._sessions.departs(session)

    def close(self) -> None:
        """Refuse all workers from now on, because the server ends."""
        self.dismiss(self._over or "the run has ended", ends=True)

    def new_processes(self) -> int:
        """Return how many processes without an index wait for the next run, each in place of one
        that has ended; not of two that follow each other, because the first one is silent then."""
        now = self._clock.now()
        return sum(now - last < timeouts.RETRY < now - first for first, last in self._new.values())

    def expect_lost(self) -> None:
        """Expect lost workers' next processes for a while: an earlier server of the run may have
        told them that another run follows."""
        lost = self._sessions.series.lost(self._info.config.worker_num)
        self._retry.update(dict.fromkeys(lost, self._clock.now()))

    def expect_nameless(self) -> None:
        """Expect processes in the next run that have just asked for an index, and have none yet."""
        sessions, now = self._sessions, self._clock.now()
        for own, at in self._asked.items():
            if not self._ends and now < at + timeouts.WORKER_GONE and sessions.owned(own) is None:
                sessions.series.comes(None, own, False)

    def _is_late(self, identity: bytes, worker: m.Hello | m.Reattach) -> bool:
        """Return whether a worker knows a later server of this run.

        It is refused here, because its resend buffer is for that server.
        """
        if worker.run != self._info.run or worker.epoch <= self._info.epoch:
            return False
        if session := self._sessions.get(identity):
            session.unshare()  # it reads only the network now
        self._sessions.refuse(identity, worker.worker, (
            f"a later server of this run exists, of epoch {worker.epoch}; this one is of epoch "
            f"{self._info.epoch}"), elsewhere=True)
        return True

    def _turn_down(self, identity: bytes, request: m.Reattach) -> None:
        """Refuse a member of another server's run."""
        me, worker = f"worker {request.worker}", request.worker
        foreign = f"{me} is of run {request.run}, and this server's run is {self._info.run}"
        if reason := other_protocol(me, request.protocol):
            self._sessions.refuse(identity, worker, reason, nonce=request.nonce)
        elif self._info.others_wait:
            self._sessions.refuse(
                identity, worker, f"{foreign}; the worker waits for its own: to continue that run, "
                "end this server and start it again with --resume", elsewhere=True)
        else:
            self._sessions.refuse(identity, worker, foreign, nonce=request.nonce)

    def _put_off(self, identity: bytes, worker: int) -> None:
        """Delay a worker that connects too often."""
        reason = f"worker {worker} has connected too often in the last seconds; it will retry soon"
        self._sessions.log.tell(f"worker {worker}, too often here", reason)
        self._sessions.send(identity, m.NotServing(reason))

    def _index_for(self, identity: bytes, hello: m.Hello) -> int | None:
        """Return the index of a process whose index the server chooses; None: each is held.

        A process that asks again, because it has lost the answer, gets the same index, also from
        a later server.
        """
        sessions, series = self._sessions, self._sessions.series
        known = sessions.get(identity) or sessions.owned(hello.own)
        if known is not None:
            return known.worker
        if other_protocol("", hello.protocol):
            return hello.worker  # it is refused
        now = self._clock.now()
        held = {session.worker for session in sessions}
        held |= sessions.indices.kept(now) & series.of_another(hello.own)
        wanted = series.index_of(hello.own) if hello.worker is None else hello.worker
        return sessions.indices.choose(held, wanted, now)

    def _refuse_without_index(self, identity: bytes, hello: m.Hello) -> None:
        """Refuse a process without an index, or have it wait until a silent process has ended."""
        sessions, workers = self._sessions, self._info.config.worker_num
        me, process = _name(None), _process(identity, hello)
        alive, silent = all(sessions.outlives(one, process) for one in sessions), sessions.silent()
        if reason := other_protocol(me, hello.protocol):
            sessions.refuse(identity, None, reason)
        elif silent or not alive:
            if hello.own in self._asked or len(self._asked) < _MOST_ASKED:
                self._asked[hello.own] = self._clock.now()
            sessions.refuse(identity, None, (
                f"{me} waits: all {workers} indices are taken; "
                + (f"that of {named(silent)}, which is silent, becomes free if the process has "
                   "ended" if silent else "one becomes free if its process has ended")),
                elsewhere=True)
        else:
            self._asked.pop(hello.own, None)
            sessions.refuse(identity, None, (
                f"{me} cannot join: all {workers} indices are taken by connected workers; start "
                f"the server with --worker_num={workers + 1} for one more"))

    def _turns_away(self, identity: bytes, worker: int, hello: m.Hello | m.Reattach) -> bool:
        """Refuse this worker if there is a reason, in one line for both sides; return whether."""
        me, sessions = f"worker {worker}", self._sessions
        if reason := self._stranger(worker, hello):
            sessions.refuse(identity, worker, reason)
            return True
        old = sessions.of(worker)
        if (old is not None and old.identity != identity and not _is_same(old, hello)
                and sessions.reaches(old)):
            # A host that is cut off, or is gone, ends no connection. So its process may be
            # restarted before the loss of the old one is known.
            replaces = isinstance(hello, m.Hello) and hello.replaces
            if replaces or not sessions.outlives(old, _process(identity, hello)):
                if self._over is not None:
                    self._retry[worker] = self._clock.now()
                sessions.refuse(identity, worker, (
                    f"{me} has another connection, whose process may have ended; the new process "
                    "retries until that is known"), elsewhere=True)
            else:
                silent = self._clock.now() - old.liveness.heard
                sessions.refuse(identity, worker, (
                    f"{me} is already connected (last message {silent:.1f} s ago); start each "
                    "worker with its own worker_index"))
            return True
        if self._over is not None and isinstance(hello, m.Reattach) and not (
                hello.left or self._owes(worker, True)):
            sessions.refuse(identity, worker, f"{me} is too late: {self._over}")
            return True
        return False

    def _stranger(self, worker: int | None, hello: m.Hello | m.Reattach) -> str | None:
        """Return why such a process is no worker of this server, in one line, or None."""
        me, info = _name(worker), self._info
        if reason := other_protocol(me, hello.protocol):
            return reason
        workers = info.config.worker_num
        if worker is not None and not 0 <= worker < workers and not (
                isinstance(hello, m.Hello) and hello.given):
            return (f"{me} does not exist: the server was started with --worker_num={workers}, so "
                    f"the index must be 0 to {workers - 1}")
        expected = hello.expected if isinstance(hello, m.Hello) else {}
        return disagreement(me, "worker", expected, info.settings.texts())

    def _answer_again(self, session: WorkerSession, answer: m.Joined) -> None:
        """Repeat an answer that was lost with its connection, and later messages."""
        if answer.ticket:  # a member's, and the epoch may be a later one by now
            answer = msgspec.structs.replace(answer, epoch=self._info.epoch,
                                             ticket=self._info.ticket(session.worker))
        if session.plane is not None and session.request is not None:
            session.attach(self._sessions.planes, session.plane.size, session.request.socket)
            answer = session.accept(msgspec.structs.replace(answer, memory=session.inbox))
        self._sessions.send(session.identity, answer)
        self._sessions.repeat(session)

    def _refuse(self, session: WorkerSession, reason: str, follows: bool = False) -> None:
        self._sessions.refuse(session.identity, session.worker, reason, self._over is not None,
                              ends=self._ends, follows=follows)
        self.lose(session, reason)


class Lobby(Entrance):
    """Admission before a model exists.

    One worker at a time is requested to send W_0, the first that has built its model; the others
    wait.

    Attributes:
        begin: ends the lobby.
        ready: returns whether a worker may be asked.
        bringer: the worker that was asked for W_0 and has not failed.
    """

    def __init__(self, info: RunInfo, sessions: SessionRegistry, clock: Clock, other: OtherServer,
                 begin: Begin, ready: Callable[[], bool]):
        super().__init__(info, sessions, clock, other)
        self._begin = begin
        self._ready = ready
        self.bringer: WorkerSession | None = None
        self._stream: VectorStream  # of W_0
        self._progress_at = 0.0

    def handlers(self) -> Handlers:
        entering = super().handlers()
        entering.add(Handlers(session={m.Leaving: self.leave, m.Goodbye: self.leave}))
        return entering

    def leave(self, session: WorkerSession, leaving: m.Leaving | m.Goodbye) -> None:
        """Handle a worker that leaves before the run has begun."""
        if isinstance(leaving, m.Leaving):
            self._sessions.note_report(session, leaving.report)
        self._end(session)
        if isinstance(leaving, m.Goodbye) and leaving.again:
            self._sessions.returns(session)
        else:
            self._sessions.departs(session)

    def lose(self, session: WorkerSession, reason: str, replaced: bool = False) -> None:
        self._sessions.lives(session)  # its process may continue
        self._end(session)

    def _end(self, session: WorkerSession) -> None:
        """Request W_0 from another worker, if it was requested from this one."""
        self._sessions.close(session)
        if session is self.bringer:
            self.bringer = None
            self._ask_for_initial()

    def initial(self, session: WorkerSession, initial: m.Initial, body: memoryview) -> None:
        take = self._begin
        if session is not self.bringer or take is None or session.layout is None:
            raise _not_requested(session)
        now = self._clock.now()
        try:
            found = self._stream.add(initial.offset, body, initial.size)
            self._progress_at = now
            if found is not None:
                if isinstance(session.request, m.Join):
                    self._info.begins_with(session.request)
                vector, *still = found
                if still:  # one piece of memory with the vector, which goes its own way
                    vector, still = vector.copy(), [still[0].copy()]
                take(vector, session.layout, frozen=FrozenValues(session.frozen, *still))
        except m.WireError:
            raise
        except (ValueError, MemoryError) as error:
            self._info.unlearn()
            self._refuse(session, f"worker {session.worker}: {error}")
        else:
            if found is not None:  # a site waits for the version above, if no model exists yet
                self._progress_at = math.inf
            self.wait(now)
            self._sessions.tell_progress_now_and_then(session)

    def _comes_for_next(self, worker: int, proven: bool) -> None:
        """Do nothing: no run has begun."""

    def wait(self, now: float) -> None:
        """Reset the workers' idle timers while another process works for them."""
        for waiting in self._sessions:
            waiting.progress.note_received(now)

    def check(self) -> None:
        """Ask for W_0, and refuse a worker that was asked and does not send it."""
        self._ask_for_initial()
        late = self.bringer
        if late is not None and self._clock.now() - self._progress_at > timeouts.INITIAL_STALLED:
            self._refuse(late, f"worker {late.worker} was asked for the initial model and sent "
                               f"nothing of it for {timeouts.INITIAL_STALLED:g} s")

    def _joined(self, session: WorkerSession) -> None:
        self._ask_for_initial()

    def _return(self, peer: Peer, request: m.Reattach, session: WorkerSession | None) -> None:
        if not self._turns_away(peer.identity, request.worker, request):
            self._sessions.refuse(peer.identity, request.worker, (
                f"worker {request.worker} is in mid-training, but this server has no checkpoint "
                "to resume from"))

    def _ask_for_initial(self) -> None:
        """Request W_0 from a worker, unless one sends it."""
        if self.bringer is not None or not self._ready():
            return
        for session in self._sessions:
            if session.joined and session.layout is not None:
                sizes = [total_size(session.layout)]
                if still := total_size(session.frozen):
                    sizes.append(still)
                self.bringer, self._progress_at = session, self._clock.now()
                self._stream = VectorStream(sizes, BufferPool())
                self._sessions.expect(sum(sizes))
                self._sessions.send(session.identity, session.accept(
                    m.Joined(0, 0, True, self._clock.run(), self._info.epoch)))
                return


class Admission(Entrance):
    """Admission while a model exists: workers with an equal model join, former members continue."""

    def __init__(self, lobby: Lobby, requests: Requests, layout: list[TensorSpec],
                 durable: Callable[[], bool]):
        """Prepare; durable() returns whether the run's first version is."""
        super().__init__(lobby._info, lobby._sessions, lobby._clock, lobby._other)
        self._durable = durable
        self._bringer, self._requests, self._engine = lobby.bringer, requests, requests.engine
        if self._bringer is not None:
            self._bringer.has_sent_initial()
        self._layout, self._size = layout, total_size(layout)
        self._begun = True
        self._waits = False  # a worker, until this run would not begin anew
        self._digest = self._info.frozen.digest
        self._began = self._clock.run()  # time of the run since which a model exists
        # highest number of a version or push then
        self._known = max(self._engine.store.latest.version,
                          *self._engine.ledger.state().values(), 0)

    def handlers(self) -> Handlers:
        entering = super().handlers()
        entering.add(Handlers(session={m.AskFrozen: self.ask_frozen}))
        return entering

    def ask_frozen(self, session: WorkerSession, ask: m.AskFrozen) -> None:
        """Send the run's frozen values to a member. Raises WireError for an offset beyond them."""
        values = self._info.frozen.vector
        if session.plane is None or ask.offset >= values.size:
            raise m.WireError(f"worker {session.worker} asked for frozen values from {ask.offset} "
                              f"on, of {values.size}")
        # over memory's socket there is a bound to a message
        part = values[ask.offset:ask.offset + (_LITTLE if session.inbox else m.CHUNK)]
        self._sessions.send(session.identity, m.FrozenPart(ask.offset, part.tobytes()))

    @property
    def _unsafe(self) -> str | None:
        if self._over is None and self._engine.done:
            return ("the run's last version is not durable yet: if this server is lost, the run "
                    "continues from the version before")
        return None

    def _has_left(self) -> bool:
        if self._requests.all_left:
            self._requests.end("all workers had left it in mid-run, and one begins anew")
        return self._engine.stop_reason is not None

    def _comes_for_next(self, worker: int, proven: bool) -> None:
        if proven or (self._awaits_some and self._sessions.of(worker) is None):
            self._requests.has_final(worker)

    @property
    def _awaits_some(self) -> bool:
        return self._engine.rendezvous.ended and not self._engine.started

    def _owes(self, worker: int, replaces: bool) -> bool:
        return replaces and self._engine.owes(worker)

    def go_on(self) -> None:
        """Admit the workers that wait for W_0 to be durable, or for the standby to know of it."""
        if self._waits and self._is_certain:
            self._waits = False
            self.admit_all()

    @property
    def _is_certain(self) -> bool:
        """Return whether no later server would begin this run anew, without its workers' work."""
        return self._durable() and self._other.cleared

    def admit_all(self) -> None:
        """Admit the workers that wait for a model."""
        for session in list(self._sessions):
            if session.joined and session.plane is None:
                self._admit(session)

    def initial(self, session: WorkerSession, initial: m.Initial, body: memoryview) -> None:
        """Repeat the answer to W_0, if there is one, and this is the worker that has sent it."""
        if session is not self._bringer:
            raise _not_requested(session)
        if session.answer is not None:
            self._answer_again(session, session.answer)

    def lose(self, session: WorkerSession, reason: str, replaced: bool = False) -> None:
        self._requests.lose(session, reason, replaced)

    def _joined(self, session: WorkerSession) -> None:
        self._admit(session)

    def _return(self, peer: Peer, request: m.Reattach, session: WorkerSession | None) -> None:
        if session is None or _answered_elsewhere(session, request, self._info.began):
            self._readmit(peer, request)
            return
        session.reconnects(peer.line, self._clock.now())
        self._requests.come_again(session, request)

    def _readmit(self, peer: Peer, request: m.Reattach) -> None:
        """Readmit a former member without a session, if it is one."""
        identity, worker = peer.identity, request.worker
        if not request.left and (unsafe := self._unsafe) is not None:
            self._sessions.refuse(identity, worker, unsafe, elsewhere=True)
            return
        if self._turns_away(identity, worker, request):
            return
        if reason := self._objection_to_return(request):
            self._sessions.refuse(identity, worker, reason)
            return
        if not self._sessions.may_come(worker):
            self._put_off(identity, worker)
            return
        if (old := self._sessions.of(worker)) is not None:
            self.lose(old, "a new connection has replaced this one")
        owner = self._info.owners.get(worker)
        if owner is None or owner.owner != request.owner:
            owner = self._info.owned(worker, IndexOwner(
                request.owner, self._sessions.reports.get(worker)))
        if not self._engine.started:  # a later jump would mislead the model
            self._clock.go_on(min(request.now, self._began + _AHEAD))
        session = self._sessions.open(identity, worker, request=request, earlier=owner.earlier)
        session.reconnects(peer.line, self._clock.now())
        self._sessions.attach(session, self._size, request.socket, self._engine.ledger)
        self._requests.come_back(session, request)

    def _objection_to_return(self, request: m.Reattach) -> str | None:
        """Return why this worker cannot continue, in one line for both sides, or None."""
        me, worker = f"worker {request.worker}", request.worker
        if reason := difference(request.layout, self._layout):
            return (f"{me} has another model than the server: {reason} (here: the worker, there: "
                    "the server)")
        engine, owner = self._engine, self._info.owners.get(worker)
        ledger = engine.ledger
        newest = engine.store.latest.version
        if (request.version > newest and request.ledger >= self._info.began) or max(
                request.version, request.answered) > max(newest, self._known) + _AHEAD_NUMBERS:
            return f"{me} names a version or a push that no server of this run can have made"
        due = ledger.next_seq(worker)
        # A process that the checkpoint does not know is a later one, or has lost its index.
        if owner is not None and owner.owner != request.owner and request.first < due:
            return f"{me}: another process has taken over this index; start the worker again"
        over = engine.done or (engine.rendezvous.ended and not engine.started)
        if over and (request.answered > due or not (request.left or engine.owes(worker))):
            return f"{me} is too late: the run has ended without it"
        try:
            ledger.lacks(worker, request.first, request.answered)
        except ValueError as error:
            return str(error)
        return None

    def _admit(self, session: WorkerSession) -> None:
        assert session.layout is not None and session.request is not None
        engine = self._engine
        owed = self._owes(session.worker, session.replaces)
        if engine.done and not (owed and self._over is not None):
            return  # just now: the worker is answered once that is certain
        if not self._is_certain:  # `go_on` follows
            self._waits = True
            return
        info = self._info
        reason = other_model(Division(session.layout, session.frozen, session.local),
                             Division(self._layout, info.frozen.layout, info.local))
        if reason:
            self._refuse(session, f"worker {session.worker} has another model than the server: "
                                  f"{reason} (here: the worker, there: the server); use the same "
                                  "model")
            return
        if isinstance(session.request, m.Join):
            info.learn(session.request)
        if reason := self._other_layers(session):
            self._refuse(session, f"worker {session.worker} has another model than the others: "
                                  f"{reason} (a vocabulary, boundaries or constants), which "
                                  "versions do not carry; make them equal on all workers, for "
                                  "example by adapting to the same data")
            return
        join = session.request
        try:
            work = engine.open(session.worker, join.data, join.first_epoch,
                               join.work) if isinstance(join, m.Join) else None
        except ValueError as error:
            self._refuse(session, str(error))
            return
        self._sessions.attach(session, self._size, join.socket, engine.ledger)
        owner = self._info.owner(session.identity)
        info.owned(session.worker, IndexOwner(owner, session.earlier))
        member = engine.members.get(session.worker)
        self._sessions.send(session.identity, session.accept(m.Joined(
            engine.ledger.next_seq(session.worker), member.steps if member else 0, False,
            self._clock.run(), self._info.epoch, session.group, session.inbox, engine.steps,
            owner, self._info.ticket(session.worker), work,
            isinstance(join, m.Join) and join.digest != self._digest, engine.examples)))
        self._requests.join(session, owed)

    def _other_layers(self, session: WorkerSession) -> str | None:
        """Return how its layers differ from the run's, in words, or None."""
        layers = session.request.layers if isinstance(session.request, m.Join) else None
        known = self._info.layers
        return None if layers is None or known is None else other_state(layers, known)


def _is_same(session: WorkerSession, hello: m.Hello | m.Reattach) -> bool:
    """Return whether it is the process of this session, over another connection."""
    return isinstance(hello, m.Hello) and bool(hello.own) and session.own == hello.own


def _process(identity: bytes, hello: m.Hello | m.Reattach) -> bytes:
    """Return what names this process, over all its connections if possible."""
    return (isinstance(hello, m.Hello) and hello.own) or identity


def _name(worker: int | None) -> str:
    return "a worker without an index" if worker is None else f"worker {worker}"


def _answered_elsewhere(session: WorkerSession, request: m.Reattach, began: int) -> bool:
    """Return whether an earlier server has answered a worker since it asked this one to return.

    A worker that has voted for this process may go back to the server that it had. `began`: epoch
    in which this server began.
    """
    back = session.returning
    return back is not None and request.ledger < began and (
        request.answered > back.request.answered or request.left != back.request.left)


def _not_requested(session: WorkerSession) -> m.WireError:
    return m.WireError(f"worker {session.worker} sent an initial model that was not requested")
