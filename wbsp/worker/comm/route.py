"""Addresses of servers: of one whose host name may have several, or another one later, and of its
standby."""

from __future__ import annotations

import contextlib

import zmq

from wbsp.process.host import HOST, Host
from wbsp.wire.addresses import endpoints, plain_address, split_addresses

# Seconds until the next address is tried, where there are several: without an answer, after the
# connection was refused, after it was accepted (the handshake on a slow line).
_TRY, _REFUSED, _ACCEPTED = 2.0, 0.25, 30.0
_AWAY = 0.5  # the same after a process that does not serve, also where there is no other address


class Route:
    """Connects a socket to one address after another, until a connection is made.

    moved:   a second address was tried
    unknown: why the host name cannot be resolved; None if it can be
    """

    def __init__(self, socket: zmq.Socket, address: str, on: Host = HOST):
        """`address`: host:port, or several of them, with commas between. Raises ValueError."""
        self._socket, self._network = socket, on.network
        self._servers = split_addresses(address)
        self._endpoint: str | None = None  # which is tried at the moment
        self._left = False  # that one is not connected any more
        self._turn_at = 0.0
        self._number = 0
        self._ends = False  # it has ended a connection since it has its turn
        self.moved = False
        self.unknown: str | None = None

    @property
    def address(self) -> str:
        """The address that is tried, or connected to."""
        return self._endpoint or ""

    @property
    def number(self) -> int:
        """How many addresses there are, as far as their names could be resolved."""
        return max(1, self._number)

    @property
    def host(self) -> str:
        """Address of the host that is tried, or connected to."""
        return self.address.removeprefix("tcp://").rpartition(":")[0]

    def turn(self, now: float) -> None:
        """Try the next address, if it is time; to be called while there is no connection."""
        if now < self._turn_at:
            return
        self._turn_at = now + _TRY
        endpoints = self._resolve()
        self._number = len(endpoints)
        if not endpoints or (endpoints == [self._endpoint] and not self._left):
            return  # libzmq tries this one again by itself
        if self._endpoint:
            self.moved = True
            self._disconnect(self._endpoint)
        self._left = self._ends = False
        index = endpoints.index(self._endpoint) + 1 if self._endpoint in endpoints else 0
        self._endpoint = endpoints[index % len(endpoints)]
        self._socket.connect(self._endpoint)

    def left(self, endpoint: str) -> bool:
        """True for an address that is tried no longer: what happened there is of no interest.

        libzmq reports a connection in a queue. One that is made in the moment in which the next
        address gets its turn is ended again, without another word, before this side reads of it.
        """
        return (self._left or self._endpoint is None
                or numbers(endpoint) != numbers(self._endpoint))

    def leave(self, now: float) -> None:
        """End the connection, and try the next address soon."""
        if self._endpoint and not self._left:
            self._disconnect(self._endpoint)
        self._left, self._turn_at = True, now + _AWAY

    def refused(self, now: float) -> None:
        """Note that no process listens at this address: the next one is tried soon."""
        self._turn_at = min(self._turn_at, now + _REFUSED)

    def ended(self, now: float) -> None:
        """Note that a connection to this address was ended: the next one is tried soon, also where
        this one accepts connections again and again."""
        self._ends = True
        self.refused(now)

    def accepted(self, now: float) -> None:
        """Note that a process listens at this address: its handshake is given time."""
        if not self._ends:
            self._turn_at = now + _ACCEPTED

    def _disconnect(self, endpoint: str) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(endpoint)

    def _resolve(self) -> list[str]:
        self.unknown = None
        return list(dict.fromkeys(found for host, port in self._servers
                                  for found in self._endpoints(host, port)))

    def _endpoints(self, host: str, port: int) -> list[str]:
        try:
            return endpoints(host, port, self._network)
        except OSError as error:  # a scheduler may register the name later
            self.unknown = f"the host name {host} is not known ({error.strerror})"
            return []


def numbers(endpoint: str) -> tuple[str, str]:
    """Address and port of "tcp://address:port": once a connection was broken, libzmq names them in
    another way than before."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return plain_address(host.partition("%")[0]), port
