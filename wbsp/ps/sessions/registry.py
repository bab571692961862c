"""The workers' sessions: open ones, their liveness, and sending."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping

from wbsp import timeouts
from wbsp.core.ledger import Ledger
from wbsp.core.stats import Report
from wbsp.limits import one_line
from wbsp.ps.checkpoint.state import Totals
from wbsp.ps.config import Reporter, ServerConfig
from wbsp.ps.series import Series
from wbsp.ps.sessions.data_plane import DataPlanes, ShardedPlanes
from wbsp.ps.sessions.handlers import Handlers
from wbsp.ps.sessions.indices import Indices
from wbsp.ps.sessions.peer_log import AT_ONCE, PeerLog, TokenBucket
from wbsp.ps.sessions.session import WorkerSession, check_report
from wbsp.ps.sharding.coordinator import Shards
from wbsp.runlog.awaited import named
from wbsp.wire.liveness import WORKER, Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Bond, Request, answer
from wbsp.wire.queues import PeerQueues
from wbsp.wire.rate import RateLimiter
from wbsp.wire.shm.lender import Lending
from wbsp.wire.sockets import ServerSocket

_MOST_RIVALS = 1000  # processes that ask for an index which another one holds
_TURNED_AWAY = 64  # reasons that are remembered, so that each is printed once


class SessionRegistry:
    """One session a worker, by the identity of its socket; used by the event loop.

    It makes no decisions about the run.
    """

    def __init__(self, socket: ServerSocket, config: ServerConfig, reporter: Reporter,
                 shards: Shards, series: Series):
        self.series = series
        self._clock = reporter.clock.now
        self._workers = config.worker_num
        self.log = PeerLog(reporter)
        # A server that waits for workers must not end before an index is free for them.
        self.indices = Indices(config.worker_num,
                               min(timeouts.INDEX_BACK, config.connect_timeout / 2))
        # A process that another server has welcomed returns here, perhaps behind others.
        back = () if series.followed else series.chosen.keys() - series.gone
        self.indices.keep({*series.living, *back}, self._clock())
        # Processes that ask for an index which another one holds -> when they asked first
        self._rivals: dict[bytes, float] = {}
        self._comings: dict[int, TokenBucket] = {}  # worker -> sessions that it may open
        self.queues = PeerQueues(socket.socket, RateLimiter(config.bandwidth))
        self._socket = socket
        self._reporter = reporter
        self._by_identity: dict[bytes, WorkerSession] = {}
        self._by_worker: dict[int, WorkerSession] = {}
        alone = ("a rate limit" if config.bandwidth else "shards" if shards
                 else f"--wire={config.wire.name}" if not config.wire.lossless
                 else None if config.share else "shared memory disabled by --transport=tcp")
        self.lending = Lending(alone, socket.on)
        parts = self.lending, self.queues, self._clock, self.send, config.wire
        self.planes = ShardedPlanes(shards, *parts) if shards else DataPlanes(*parts)
        self.reports: dict[int, Totals] = {}  # of each worker, over all its incarnations
        self._refusals = TokenBucket()
        self._turned_away: deque[str] = deque(maxlen=_TURNED_AWAY)  # reasons

    def resume(self, reports: Mapping[int, Totals]) -> None:
        """Continue from the workers' totals in a checkpoint."""
        self.reports.update(reports)

    def __len__(self) -> int:
        return len(self._by_identity)

    def __iter__(self) -> Iterator[WorkerSession]:
        return iter(self._by_identity.values())

    def get(self, identity: bytes) -> WorkerSession | None:
        """Return the session of the socket with that identity, or None."""
        return self._by_identity.get(identity)

    def of(self, worker: int) -> WorkerSession | None:
        """Return the session of that worker, or None."""
        return self._by_worker.get(worker)

    def owned(self, own: bytes) -> WorkerSession | None:
        """Return the session of the process with this random number, or None."""
        return next((one for one in self if own and one.own == own), None)

    def returns(self, session: WorkerSession) -> None:
        """Note that a session ends, and that its process introduces itself again."""
        self.lives(session)
        self.indices.keep([session.worker], self._clock())

    def lives(self, session: WorkerSession) -> None:
        """Note that a session ends, and that its process continues, or may."""
        self.series.lives(session.worker, session.own, session.certain)

    def departs(self, session: WorkerSession) -> None:
        """Note a process's message that it joins no other run."""
        self.series.departs(session.worker, session.own, session.certain)

    def unready(self) -> tuple[list[int], str]:
        """Return connected workers that have not joined yet, and what they are waited for."""
        here = sorted(session.worker for session in self if not session.joined)
        away = sorted(set(range(self._workers)) - {session.worker for session in self})
        what = f"to build {'its model' if len(here) == 1 else 'their models'}"
        return here, what + (f", and for {named(away)} to connect" if away else "")

    def may_come(self, worker: int) -> bool:
        """Return False if a worker opens sessions too fast, because each is an event."""
        return self._comings.setdefault(worker, TokenBucket(AT_ONCE)).may(self._clock())

    def open(self, identity: bytes, worker: int, own: bytes = b"",
             proven: bool = False, request: m.Reattach | None = None,
             earlier: Totals | None = None) -> WorkerSession:
        """Open a session for a worker that has introduced itself; the rest: as in `WorkerSession`;
        `earlier`: of one that has made a `request` to continue."""
        session = WorkerSession(identity, Liveness(WORKER, self._clock()), worker, own=own,
                                proven=proven, request=request,
                                earlier=earlier if request else self.reports.get(worker),
                                worked_at=self._clock())
        self._by_identity[identity] = self._by_worker[worker] = session
        self.indices.came(worker)
        self._rivals.pop(own or identity, None)
        self.series.is_named(own)
        return session

    def attach(self, session: WorkerSession, size: int, name: str, ledger: Ledger) -> None:
        """Make the worker a member; `size`, `name`: as for `DataPlanes.plane_for`."""
        session.admit(ledger, self.planes, size, name, self._clock())

    def expect(self, size: int) -> None:
        """Accept vectors of at most `size` floats from workers."""
        self._socket.guard.allow(4 * size)

    def close(self, session: WorkerSession) -> None:
        """Forget a session; messages in flight to the worker may still arrive."""
        self._by_identity.pop(session.identity, None)
        if self._by_worker.get(session.worker) is session:
            del self._by_worker[session.worker]
        self.planes.close(session)

    # Liveness.

    def handlers(self) -> Handlers:
        """Return the handler for workers' heartbeats."""
        return Handlers(session={m.Heartbeat: self.heartbeat})

    def heartbeat(self, session: WorkerSession, heartbeat: m.Heartbeat) -> None:
        self.note_report(session, heartbeat.report)
        session.progress.note_fetched(heartbeat.chunks, self._clock())
        if not self.queues.waiting(session.identity):  # a waiting message replaces the answer
            self.tell_progress(session)

    def note_report(self, session: WorkerSession, report: Report | None) -> None:
        """Note a worker's totals.

        Raises:
            WireError: they are impossible.
        """
        if report is not None:
            worker = session.worker
            check_report(report, worker)
            session.take_report(report, self._clock())
            known = self.reports.get(worker)
            self.reports[worker] = Totals.of(session.earlier, report)
            if report.behind is not None and (known is None or known.behind != report.behind):
                self.log.tell(f"site {worker}", kind="site", worker=worker, workers=report.behind)

    def watch(self) -> None:
        """Apply the limits to all connections; count those that were cut or have no owner."""
        for reason, count in self._socket.watch().items():
            self.log.count(reason, count)

    def woke(self, now: float) -> None:
        """Handle the end of a suspension: silence counts from `now` on."""
        for session in self:
            session.woke(now)
        self._rivals = dict.fromkeys(self._rivals, now)

    def reaches(self, session: WorkerSession) -> bool:
        """Return whether the worker's connection exists."""
        return session.reaches(self._socket)

    def lost(self, session: WorkerSession) -> str | None:
        """Return why the worker of this session counts as lost, or None."""
        reason = session.lost(self._socket, self._clock())
        return reason or ("it does not read its messages" if session.deaf else None)

    @property
    def signs(self) -> int:
        """A number that changes when a worker shows that it works; any thread may read it."""
        return sum(int(session.worked_at) for session in [*self._by_identity.values()])

    def outlives(self, session: WorkerSession, rival: bytes) -> bool:
        """Return whether a session's process has sent a message since another one asked for its
        index; `rival`: names the other one.

        A message that is read soon afterwards proves nothing: it may be an old one in transit.
        """
        if rival not in self._rivals and len(self._rivals) >= _MOST_RIVALS:
            del self._rivals[next(iter(self._rivals))]
        since = self._rivals.setdefault(rival, self._clock())
        return session.liveness.heard - since > timeouts.INDEX_HELD

    def silent(self) -> list[int]:
        """Return the workers whose processes may have ended: silent, cut off, or expected back."""
        now = self._clock()
        return [*(session.worker for session in self
                  if now - session.liveness.heard > timeouts.INDEX_HELD
                  or not self.reaches(session)), *self.indices.kept(now)]

    def idle(self, since: float, patience: float) -> list[WorkerSession]:
        """Return the sessions without progress for `patience` seconds, from `since` on."""
        now = self._clock()
        return [s for s in self if now - max(since, s.progress.changed) > patience]

    def idle_at_work(self, worker: int, since: float) -> float:
        """Return the seconds since a worker's newest sign of work, from `since` on.

        A worker that waits for others works.
        """
        session = self._by_worker.get(worker)
        return self._clock() - max(since, -math.inf if session is None else session.worked_at)

    def still(self, seconds: float) -> list[int]:
        """Return the members whose loops have shown no sign of work for that many seconds."""
        since = self._clock() - seconds
        return [session.worker for session in self
                if session.joined and session.report is not None and session.worked_at < since]

    def asleep(self) -> set[int]:
        """Return the workers that are connected, and have sent nothing for a while."""
        since = self._clock() - timeouts.WORKER_ASLEEP
        return {session.worker for session in self if session.liveness.heard < since}

    def silence(self, worker: int) -> float | None:
        """Return the seconds since a worker's last message; None: it has no session."""
        session = self._by_worker.get(worker)
        return None if session is None else self._clock() - session.liveness.heard

    # Sending.

    def send(self, identity: bytes, message: m.Message) -> None:
        """Send a message to a worker or a stranger when rate limit and socket permit."""
        session = self.get(identity)
        taken = session.plane.post(message) if session and session.plane else None
        if taken is not None and session:
            session.reads(taken)
        elif not self.queues.post(identity, m.encode(message), now=self._clock()) and session:
            session.reads(False)

    def proven(self, identity: bytes, request: Request, *keys: bytes) -> Bond | None:
        """Return the bond with a peer that has proven its claim by one of these keys.

        Otherwise challenge it over the network, and return None.
        """
        return self._socket.challenges.admit(self.answer, identity, request, *keys)

    def answer(self, identity: bytes, message: m.Message) -> None:
        """Answer a peer that has not proven its identity."""
        self.queues.post(identity, m.encode(message), now=self._clock())

    def repeat(self, session: WorkerSession) -> None:
        """Repeat messages that the worker may have missed with a broken connection."""
        for retained in session.retained.values():
            self.send(session.identity, retained)

    def note_chunk(self, session: WorkerSession) -> None:
        """Note a chunk of the worker's push."""
        session.progress.note_received(self._clock())
        self.tell_progress_now_and_then(session)

    def tell_progress_now_and_then(self, session: WorkerSession) -> None:
        """Report progress to a worker that sends chunks, at most once in `PROGRESS` seconds."""
        if self._clock() - session.progress.told > timeouts.PROGRESS:
            self.tell_progress(session)

    def tell_progress(self, session: WorkerSession) -> None:
        """Report the server's liveness and the progress of the worker's transfers."""
        session.progress.note_told(self._clock())
        self.send(session.identity, session.alive())

    def refuse(self, identity: bytes, worker: int | None, reason: str, over: bool = False,
               nonce: bytes = b"", elsewhere: bool = False, ends: bool = False,
               follows: bool = False) -> None:
        """Refuse a peer, and print the reason at a limited rate.

        Args:
            identity: of its socket.
            worker: its index; None: it has none.
            reason: for both sides.
            over: the run has ended.
            ends: the server ends, too.
            follows: another run of the server follows.
            nonce: of a member of another run, whose secret is not known here; else empty.
            elsewhere: the peer retries all its addresses; the reason is printed once.
        """
        reason = one_line(reason)
        if elsewhere:
            self.send(identity, m.NotServing(reason))
            if reason in self._turned_away:
                return
            self._turned_away.append(reason)
        else:
            proof = answer(self._socket.contact, nonce, "refused", reason) if nonce else b""
            self.send(identity, m.Refused(reason, over, proof, ends, follows))
        if self._refusals.may(self._clock()):
            self._reporter.say(f"refused: {reason}")
            self._reporter.event("refused", worker=worker, reason=reason)
        else:
            self.log.count(reason)
