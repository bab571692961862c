"""A server process's own connection to another one, which may be anybody until it is proven."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import zmq

from wbsp.limits import one_line
from wbsp.wire.addresses import endpoint
from wbsp.wire.guard import ConnectionGuard
from wbsp.wire.liveness import Probe
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import STRANGER, Claim
from wbsp.wire.sockets import FOREIGN, HANDSHAKE_FAILED, TURN, ServerSocket

TOO_MUCH = "it sends more than it was asked for; its connection is ended each time"


class ServerLink:
    """The connection of a standby to its primary, of a server to a shard, or to its standby.

    libzmq takes all that a peer sends, also what was not asked for: so it is read in bounded turns,
    and the connection of a peer that has proven nothing, and sends more than is read, is cut.
    libzmq makes another one. Used by one thread.

    claim:  by which both processes prove who they are; its user renews it, see `renew`
    made:   connections that were made
    ended:  connections that have ended
    doubt:  why the process there is not believed
    says:   the reason that the process there gives for what it does not do
    """

    def __init__(self, server: ServerSocket, host: str, port: int, *keys: bytes):
        """`keys`: as of `Claim`."""
        self.address = f"{host}:{port}"
        self.socket = server.dealer(host)
        self._server = server
        self._network = server.on.network
        self._monitor = self.socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED)
        self._guard = ConnectionGuard(1, server.on.network)
        self._guard.allow(4 * m.MAX_MODEL)  # of a peer that is proven
        self._probe = Probe(host, port, server.on)
        self.claim = Claim(server.on.scheduler.random, *keys)
        self.made = 0
        self.ended = 0
        self._strange: str | None = None  # why no connection comes about, though somebody is there
        self.doubt: str | None = None
        self.says: str | None = None
        self._failed = False  # to connect, after the newest connection
        self.socket.connect(endpoint(host, port))

    @property
    def proven(self) -> bool:
        """Whether the process there has proven over this connection that it knows one of the keys.
        """
        return self.claim.bond is not None

    @property
    def why(self) -> str | None:
        """Why the process there does not do its part, as far as is known, in one line."""
        return self._strange or self.doubt or (self.says and f"it says: {one_line(self.says)}")

    def renew(self) -> None:
        """The connection is a new one: the process there may be another."""
        self.claim.renew()
        self.doubt = None

    def meets(self, challenge: m.Challenge) -> bool:
        """Take the proof of the process there; True: it has proven itself just now, and is to be
        asked again for what it has not done yet."""
        met = self.claim.meets(challenge)
        if met is not None:
            self.doubt = None if met else STRANGER
        return bool(met)

    def watch(self) -> None:
        """Take note of what has become of the connection."""
        while self._monitor.poll(0):
            message = self._network.event(self._monitor)
            event = message["event"]
            if event & HANDSHAKE_FAILED:
                self._strange = f"who is there ends connections in their handshake: {FOREIGN}"
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._strange = None
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
        """As `watch`; True if the address has just refused a connection: no process listens there.
        """
        self.watch()
        return self._probe.refused(now, self._failed)

    def read(self) -> Iterator[list[zmq.Frame]]:
        """The messages that have come, at most `TURN` of them."""
        self._guard.behind = True
        for _ in range(TURN):
            if not self.socket.poll(0):  # an exception takes longer
                self._guard.behind = False
                return
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            self._server.note(self._guard, frames, self.proven)
            yield frames

    def misread(self, reason: str) -> None:
        """What was read is none of its messages: it may be anybody's process."""
        self._strange = f"it sends {one_line(reason)}"

    def send(self, message: m.Message) -> None:
        """Send a message that may be lost."""
        with contextlib.suppress(zmq.Again):
            self.socket.send(m.encode(message), zmq.NOBLOCK)

    def close(self, patience: float = 0.0) -> None:
        """End the connection, `patience` seconds after the last message."""
        self._guard.close()
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(int(1000 * patience))
