"""The server's conversation with the members of a run: pushes, fetches, queries, leaving.

A member is a worker that was admitted. What it says goes to the engine, and what the engine
answers is delivered.
"""

from __future__ import annotations

import math

import numpy as np

from wbsp.core.engine import Engine
from wbsp.limits import one_line
from wbsp.ps.clock import Clock
from wbsp.ps.sessions.handlers import Handlers
from wbsp.ps.sessions.registry import SessionManager
from wbsp.ps.sessions.replies import Replies
from wbsp.ps.sessions.session import Returning, Sharing, WorkerSession
from wbsp.ps.sharding.coordinator import Shards
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.sharding import Arriving, Holds


class Requests:
    """Messages of members, checked and told to the engine; used by the event loop.

    first_came: when the first worker joined or attached again, in the server's own time
    returned:   a worker has attached again
    """

    def __init__(self, engine: Engine, sessions: SessionManager, replies: Replies,
                 clock: Clock, shards: Shards | None = None):
        """`shards`: None: floats come here."""
        self.engine, self.sessions, self.replies = engine, sessions, replies
        self._shards = shards
        self._clock = clock
        self.first_came = math.inf
        self.returned = False

    def handlers(self) -> Handlers:
        """The requests of members."""
        return Handlers(session={
            m.Update: self.update, m.Kept: self.kept, m.Fetch: self.fetch, m.CutQuery: self.query,
            m.Leaving: self.leave, m.Goodbye: self.goodbye, Holds: self.held,
            Arriving: self.arriving})

    def join(self, session: WorkerSession) -> None:
        """A worker was admitted."""
        self.first_came = min(self._clock.now(), self.first_came)
        self._tell(session.worker, f" joined over {session.way and session.way.name}")
        self.replies.send(self.engine.join(session.worker, self._clock.run()))

    def come_back(self, session: WorkerSession, reattach: m.Reattach) -> None:
        """A member that had no session has attached again; its numbers fit the ledger."""
        now, ledger, worker = self._clock.run(), self.engine.ledger, session.worker
        due = ledger.next_seq(worker)
        first = max(reattach.first, reattach.kept)
        lacks = ledger.lacks(worker, first, reattach.answered)
        # Those of a later process than the one that the checkpoint knows, or of one that was told
        # by a server, lost with its standby, that they were safe there.
        if first > due:
            self.engine.log(now, "lost", worker=worker, first=due, last=first - 1)
            self._tell(worker, f": pushes {due} to {first - 1} are lost, with the processes that "
                               "had them")
            ledger.skip_to(worker, first)
        if not self.returned:
            self.returned, self.first_came = True, self._clock.now()
        session.returning = Returning(reattach, lacks)
        if lacks is None:
            self._attach(session, session.returning)
        else:
            self.sessions.send(session.identity, m.Resend(lacks, session.group, session.inbox))

    def come_again(self, session: WorkerSession, reattach: m.Reattach) -> None:
        """A member's connection was broken, and its session was not: repeat what it may have
        missed."""
        self.sessions.queues.drop_transfer(session.identity)
        if session.updates is not None:
            self.sessions.share(session, session.updates.size, reattach.socket)
        back = session.returning
        if back is not None and back.lacks is not None:
            self.sessions.send(session.identity,
                               m.Resend(back.lacks, session.group, session.inbox))
        elif back is None or back.answer is not None:
            self.replies.repeat(session, reattach.ledger)

    def kept(self, session: WorkerSession, kept: m.Kept, body: memoryview | None) -> None:
        """Take a chunk of what an earlier server had decided, or its head. Raises WireError."""
        back = session.returning
        if session.updates is None or back is None:
            raise m.WireError(f"worker {session.worker} resent pushes that were not requested")
        if back.lacks is None:
            return  # sent twice
        if self.engine.done:
            self.sessions.refuse(session.identity, session.worker,
                                 f"worker {session.worker} comes too late: the run has ended "
                                 "without it")
            self.sessions.close(session)
            return
        session.check_kept(kept, back.request.answered)
        if body is None:
            self._headed(session, kept, kept.work.last)
            return
        vector = session.updates.add(kept.offset, body, kept.size, again=True)
        if vector is None:
            self.sessions.note_chunk(session)
        else:
            self._resend(session, back, kept, vector, 0.0)

    def _resend(self, session: WorkerSession, back: Returning, kept: m.Kept,
                vector: np.ndarray | None, most: float) -> None:
        """All of it is here; `vector`: None: in the shards."""
        try:
            self.engine.resend(session.worker, kept.work, vector, self._clock.run(), most)
        except ValueError as error:
            raise m.Impossible(str(error)) from None
        back.lacks = None
        self._attach(session, back)

    def _attach(self, session: WorkerSession, back: Returning) -> None:
        """Nothing that this member was answered is lacking any more."""
        request, worker = back.request, session.worker
        self._tell(worker, " is back" + (", and has finished" if request.left
                                        else f" with version {request.version}")
                   + f", over {session.way and session.way.name}")
        session.joined = not request.left
        # who is yet to hear that its push was decided waits from then on
        waits = request.waits or self.engine.ledger.next_seq(worker) > request.answered
        self.replies.send(self.engine.attach(worker, request.version, request.left, waits,
                                        self._clock.run()))

    def update(self, session: WorkerSession, update: m.Update, body: memoryview | None) -> None:
        """Take a chunk of a push, or its head. Raises WireError for what no member can send."""
        if not session.joined or session.updates is None:
            raise m.WireError(f"worker {session.worker} pushed before it joined")
        session.check_push(update.push, self.engine.store.latest.version)
        session.returned(update.returned)
        session.progress.held = update.held
        if body is None:
            if update.push.seq < self.engine.ledger.next_seq(session.worker):
                self._push(session, update, None, 0.0)  # again: the shards have no part in it
            else:
                self._headed(session, update, update.push.seq)
            return
        vector = session.updates.add(update.offset, body, update.size)
        if vector is None:
            self.sessions.note_chunk(session)
        else:
            self._push(session, update, vector, session.updates.most)

    def _push(self, session: WorkerSession, update: m.Update, vector: np.ndarray | None,
              most: float) -> None:
        """All of it is here; `vector`: None: in the shards."""
        if update.push.seq >= self.engine.ledger.next_seq(session.worker):
            session.note_push()  # a repeated one says nothing of what came after it
        try:
            answer = self.engine.push(update.push, vector, self._clock.run(), update.fetch,
                                      most)
        except ValueError as error:
            raise m.Impossible(str(error)) from None
        self.replies.send(answer)

    # Where there are shards: heads come from workers, and floats are where the shards say.

    def _headed(self, session: WorkerSession, head: m.Update | m.Kept, seq: int) -> None:
        """The head of what goes to the shards; offset and size are unused here."""
        if session.sharing is not None:
            session.sharing.arriving(seq, isinstance(head, m.Kept)).head = head
            self._decide_if_whole(session, session.sharing)

    def arriving(self, session: WorkerSession, notice: Arriving, shard: int) -> None:
        """A shard has more of its slice."""
        self.sessions.note_chunk(session)

    def held(self, session: WorkerSession, notice: Holds, shard: int) -> None:
        """A shard has all of its slice. Raises WireError as `update` does."""
        self.sessions.note_chunk(session)
        if session.sharing is not None:
            arrival = session.sharing.arriving(notice.seq, notice.again)
            arrival.shards.add(shard)
            arrival.most = max(arrival.most, notice.most)
            self._decide_if_whole(session, session.sharing)

    def _decide_if_whole(self, session: WorkerSession, sharing: Sharing) -> None:
        arrival, back = sharing.arrival, session.returning
        if arrival is None or self._shards is None or len(arrival.shards) < len(self._shards):
            return
        head = arrival.head
        if isinstance(head, m.Update):
            sharing.arrival = None
            self._push(session, head, None, arrival.most)
        elif isinstance(head, m.Kept) and back is not None and back.lacks is not None:
            sharing.arrival = None
            self._resend(session, back, head, None, arrival.most)

    def fetch(self, session: WorkerSession, fetch: m.Fetch) -> None:
        if session.updates is None:
            raise m.WireError(f"worker {session.worker} fetched before it joined")
        session.returned(fetch.returned)
        session.progress.held = fetch.held
        answer = self.engine.fetch(session.worker, fetch.request)
        if session.returning:
            session.returning.early = 0 if answer else fetch.request
        self.replies.send(answer)

    def query(self, session: WorkerSession, query: m.CutQuery) -> None:
        if not session.joined or session.updates is None:
            raise m.WireError(f"worker {session.worker} asked before it joined")
        session.check_query(query)
        if known := session.decided(query.number):
            self.sessions.send(session.identity, known)
            return
        try:
            self.replies.send(self.engine.query(session.worker, query, self._clock.run()))
        except ValueError as error:
            raise m.Impossible(str(error)) from None

    def leave(self, session: WorkerSession, leaving: m.Leaving) -> None:
        self.sessions.note_report(session, leaving.report)
        if session.updates is None:
            self.sessions.close(session)
            return
        if not session.joined:  # a repetition, since Final is not there yet
            return
        reason = one_line(leaving.reason)
        self._tell(session.worker, f" left: {reason}")
        session.joined = False
        answer = self.engine.leave(session.worker, self._clock.run(), reason, leaving.finished)
        if not leaving.finished:
            self.sessions.close(session)
        self.replies.send(answer)

    def _tell(self, worker: int, text: str) -> None:
        self.sessions.told.tell(f"worker {worker}", f"worker {worker}{text}")

    def goodbye(self, session: WorkerSession, goodbye: m.Goodbye) -> None:
        self.lose(session, "said goodbye in mid-run")

    def lose(self, session: WorkerSession, reason: str) -> None:
        """End a session without a word from the worker."""
        member = session.joined and session.updates is not None
        self.sessions.close(session)
        if not member:
            return
        self._tell(session.worker, f" was lost: {reason}; the others go on without it")
        self.replies.send(self.engine.leave(session.worker, self._clock.run(), reason))
