"""The server's conversation with the members of a run: pushes, fetches, queries, leaving.

A member is a worker that was admitted. What it says goes to the engine, and what the engine
answers goes to the workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from wbsp.ps import effects
from wbsp.ps.decision import Directed, Granted
from wbsp.ps.effects import Effect, Model
from wbsp.ps.engine import Engine
from wbsp.ps.session_manager import SessionManager
from wbsp.ps.worker_session import WorkerSession, one_line
from wbsp.wire import messages as m


class Members:
    """Messages of members, checked and told to the engine; used by the event loop."""

    def __init__(self, engine: Engine, sessions: SessionManager, clock: Callable[[], float],
                 say: Callable[[str], None]):
        self.engine, self.sessions = engine, sessions
        self._clock, self._say = clock, say
        self.first_came = math.inf  # time at which the first worker joined

    def join(self, session: WorkerSession) -> None:
        """A worker was admitted."""
        self.first_came = min(self._clock(), self.first_came)
        self._say(f"worker {session.worker} joined")
        self.deliver(self.engine.join(session.worker, self._clock()))

    def update(self, session: WorkerSession, update: m.Update, body: memoryview) -> None:
        """Take a chunk of a push. Raises WireError for one that no member can send."""
        if not session.joined or session.updates is None:
            raise m.WireError(f"worker {session.worker} pushed before it joined")
        session.check_push(update.push, self.engine.store.latest.version)
        vector = session.updates.add(update.offset, update.size, body)
        if vector is None:
            self.sessions.note_chunk(session)
            return
        session.note_push()
        try:
            answer = self.engine.push(update.push, vector, self._clock(), update.fetch,
                                      session.updates.finite)
        except ValueError as error:
            raise m.WireError(str(error)) from None
        self.deliver(answer)

    def fetch(self, session: WorkerSession, fetch: m.Fetch) -> None:
        if session.updates is None:
            raise m.WireError(f"worker {session.worker} fetched before it joined")
        self.deliver(self.engine.fetch(session.worker, fetch.request))

    def query(self, session: WorkerSession, query: m.CutQuery) -> None:
        if not session.joined or session.updates is None:
            raise m.WireError(f"worker {session.worker} asked before it joined")
        session.check_query(query)
        try:
            self.deliver(self.engine.query(session.worker, query.number, query.steps,
                                           query.seconds, self._clock()))
        except ValueError as error:
            raise m.WireError(str(error)) from None

    def leave(self, session: WorkerSession, leaving: m.Leaving) -> None:
        if not session.joined:  # a repetition, since Final is not there yet
            return
        reason = one_line(leaving.reason)
        self._say(f"worker {session.worker} left: {reason}")
        session.joined = False
        answer = self.engine.leave(session.worker, self._clock(), reason, leaving.finished)
        if not leaving.finished:
            self.sessions.close(session)
        self.deliver(answer)

    def lose(self, session: WorkerSession, reason: str) -> None:
        """A member is gone without a word; its session is closed."""
        self._say(f"worker {session.worker} was lost: {reason}; the others go on without it")
        self.deliver(self.engine.leave(session.worker, self._clock(), reason))

    def deliver(self, answer: Iterable[Effect]) -> None:
        """Send the workers what the engine has for them."""
        for effect in answer:
            session = self.sessions.of(effect.worker)
            if session is None:
                continue
            if isinstance(effect, Model):
                version, vector = effect.snapshot
                assert vector is not None, "a real server's store holds tensors"
                self.sessions.send_model(session, effect.number, version, vector)
            else:
                message = _message(effect)
                session.retain(message)
                self.sessions.send(session.identity, message)


def _message(effect: effects.Ack | Granted | Directed | effects.CutDecision | effects.Stop
             | effects.Final) -> m.Message:
    match effect:
        case effects.Ack():
            return m.Ack(*effect[1:])
        case Granted():
            return m.Granted(effect.version)
        case Directed():
            return m.Directed(effect.direct)
        case effects.CutDecision():
            return m.CutDecision(effect.number, effect.cut)
        case effects.Stop():
            return m.Stop(effect.reason)
        case effects.Final():
            return m.Final(effect.version)
