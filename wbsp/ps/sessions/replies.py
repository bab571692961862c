"""Sending of the engine's answers to the workers: messages, and versions as floats."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from wbsp.core.engine import Engine
from wbsp.core.messages import LetGo, Outgoing
from wbsp.core.site.gate import Gate
from wbsp.ps.config import RunInfo
from wbsp.ps.sessions.data_plane import Arrived
from wbsp.ps.sessions.registry import SessionRegistry
from wbsp.ps.sessions.session import WorkerSession
from wbsp.wire.messages import codec as m

HeldPush = tuple[WorkerSession, m.Update, Arrived]  # that waits at a site's gate


class Replies:
    """Sender of an engine's messages; used by the event loop."""

    def __init__(self, engine: Engine, sessions: SessionRegistry, info: RunInfo,
                 gate: Gate[HeldPush]):
        self._engine = engine
        self._sessions = sessions
        self._info = info
        self._gate = gate

    def send(self, answer: Iterable[Outgoing]) -> None:
        """Send the engine's messages to the workers, in order, once the gate lets them pass."""
        waiting = deque(self._gate.through(answer))
        while waiting:
            outgoing = waiting.popleft()
            message = outgoing.message
            session = self._sessions.of(outgoing.worker)
            if session is None:
                continue
            if isinstance(message, m.Final) and session.joined:
                continue  # it has not left yet; it is sent another one then
            if isinstance(message, LetGo):
                self._sessions.send(session.identity, m.Refused(message.reason))
                self._sessions.close(session)
                continue
            back = session.returning
            if isinstance(message, m.Granted | m.Stop) and back and back.early:
                waiting.extend(self._engine.fetch(session.worker, back.early))
                session.fetches_early(0)
            if isinstance(message, m.Model):
                assert session.plane is not None, "a member has one"
                session.plane.send_version(message.request, self._engine.store.latest,
                                           session.held)
                continue
            if isinstance(message, m.Ack) and waiting:
                message = self._with_model(message, waiting, session)
            elif isinstance(message, m.Reattached):
                message = msgspec.structs.replace(  # fields that only this server knows
                    message, epoch=self._info.epoch, group=session.group, memory=session.inbox,
                    ticket=self._info.ticket(session.worker), since=self._info.began)
                session.may_continue(message)
            if not isinstance(message, m.Ack | m.Reattached):
                session.retain(message if not isinstance(message, m.Granted)
                               else msgspec.structs.replace(message, follows=False))  # only once
            self._sessions.send(session.identity, message)

    def forget(self, worker: int) -> None:
        """Drop the messages that are kept for a worker that was lost."""
        self._gate.forget(worker)

    def _with_model(self, ack: m.Ack, waiting: deque[Outgoing], session: WorkerSession) -> m.Ack:
        """Return the answer, with the version that follows for this worker if memory is shared."""
        worker, message = waiting[0]
        if not isinstance(message, m.Model) or worker != session.worker:
            return ack
        model = session.plane and session.plane.lend_version(message.request,
                                                             self._engine.store.latest)
        if model is None:
            return ack
        waiting.popleft()
        return msgspec.structs.replace(ack, model=model)

    def repeat(self, session: WorkerSession, ledger: int) -> None:
        """Repeat messages that a member may have missed with a broken connection.

        `ledger`: as in `messages.Reattach`.
        """
        back = session.returning
        answer = m.Reattached(self._info.epoch, False, 0, 0, None, session.group,
                              session.inbox, self._info.ticket(session.worker))
        if back is not None and back.answer and ledger < self._info.began:  # it did not arrive
            answer = msgspec.structs.replace(back.answer, epoch=answer.epoch, ticket=answer.ticket,
                                             memory=session.inbox)
        self._sessions.send(session.identity, answer)
        self._sessions.repeat(session)

    def farewell(self) -> None:
        """Offer the final version, which is durable now, to all workers that have finished."""
        self._gate.release()
        self.send(())
