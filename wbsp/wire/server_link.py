"""A server process's connection to another one, which is a stranger until it has proven itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import zmq

from wbsp import timeouts
from wbsp.limits import one_line
from wbsp.wire.addresses import endpoint
from wbsp.wire.guard import ConnectionGuard
from wbsp.wire.link import Link
from wbsp.wire.liveness import Probe
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import STRANGER, Claim
from wbsp.wire.sockets import HANDSHAKE_FAILED, TURN, ServerSocket

TOO_MUCH = "it sends more than was requested; each of its connections is closed"


class ServerLink(Link):
    """The connection of a standby to its primary, of a server to a shard, or to its standby.

    libzmq takes everything that a peer sends, also without a request. So messages are read in
    bounded turns, and a peer's connection is cut if it has not proven itself and sends more than is
    read. libzmq then reconnects. Used by one thread.

    Attributes:
        claim: by which both processes prove who they are; the user of this link renews it
            (`renew`).
        made: number of connections that were made.
        ended: number of connections that have ended.
        doubt: why the process there is not trusted.
        says: the reason that the process there gives for refusing.
        gone_since: time since which no process there could serve; None: one may.
    """

    def __init__(self, server: ServerSocket, host: str, port: int, *keys: bytes):
        """`keys`: see `Claim`."""
        self.address = f"{host}:{port}"
        super().__init__(server.dealer(host), server.token, server.on.network)
        self._server = server
        self._guard = ConnectionGuard(1, server.on.network)
        self._guard.allow(4 * m.MAX_MODEL)  # of a peer that has proven itself
        self._probe = Probe(host, port, server.on)
        self.claim = Claim(server.on.scheduler.random, *keys)
        self.made = 0
        self.ended = 0
        self._strange: str | None = None  # why connections fail, though a process listens there
        self.doubt: str | None = None
        self.says: str | None = None
        self.gone_since: float | None = None
        self._refused_at = -math.inf
        self._failed = False  # to connect again, after the newest connection
        self.socket.connect(endpoint(host, port))

    @property
    def proven(self) -> bool:
        """Whether the process there has proven over this connection that it knows one of the keys.
        """
        return self.claim.bond is not None

    @property
    def why(self) -> str | None:
        """Why the process there does not do its part, if known, in one line."""
        return self._strange or self.doubt or (self.says and f"its reason: {one_line(self.says)}")

    def renew(self) -> None:
        """Begin with a new connection: the process there may be another."""
        self.claim.renew()
        self.doubt = None

    def meets(self, challenge: m.Challenge) -> bool:
        """Check the proof of the process there; return True if it has just proven itself.

        The caller then repeats its unanswered requests.
        """
        met = self.claim.meets(challenge)
        if met is not None:
            self.doubt = None if met else STRANGER
        return bool(met)

    def watch(self) -> None:
        """Read the events of the connection and enforce its limits."""
        while (message := self.event()) is not None:
            event = message["event"]
            if event & HANDSHAKE_FAILED:
                self._strange = ("the process there closes connections in the handshake: "
                                 + self.foreign)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._strange = self.gone_since = None
                self.made += 1
            elif event == zmq.EVENT_CONNECTED:
                self._guard.accepted(message["value"])
            elif event == zmq.EVENT_DISCONNECTED:
                self._guard.closed(message["value"])
                self.ended += 1
            self._failed = event == zmq.EVENT_CONNECT_RETRIED
        if self._guard.check():
            self._strange = TOO_MUCH

    def refused(self, now: float) -> bool:
        """Call `watch`; return True if the address has just refused a connection: no process
        listens there."""
        self.watch()
        refused = self._probe.refused(now, self._failed)
        if refused:
            if self.gone_since is None or now - self._refused_at > timeouts.REFUSAL_GAP:
                self.gone_since = now
            self._refused_at = now
        return refused

    def read(self) -> Iterator[list[zmq.Frame]]:
        """Yield the messages that have arrived, at most `TURN` of them."""
        self._guard.reads(behind=True)
        for _ in range(TURN):
            if not self.socket.poll(0):  # an exception takes longer
                self._guard.reads(behind=False)
                return
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            self._server.note(self._guard, frames, self.proven)
            yield frames

    def misread(self, reason: str) -> None:
        """Note that the process there has sent a wrong message: it may be any process."""
        self._strange = f"it sends {one_line(reason)}"

    def send(self, message: m.Message) -> None:
        """Send a message that may be lost."""
        with contextlib.suppress(zmq.Again):
            self.socket.send(m.encode(message), zmq.NOBLOCK)

    def close(self, patience: float = 0.0) -> None:
        """Close the connection, `patience` seconds after the last message."""
        self._guard.close()
        super().close(patience)
