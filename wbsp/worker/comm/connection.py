"""Health of a worker's connection: what the socket's monitor and the newest message show of it.

libzmq repairs a broken connection by itself, and answers pings from a thread of its own, so that a
server that is merely busy counts as connected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import zmq

from wbsp.process.host import HOST, Host
from wbsp.wire.sockets import HANDSHAKE_FAILED
from wbsp.worker.comm.route import Route

PATIENCE = 600.0  # seconds without a connection after which a worker gives its server up
SILENT = 300.0  # seconds without a message after which a connected server counts as hanging
_NOTICE = 10.0  # seconds between two lines about a lost server
_HANDSHAKES = 3  # failures without a reason after which the server counts as refusing


class TransportError(RuntimeError):
    """The server cannot be reached, was lost, or refused this worker; the message says which."""


class RunOver(TransportError):
    """The server refused this worker since its run has ended."""


def refused(reason: str, over: bool) -> TransportError:
    """The error of a worker that the server refused; `over`: since its run has ended."""
    return (RunOver if over else TransportError)(f"the server refused: {reason}")


class ConnectionMonitor:
    """Health of one socket's connection; times are seconds of the monotonic clock.

    patience:    seconds without a connection after which the server is lost for good
    monitor:     the socket to poll; each of its messages is for `event`
    made:        there has been a connection
    received_at: time of the newest message from the server, which the receiver of messages sets
    """

    def __init__(self, socket: zmq.Socket, address: str, patience: float,
                 say: Callable[[str], None], on: Host = HOST):
        self._address, self._patience, self._say = address, patience, say
        self._network = on.network
        self._route = Route(socket, address, on)
        self.monitor = socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED)
        self.made = False
        self.received_at = 0.0
        self._failures = Counter[str]()  # address -> handshakes that failed
        self._refusal = ""  # why the newest of them may have, for the lines about a lost server
        self._broken_since: float | None = None
        self._unserved_since: float | None = None  # no server, though there are connections
        self._lost = False  # who serves
        self._notice_at = 0.0

    def event(self, now: float) -> bool:
        """Read one event of `monitor`.

        True: the connection is a new one, after a break or to another address, and messages on
        their way may be lost. Raises TransportError when the server refuses the connection.
        """
        message = self._network.event(self.monitor)
        event = message["event"]
        if self._route.left(message["endpoint"].decode()):
            return False
        if event & HANDSHAKE_FAILED:
            self._fail(event, now)
        elif event == zmq.EVENT_CONNECT_RETRIED:
            self._route.refused(now)
        elif event == zmq.EVENT_CONNECTED:
            self._route.accepted(now)
        elif event == zmq.EVENT_DISCONNECTED:
            self._route.ended(now)
            if self.made and self._broken_since is None:
                self._lost = True
                self._broken_since, self._notice_at = now, now
        else:
            again, self.made = self.made, True
            self._broken_since, self._refusal, self.received_at = None, "", now
            return again or self._route.moved
        return False

    def turn_away(self, reason: str, now: float) -> None:
        """The process at the other end does not serve: leave it for the next address."""
        self._lost = True
        if self._unserved_since is None:
            self._unserved_since, self._notice_at = now, now + _NOTICE
            self._say(reason)
        self._broken_since = self._unserved_since
        self._route.leave(now)

    def served(self) -> None:
        """The process at the other end serves."""
        self._unserved_since = None
        if self._lost:
            self._lost = False
            self._say(f"connected again to {self._address}")

    @property
    def broken(self) -> bool:
        """True from a break until there is a connection again. For any thread."""
        return self._broken_since is not None

    @property
    def unknown(self) -> str | None:
        """Why the server's host name cannot be resolved; None if it can be."""
        return self._route.unknown

    @property
    def endpoint(self) -> str:
        """The address that is tried, or connected to."""
        return self._route.address

    @property
    def host(self) -> str:
        """The host that is connected to."""
        return self._route.host

    def woke(self, now: float, seconds: float) -> None:
        """This process has slept for so many seconds until `now`: it could not have heard of the
        server, or tried to reach it."""
        self.received_at = max(self.received_at, now)
        if self._unserved_since is not None:
            self._unserved_since += seconds
        if self._broken_since is not None:
            self._broken_since += seconds
        self._notice_at += seconds

    def check(self, now: float) -> None:
        """Try the next address while there is no connection.

        Raises TransportError when the server is lost.
        """
        if (not self.made or self._broken_since is not None) and not self.monitor.poll(0):
            self._route.turn(now)
        since = self._unserved_since if self._broken_since is None else self._broken_since
        if since is not None:
            left = since + self._patience - now
            if left < 0:
                raise TransportError(f"lost the server at {self._address}: no connection for "
                                     f"{self._patience:g} s{self._refusal}; start it again with "
                                     "--resume, then this worker")
            if now >= self._notice_at:
                self._notice_at += _NOTICE
                self._say(f"no connection to the server at {self._address}{self._refusal}; trying "
                          f"for {'another ' if left < self._patience - 1 else ''}{left:.0f} s")
        elif self.made and now - self.received_at > SILENT:
            raise TransportError(f"the server at {self._address} is connected, but says nothing "
                                 f"for {SILENT:g} s: it hangs")

    def _fail(self, event: int, now: float) -> None:
        """A handshake failed. A forwarder whose server is away ends connections without a reason,
        as a server does that has another token: so all addresses get their turns."""
        without_reason = event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self._route.ended(now)
        self._failures[self._route.address] += 1 if without_reason else _HANDSHAKES
        self._refusal = (" (it ends connections in their handshake: is its token another one, or "
                         "is it no wbsp server?)")
        refusing = [one for one, times in self._failures.items() if times >= _HANDSHAKES]
        if self.made or len(refusing) < self._route.number:
            return  # perhaps the connection broke; libzmq tries again
        raise TransportError(f"the server at {self._address} refused the connection: either its "
                             "token is another one (--token_file must name the same secret on both "
                             "sides, or be absent on both), or it is no wbsp server")
