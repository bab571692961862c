"""What the engine answers, on its way to the workers: as messages, and versions as floats."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from wbsp.core import effects
from wbsp.core.decisions import Directed, Granted
from wbsp.core.effects import Effect, Final, Model
from wbsp.core.engine import Engine
from wbsp.ps.sessions.registry import SessionManager
from wbsp.ps.sessions.roster import Roster
from wbsp.ps.sessions.session import WorkerSession
from wbsp.ps.sharding.coordinator import Shards
from wbsp.wire.messages import codec as m

Told = (effects.Ack | effects.Reattached | Granted | Directed | effects.CutDecision | effects.Stop
        | Final)


class Replies:
    """Sends each worker what an engine has for it; used by the event loop."""

    def __init__(self, engine: Engine, sessions: SessionManager, roster: Roster,
                 shards: Shards | None):
        """`shards`: that send the floats; None: they are sent here."""
        self._engine, self._sessions, self._shards = engine, sessions, shards
        self._roster = roster
        self._finals: list[Final] | None = []  # held back; None: they no longer are

    def send(self, answer: Iterable[Effect]) -> None:
        """Send the workers what the engine has for them, in this order."""
        waiting = deque(answer)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Final) and self._finals is not None:
                self._finals.append(effect)
                continue
            session = self._sessions.of(effect.worker)
            if session is None:
                continue
            back = session.returning
            if isinstance(effect, Granted | effects.Stop) and back and back.early:
                waiting.extend(self._engine.fetch(session.worker, back.early))
                back.early = 0
            if isinstance(effect, Model):
                snapshot = effect.snapshot
                if self._shards is not None:  # effects follow on their records, before any other
                    self._shards.send(effect.worker, effect.number, snapshot.version,
                                      session.progress.held)
                    continue
                self._sessions.send_model(session, effect.number, snapshot.version,
                                         *snapshot.sendable(session.progress.held))
            else:
                message = self._message(effect, session)
                if isinstance(message, m.Ack) and waiting:
                    message = self._with_model(message, waiting, session)
                if isinstance(message, m.Reattached) and session.returning:
                    session.returning.answer = message
                session.retain(message)
                self._sessions.send(session.identity, message)

    def _with_model(self, ack: m.Ack, waiting: deque[Effect], session: WorkerSession) -> m.Ack:
        """The answer, and the version that follows for the same worker, if memory is shared."""
        effect = waiting[0]
        if not isinstance(effect, Model) or effect.worker != session.worker:
            return ack
        version, vector, _ = effect.snapshot
        model = vector is not None and self._sessions.lent(session, effect.number, version, vector)
        if not model:
            return ack
        waiting.popleft()
        return msgspec.structs.replace(ack, model=model)

    def repeat(self, session: WorkerSession, ledger: int) -> None:
        """A member's connection was broken: repeat what it may have missed. `ledger`: as in
        `messages.Reattach`."""
        back = session.returning
        answer = m.Reattached(self._roster.epoch, False, 0, 0, None, session.group,
                              session.inbox, self._roster.ticket(session.worker))
        if back is not None and back.answer and ledger < self._roster.began:  # it did not arrive
            answer = msgspec.structs.replace(back.answer, epoch=answer.epoch, ticket=answer.ticket,
                                             memory=session.inbox)
        self._sessions.send(session.identity, answer)
        self._sessions.repeat(session)

    def farewell(self) -> None:
        """Offer the final version, which is safe now, to all that have finished."""
        finals, self._finals = self._finals, None
        self.send(finals or [])

    def _message(self, effect: Told, session: WorkerSession) -> m.Message:
        match effect:
            case effects.Ack():
                return m.Ack(*effect[1:], self._engine.ledger.durable)
            case effects.Reattached():
                ack = effect.ack and m.Ack(*effect.ack[1:], self._engine.ledger.durable)
                return m.Reattached(self._roster.epoch, True, effect.safe, effect.mark, ack,
                                    session.group, session.inbox,
                                    self._roster.ticket(session.worker), self._roster.began)
            case Granted():
                return m.Granted(effect.version)
            case Directed():
                return m.Directed(effect.direct)
            case effects.CutDecision():
                return m.CutDecision(effect.number, effect.cut)
            case effects.Stop():
                return m.Stop(effect.reason)
            case Final():
                return m.Final(effect.version)
