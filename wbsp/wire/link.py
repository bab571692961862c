"""A connection of this process to another one, as libzmq reports it."""

from __future__ import annotations

from typing import Any

import zmq

from wbsp.process.host import HOST, Network
from wbsp.wire.sockets import HANDSHAKE_FAILED, MISMATCH, foreign

_EVENTS = (zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED
           | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED)


class Link:
    """The socket of one connection, and its monitor; libzmq repairs the connection by itself.

    Attributes:
        monitor: can be polled for `event`.
    """

    def __init__(self, socket: zmq.Socket[bytes], token: bytes | None,
                 network: Network = HOST.network, events: int = _EVENTS):
        """Start; `socket`: not connected yet; `token`: the secret of both sides, or None."""
        self.socket = socket
        self.monitor = socket.get_monitor_socket(events)
        self._token, self._network = token, network
        self._mismatch = False  # a process there has a token and this one none, or the reverse

    def event(self) -> dict[str, Any] | None:
        """Read the next event: its number, value and endpoint; None: no event."""
        if not self.monitor.poll(0):
            return None
        event = self._network.event(self.monitor)
        if event["event"] & HANDSHAKE_FAILED:
            self._mismatch = self._mismatch or event["value"] == MISMATCH
        return event

    @property
    def foreign(self) -> str:
        """What may be wrong if the process there fails handshakes, in one line."""
        return foreign(self._token, self._mismatch)

    def close(self, patience: float = 0.0) -> None:
        """Close the connection, `patience` seconds after the last message."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(int(1000 * patience))
