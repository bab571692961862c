"""A process that has connected to this one, and is known: a worker, a standby, a shard's server."""

from __future__ import annotations

from dataclasses import dataclass

from wbsp.wire.liveness import Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.sockets import ServerSocket


@dataclass
class KnownPeer:
    """Such a process, over one connection after another; `identity`: of its socket."""

    identity: bytes
    liveness: Liveness

    def alive(self) -> m.Message:
        """Return the heartbeat for it."""
        return m.Alive()

    def reaches(self, socket: ServerSocket) -> bool:
        """Return whether its connection exists."""
        return socket.reaches(self.identity, m.encode(self.alive()))

    def lost(self, socket: ServerSocket, now: float) -> str | None:
        """Return why it counts as lost, or None."""
        return self.liveness.lost(now, lambda: self.reaches(socket))
