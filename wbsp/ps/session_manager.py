"""The workers' sessions: who is connected, who is alive, and what they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from wbsp.ps.protocol_errors import ProtocolErrors, TokenBucket
from wbsp.ps.worker_session import WorkerSession, one_line
from wbsp.runlog.report import Report
from wbsp.wire import messages as m
from wbsp.wire.chunks import split
from wbsp.wire.peer_queues import PeerQueues
from wbsp.wire.rate import RateLimiter
from wbsp.wire.sockets import ServerSocket

PROBE = 1.0  # seconds of silence after which a worker's connection is tried
GONE = 5.0  # seconds without a connection after which a worker counts as dead
SILENT = 300.0  # the same for one that is connected but says nothing: it hangs


class SessionManager:
    """One session a worker, told apart by the identity of its socket; used by the event loop.

    It decides nothing about the run. `clock`, `say` and `event` are the server's.
    """

    def __init__(self, socket: ServerSocket, bandwidth: float | None, clock: Callable[[], float],
                 say: Callable[[str], None], event: Callable[..., None]):
        self.peers: dict[bytes, WorkerSession] = {}  # by identity
        self.rejections = ProtocolErrors(say, event)
        self.queues = PeerQueues(socket.socket, RateLimiter(bandwidth))
        self._socket, self._clock, self._say, self._event = socket, clock, say, event
        self._by_worker: dict[int, WorkerSession] = {}
        self._refusals = TokenBucket()

    def of(self, worker: int) -> WorkerSession | None:
        """The session of that worker, if it has one."""
        return self._by_worker.get(worker)

    def open(self, identity: bytes, worker: int, earlier: Report | None) -> None:
        """A worker has introduced itself; its `earlier` lives had reported so much."""
        self.peers[identity] = self._by_worker[worker] = WorkerSession(
            identity, worker, self._clock(), earlier=earlier)

    def close(self, peer: WorkerSession) -> None:
        """Forget a session; a message on its way to the worker may still arrive."""
        self.peers.pop(peer.identity, None)
        if self._by_worker.get(peer.worker) is peer:
            del self._by_worker[peer.worker]
        self.queues.drop_transfer(peer.identity)

    # Who is alive.

    def watch(self) -> None:
        """Hold all connections to their limits, and count those that were cut or are nobody's."""
        for reason, count in self._socket.watch().items():
            self.rejections.count(reason, self._clock(), count)

    def reaches(self, peer: WorkerSession) -> bool:
        """False when the worker's connection is gone."""
        return self._socket.reaches(peer.identity, m.encode(peer.alive()))

    def lost(self) -> Iterator[tuple[WorkerSession, str]]:
        """Those that are gone, each with the reason.

        Slow is not dead: a worker whose Python thread is held up for long, by a compiler say, is
        silent but connected.
        """
        now = self._clock()
        for peer in list(self.peers.values()):
            if now - peer.heard > PROBE and now - peer.probed > PROBE:
                peer.probed = now
                if self.reaches(peer):
                    peer.gone_since = None
                elif peer.gone_since is None:
                    peer.gone_since = now
                elif now - peer.gone_since > GONE:
                    yield peer, f"no connection for {now - peer.gone_since:.0f} s"
                    continue
            if now - peer.heard > SILENT:
                yield peer, f"connected, but nothing heard for {SILENT:g} s"
            elif peer.deaf:
                yield peer, "it does not read what it is sent"

    def idle(self, since: float, patience: float) -> list[WorkerSession]:
        """Those of whom nothing came through for `patience` seconds, from `since` on."""
        now = self._clock()
        return [p for p in self.peers.values() if now - max(since, p.progress) > patience]

    # What they are sent.

    def send(self, identity: bytes, message: m.Message) -> None:
        """Send a message, to a worker or to a stranger, when the line and the socket allow."""
        if not self.queues.post(identity, m.encode(message), now=self._clock()):
            if peer := self.peers.get(identity):
                peer.deaf = True

    def send_model(self, peer: WorkerSession, request: int, version: int,
                   vector: np.ndarray) -> None:
        """Send a version (float32 [size]) instead of what is left of an earlier one."""
        self.queues.transfer(peer.identity, (
            (m.encode(m.Model(request, version, offset, vector.size)), chunk)
            for offset, chunk in split(vector)), self._clock())

    def tell_progress(self, peer: WorkerSession) -> None:
        """That the server lives, and how much has come of what this worker sends or waits for."""
        peer.told = self._clock()
        self.send(peer.identity, peer.alive())

    def refuse(self, identity: bytes, worker: int, reason: str) -> None:
        """Tell somebody why it may not take part, and say so, but not without end."""
        reason, now = one_line(reason), self._clock()
        self.send(identity, m.Refused(reason))
        if self._refusals.may(now):
            self._say(f"refused: {reason}")
            self._event(now, "refused", worker=worker, reason=reason)
        else:
            self.rejections.count(reason, now)
