"""Requests of the members of a run: pushes, fetches, queries, leaving.

A member is a worker that was admitted. Its messages are passed to the engine, and the engine's
answers are sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from wbsp.core.engine import Engine
from wbsp.core.site.gate import Gate
from wbsp.limits import one_line
from wbsp.ps.clock import Clock
from wbsp.ps.sessions.data_plane import Arrived
from wbsp.ps.sessions.handlers import Handlers
from wbsp.ps.sessions.registry import SessionRegistry
from wbsp.ps.sessions.replies import HeldPush, Replies
from wbsp.ps.sessions.session import Returning, WorkerSession
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.sharding import Arriving, Holds


class Requests:
    """Handler of members' messages: checks them and calls the engine; used by the event loop.

    Args:
        gate: keeps pushes while a site waits for the server above.
        tell_above: for a site: forwards a worker's message to all workers to the server above,
            which decides.

    Attributes:
        first_came: time at which the first worker joined or reattached, in the server's own time.
        returned: a worker has reattached.
    """

    def __init__(self, engine: Engine, sessions: SessionRegistry, replies: Replies,
                 gate: Gate[HeldPush],
                 clock: Clock, tell_above: Callable[[m.Message], None] | None = None):
        self.engine, self.sessions, self.replies = engine, sessions, replies
        self._gate = gate
        self._clock = clock
        self._tell_above = tell_above
        self.first_came = math.inf
        self.returned = False
        self._left: set[int] = set()  # workers that have left in mid-run, and may join again
        # Sites that had finished and were lost without the final version -> since when, in the
        # server's own time. They resume, because their workers wait for it.
        self.unserved: dict[int, float] = {}

    def woke(self, seconds: float) -> None:
        """Do not count the seconds of a suspension of this process."""
        self.first_came += seconds

    def begin_anew(self) -> None:
        """Wait for new processes of workers as before the first has come."""
        self.returned, self.first_came = False, math.inf

    def give_up(self, worker: int) -> None:
        """Wait no longer for a site that had finished and was lost."""
        self.unserved.pop(worker, None)

    def handlers(self) -> Handlers:
        """Return the handlers for members' requests."""
        return Handlers(session={
            m.Update: self.update, m.Kept: self.kept, m.Fetch: self.fetch, m.CutQuery: self.query,
            m.AskWork: self.ask_work, m.Measured: self.measured,
            m.LearningRate: self.learning_rate, m.StopRun: self.stop_run,
            m.Leaving: self.leave, m.Goodbye: self.goodbye, Holds: self.held,
            Arriving: self.arriving})

    def join(self, session: WorkerSession, owed: bool = False) -> None:
        """Handle a worker that was admitted; `owed`: it lacks only the run's last version."""
        self.first_came = min(self._clock.now(), self.first_came)
        self._left.discard(session.worker)
        self.unserved.pop(session.worker, None)
        if owed:
            self.returned = True
            self._tell(session.worker, " returned for the final version")
            self.replies.send(self.engine.join_for_last(session.worker, self._clock.run()))
            return
        self._tell(session.worker, f" joined over {session.plane and session.plane.name}")
        request = session.request
        self.replies.send(self.engine.join(session.worker, self._clock.run(),
                                           isinstance(request, m.Join) and request.sgd))

    def come_back(self, session: WorkerSession, reattach: m.Reattach) -> None:
        """Readmit a member without a session; its numbers fit the ledger."""
        now, ledger, worker = self._clock.run(), self.engine.ledger, session.worker
        due = ledger.next_seq(worker)
        first = max(reattach.first, reattach.kept)
        lacks = ledger.lacks(worker, first, reattach.answered)
        # Pushes of a later process than the checkpoint's; or of one whose lost server had reported
        # them as durable at a standby that was lost, too.
        if first > due:
            self.engine.log(now, "lost", worker=worker, first=due, last=first - 1)
            self._tell(worker, f": pushes {due} to {first - 1} are lost: the processes that "
                               "held them have ended")
            ledger.skip_to(worker, first)
        if not self.returned:
            self.returned, self.first_came = True, self._clock.now()
        back = session.returns(reattach, lacks)
        if lacks is None:
            self._attach(session, back)
        else:
            self.sessions.send(session.identity, m.Resend(lacks, session.group, session.inbox))

    def come_again(self, session: WorkerSession, reattach: m.Reattach) -> None:
        """Handle a member that has a session and a new connection: repeat missed messages."""
        self.sessions.queues.drop_transfer(session.identity)
        if session.plane is not None:
            session.attach(self.sessions.planes, session.plane.size, reattach.socket)
        back = session.returning
        if back is not None and back.lacks is not None:
            self.sessions.send(session.identity,
                               m.Resend(back.lacks, session.group, session.inbox))
        elif back is None or back.answer is not None:
            self.replies.repeat(session, reattach.ledger)

    def kept(self, session: WorkerSession, kept: m.Kept, body: memoryview | None) -> None:
        """Take a chunk of a resent sum, which an earlier server had decided on, or its head.

        Raises:
            WireError: it was not requested, or is invalid.
        """
        back = session.returning
        if session.plane is None or back is None:
            raise m.WireError(f"worker {session.worker} resent pushes that were not requested")
        if back.lacks is None:
            return  # sent twice
        if self.engine.done:
            self.sessions.refuse(session.identity, session.worker,
                                 f"worker {session.worker} is too late: the run has ended "
                                 "without it")
            self.sessions.close(session)
            return
        session.check_kept(kept, back.request.answered)
        self._take(session, session.plane.put(kept, body, 0), body)

    def _attach(self, session: WorkerSession, back: Returning) -> None:
        """Attach a member, whose answered pushes are all in the ledger now."""
        request, worker = back.request, session.worker
        self._tell(worker, " reconnected" + (", and has finished" if request.left
                                             else f" with version {request.version}")
                   + f", over {session.plane and session.plane.name}")
        session.has_returned(back)
        # a worker that lacks the answer to its push waits from then on
        waits = request.waits or self.engine.ledger.next_seq(worker) > request.answered
        try:
            answer = self.engine.attach(worker, request.version, request.left, waits,
                                        self._clock.run(), request.work)
        except ValueError as error:
            raise m.Impossible(str(error)) from None
        self.replies.send(answer)

    def update(self, session: WorkerSession, update: m.Update, body: memoryview | None) -> None:
        """Take a chunk of a push, or its head.

        Raises:
            WireError: no member can send it.
        """
        if not session.joined or session.plane is None:
            raise m.WireError(f"worker {session.worker} pushed before it joined")
        session.check_push(update.push, self.engine.store.latest.version)
        session.holds(update.held, update.returned)
        due = self.engine.ledger.next_seq(session.worker)
        self._take(session, session.plane.put(update, body, due), body)

    def arriving(self, session: WorkerSession, notice: Arriving, shard: int) -> None:
        """Note that a shard has more of its slice."""
        self.sessions.note_chunk(session)

    def held(self, session: WorkerSession, notice: Holds, shard: int) -> None:
        """Handle a shard's complete slice.

        Raises:
            WireError: no member can send the push.
        """
        self.sessions.note_chunk(session)
        if session.plane is not None:
            self._take(session, session.plane.held(shard, notice), None)

    def _take(self, session: WorkerSession, arrived: Arrived | None,
              body: memoryview | None) -> None:
        """Pass a push or a resent sum to the engine, if it is complete."""
        if arrived is None:
            if body is not None:
                self.sessions.note_chunk(session)
        elif isinstance(arrived.head, m.Update):
            self._push(session, arrived.head, arrived)
        elif (back := session.returning) is not None and back.lacks is not None:
            self._resend(session, back, arrived.head, arrived)

    def go_on(self) -> None:
        """Handle what came while this site waited for the server above, until it waits again."""
        if self._gate.shut:
            return
        self.replies.send(self.engine.feed(self._clock.run()))
        for session, update, arrived in self._gate.pushes():
            if self.sessions.of(session.worker) is session and session.joined:
                self._push(session, update, arrived)

    def _push(self, session: WorkerSession, update: m.Update, arrived: Arrived) -> None:
        if self._gate.keeps(session.worker, (session, update, arrived)):
            return
        if update.push.seq >= self.engine.ledger.next_seq(session.worker):
            # it has received earlier directions; a repeated push does not show that
            session.has(m.Directed)
        try:
            answer = self.engine.push(update.push, arrived.vector, self._clock.run(), update.fetch,
                                      arrived.square)
        except ValueError as error:
            raise m.Impossible(str(error)) from None
        self.replies.send(answer)

    def _resend(self, session: WorkerSession, back: Returning, kept: m.Kept,
                arrived: Arrived) -> None:
        try:
            self.engine.resend(session.worker, kept.work, arrived.vector, self._clock.run(),
                               arrived.square, back.request.work)
        except ValueError as error:
            raise m.Impossible(str(error)) from None
        self._attach(session, back)

    def fetch(self, session: WorkerSession, fetch: m.Fetch) -> None:
        if session.plane is None:
            raise m.WireError(f"worker {session.worker} fetched before it joined")
        session.holds(fetch.held, fetch.returned)
        answer = self.engine.fetch(session.worker, fetch.request)
        session.fetches_early(0 if answer else fetch.request)
        self.replies.send(answer)

    def query(self, session: WorkerSession, query: m.CutQuery) -> None:
        if not session.joined or session.plane is None:
            raise m.WireError(f"worker {session.worker} asked before it joined")
        session.check_query(query)
        if known := session.decided(query.number):
            self.sessions.send(session.identity, known)
            return
        try:
            self.replies.send(self.engine.query(session.worker, query, self._clock.run()))
        except ValueError as error:
            raise m.Impossible(str(error)) from None

    def ask_work(self, session: WorkerSession, ask: m.AskWork) -> None:
        if not session.joined or session.plane is None:
            return  # it asks again when it has joined
        try:
            answer = self.engine.ask_work(session.worker, ask, self._clock.run())
        except ValueError as error:
            raise m.Impossible(str(error)) from None
        self.replies.send(answer)

    def measured(self, session: WorkerSession, measured: m.Measured) -> None:
        # also one that has left, whose results were lost with its connection
        if session.plane is not None and not self._goes_up(measured):
            self.replies.send(self.engine.measure(session.worker, measured, self._clock.run()))

    def learning_rate(self, session: WorkerSession, rate: m.LearningRate) -> None:
        """Handle a learning rate that a worker's callback has set for all."""
        if session.joined and session.plane is not None and not self._goes_up(rate):
            self.replies.send(self.engine.set_rate(session.worker, rate, self._clock.run()))

    def stop_run(self, session: WorkerSession, stop: m.StopRun) -> None:
        """Handle a worker's request to end the run for all."""
        if session.joined and session.plane is not None and not self.engine.done:
            reason = f"worker {session.worker}: {one_line(stop.reason)}"
            if not self._goes_up(m.StopRun(reason)):
                self.replies.send(self.engine.stop(reason, self._clock.run()))

    @property
    def all_left(self) -> bool:
        """Return whether all members have left a run that has not ended."""
        engine = self.engine
        return (engine.started and engine.stop_reason is None and bool(self._left)
                and self._tell_above is None
                and all(worker in self._left for worker in engine.members))

    def end(self, reason: str) -> None:
        """End the run."""
        self.replies.send(self.engine.stop(reason, self._clock.run()))

    def has_final(self, worker: int) -> None:
        """Handle a process that has a final version of this run: it comes for the next one."""
        engine = self.engine
        self.sessions.series.has_final(worker)
        if not engine.started:
            self.returned, self.first_came = True, min(self._clock.now(), self.first_came)
            self.replies.send(engine.has_final(worker, self._clock.run()))

    def _goes_up(self, message: m.Message) -> bool:
        """Send a message to the server above, if this is a site; return whether it is."""
        if self._tell_above is not None:
            self._tell_above(message)
        return self._tell_above is not None

    def leave(self, session: WorkerSession, leaving: m.Leaving) -> None:
        self.sessions.note_report(session, leaving.report)
        if session.plane is None:
            self.sessions.close(session)
            self.sessions.departs(session)
            self._not_replaced(session)
            return
        if not session.joined:  # a repetition, because Final has not arrived yet
            return
        reason = one_line(leaving.reason)
        self._tell(session.worker, f" left: {reason}")
        session.leaves()
        answer = self.engine.leave(session.worker, self._clock.run(), reason, leaving.finished)
        if not leaving.finished:
            self._left.add(session.worker)
            self.sessions.close(session)
        self.replies.send(answer)

    def _tell(self, worker: int, text: str) -> None:
        self.sessions.log.tell(f"worker {worker}", f"worker {worker}{text}")

    def goodbye(self, session: WorkerSession, goodbye: m.Goodbye) -> None:
        if self.engine.done and session.plane is not None and not session.joined:
            self.sessions.series.has_final(session.worker)
        if goodbye.again:
            self.sessions.returns(session)
        self.lose(session, "it left in mid-run")
        self.unserved.pop(session.worker, None)

    def lose(self, session: WorkerSession, reason: str, replaced: bool = False) -> None:
        """End a session without a word from the worker; `replaced`: as in `Engine.leave`."""
        worker, report = session.worker, self.sessions.reports.get(session.worker)
        member = (session.joined and session.plane is not None
                  and not self.engine.owes(worker))
        self.sessions.close(session)
        self.replies.forget(worker)
        if not member:
            if session.plane is not None and report is not None and report.behind is not None:
                self.unserved[worker] = self._clock.now()
            if not replaced:
                self._not_replaced(session)
            return
        self._tell(session.worker, f" was lost: {reason}; the others continue without it")
        self.replies.send(self.engine.leave(session.worker, self._clock.run(), reason,
                                            replaced=replaced))

    def _not_replaced(self, session: WorkerSession) -> None:
        self.replies.send(self.engine.not_replaced(session.worker, self._clock.run()))
