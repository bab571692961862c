"""Is the server there? What the socket's monitor and the last message say of it.

libzmq makes a broken connection again by itself, and answers pings from a thread of its own, so
that a server which is merely busy counts as connected.
"""

from __future__ import annotations

from collections.abc import Callable

import zmq
import zmq.utils.monitor

from wbsp.wire.sockets import HANDSHAKE_FAILED
from wbsp.worker.route import Route

GONE = 30.0  # seconds without a connection after which the server counts as lost
SILENT = 300.0  # the same for one that is connected but says nothing: it hangs
_HANDSHAKES = 3  # that may fail without a word before the server counts as one that refuses


class TransportError(RuntimeError):
    """The server cannot be reached, was lost, or refused this worker; the message says which."""


class ConnectionMonitor:
    """Health of one socket's connection; times are seconds of the monotonic clock."""

    def __init__(self, socket: zmq.Socket, address: str, say: Callable[[str], None]):
        self._address, self._say = address, say
        self._route = Route(socket, address)
        self.monitor = socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED)
        self.made = False  # once
        self.heard = 0.0  # when the last message came in
        self._failures = 0  # handshakes
        self._gone_since: float | None = None

    def event(self, now: float) -> bool:
        """Read one event of `monitor`. True: there is a connection after a break, or at another
        address, and what was on its way may be lost. Raises TransportError when the server refuses.
        """
        event = zmq.utils.monitor.recv_monitor_message(self.monitor)["event"]
        if event & HANDSHAKE_FAILED:
            self._fail(event)
        elif event == zmq.EVENT_CONNECT_RETRIED:
            self._route.refused(now)
        elif event == zmq.EVENT_CONNECTED:
            self._route.accepted(now)
        elif event == zmq.EVENT_DISCONNECTED:
            if self.made and self._gone_since is None:
                self._gone_since = now
                self._say(f"the connection to {self._address} broke; trying for {GONE:g} s to make "
                          "it again")
        else:
            again, self.made = self.made, True
            self._gone_since, self.heard = None, now
            if again:
                self._say(f"connected again to {self._address}")
            return again or self._route.moved
        return False

    @property
    def unknown(self) -> str | None:
        """Why the server's host name leads nowhere, if so."""
        return self._route.unknown

    def check(self, now: float) -> None:
        """Look for the server where it is not connected; raise TransportError when it is lost."""
        if not self.made or self._gone_since is not None:
            self._route.turn(now)
        if self._gone_since is not None and now - self._gone_since > GONE:
            raise TransportError(f"lost the server at {self._address}: no connection for "
                                 f"{GONE:g} s; start it again with --resume, then this worker")
        if self.made and now - self.heard > SILENT:
            raise TransportError(f"the server at {self._address} is connected, but says nothing "
                                 f"for {SILENT:g} s: it hangs")

    def _fail(self, event: int) -> None:
        self._failures += 1
        broken = event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if broken and (self.made or self._failures < _HANDSHAKES):
            return  # perhaps only the connection broke; it is tried again
        raise TransportError(f"the server at {self._address} refused the connection: either its "
                             "token is another one (--token_file must name the same secret on both "
                             "sides, or be absent on both), or it is no wbsp server")
