"""Addresses of a server whose host name may have several, or another one later."""

from __future__ import annotations

import contextlib
import socket

import zmq

from wbsp.wire.sockets import endpoint, split_address

# Seconds until the next address is tried, where there are several: without an answer, after the
# connection was refused, after it was accepted (the handshake on a slow line).
_TRY, _REFUSED, _ACCEPTED = 2.0, 0.25, 30.0


class Route:
    """Connects a socket to one address of a host after another, until a connection is made.

    libzmq by itself tries the first address only: an IPv6 address, where a host has both kinds.

    moved:   a second address was tried
    unknown: why the host name cannot be resolved; None if it can be
    """

    def __init__(self, socket: zmq.Socket, address: str):
        """`address`: host:port. Raises ValueError."""
        self._socket = socket
        self._host, self._port = split_address(address)
        self._endpoint: str | None = None  # which is tried at the moment
        self._turn_at = 0.0
        self.moved = False
        self.unknown: str | None = None

    def turn(self, now: float) -> None:
        """Try the next address, if it is time; to be called while there is no connection."""
        if now < self._turn_at:
            return
        self._turn_at = now + _TRY
        endpoints = self._resolve()
        if not endpoints or endpoints == [self._endpoint]:
            return  # libzmq tries this one again by itself
        if self._endpoint:
            self.moved = True
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self._endpoint)
        index = endpoints.index(self._endpoint) + 1 if self._endpoint in endpoints else 0
        self._endpoint = endpoints[index % len(endpoints)]
        self._socket.connect(self._endpoint)

    def refused(self, now: float) -> None:
        """Note that no process listens at this address: the next one is tried soon."""
        self._turn_at = min(self._turn_at, now + _REFUSED)

    def accepted(self, now: float) -> None:
        """Note that a process listens at this address: its handshake is given time."""
        self._turn_at = now + _ACCEPTED

    def _resolve(self) -> list[str]:
        if self._host == "localhost":
            return [endpoint(self._host, self._port)]
        try:
            found = socket.getaddrinfo(self._host.strip("[]"), self._port,
                                       type=socket.SOCK_STREAM)
        except OSError as error:  # a scheduler may register the name later
            self.unknown = f"the host name {self._host} is not known ({error.strerror})"
            return []
        self.unknown = None
        return list(dict.fromkeys(endpoint(str(where[0]), self._port) for *_, where in found))
