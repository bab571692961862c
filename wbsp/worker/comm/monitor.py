"""A worker's connection: the addresses of its server and the standby, tried in turn, and its
health, from the socket's monitor and the newest message.

libzmq repairs a broken connection by itself, and answers pings from its own thread, so that a busy
server counts as connected.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

import zmq

from wbsp import timeouts
from wbsp.access import Access
from wbsp.environment import shown_server
from wbsp.process.host import HOST, Host
from wbsp.process.throttle import Throttle
from wbsp.wire.addresses import endpoints, plain_address, split_addresses, to_check
from wbsp.wire.errors import ForeignServer, TransportError
from wbsp.wire.link import Link
from wbsp.wire.liveness import SERVER, Liveness
from wbsp.wire.sockets import HANDSHAKE_FAILED, HANDSHAKES

_NOTICE = 10.0  # seconds between two lines about a lost server, or one that is waited for
_FIRST_NOTICE = 2.0  # seconds of waiting for a server before a line


class Route:
    """Connection of a socket to one address after another, until one succeeds.

    Attributes:
        address: the one that is tried, or connected to; "": none yet.
        number: of addresses whose names could be resolved, at least 1.
        moved: a second address was tried.
        unknown: why the host name cannot be resolved, or None.
    """

    def __init__(self, socket: zmq.Socket[bytes], address: str, on: Host = HOST):
        """Start.

        Args:
            socket: to connect.
            address: host:port, or several of them, separated by commas.
            on: the host that this process runs on.

        Raises:
            ValueError: the address is bad.
        """
        self._socket = socket
        self._network = on.network
        self._servers = split_addresses(address)
        self.address = ""
        self.number = 1
        self._left = False  # that address is disconnected
        self._turn_at = 0.0
        self._ends = False  # it has ended a connection in its present turn
        self.moved = False
        self.unknown: str | None = None

    @property
    def host(self) -> str:
        """Address of the host that is tried, or connected to."""
        return self.address.removeprefix("tcp://").rpartition(":")[0]

    def turn(self, now: float) -> None:
        """Try the next address if it is due; call this while no connection exists."""
        if now < self._turn_at:
            return
        self._turn_at = now + timeouts.NO_ANSWER
        endpoints = self._resolve()
        self.number = max(1, len(endpoints))
        if not endpoints or (endpoints == [self.address] and not self._left):
            return  # libzmq tries this one again by itself
        self.moved = self.moved or bool(self.address)
        self._disconnect()
        self._left = self._ends = False
        index = endpoints.index(self.address) + 1 if self.address in endpoints else 0
        self.address = endpoints[index % len(endpoints)]
        self._socket.connect(self.address)

    def left(self, endpoint: str) -> bool:
        """Return whether an address is no longer tried, so that its events are ignored.

        libzmq reports connections in a queue. If one is made at the moment at which the next
        address has its turn, it is ended without a report before this side reads of it.
        """
        return self._left or not self.address or numbers(endpoint) != numbers(self.address)

    def leave(self, now: float) -> None:
        """End the connection, and try the next address soon."""
        self._disconnect()
        self._turn_at = now + timeouts.NOT_SERVING

    def refused(self, now: float) -> None:
        """Note that no process listens at this address: the next one is tried soon."""
        self._turn_at = min(self._turn_at, now + timeouts.REFUSED)

    def ended(self, now: float) -> None:
        """Note that a connection to this address was ended: the next one is tried soon.

        That holds even if this address accepts connections repeatedly.
        """
        self._ends = True
        self.refused(now)

    def accepted(self, now: float) -> None:
        """Note that a process listens at this address, and allow time for its handshake."""
        if not self._ends:
            self._turn_at = now + timeouts.HANDSHAKE

    def _disconnect(self) -> None:
        if self.address and not self._left:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self.address)
        self._left = True

    def _resolve(self) -> list[str]:
        self.unknown = None
        found: dict[str, None] = {}  # in their order, each once
        for host, port in self._servers:
            try:
                found.update(dict.fromkeys(endpoints(host, port, self._network)))
            except OSError as error:  # a scheduler may register the name later
                self.unknown = f"the host name {host} is not known ({error.strerror})"
        return [*found]


def numbers(endpoint: str) -> tuple[str, str]:
    """Return address and port of "tcp://address:port".

    libzmq writes them differently after a connection was broken.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return plain_address(host.partition("%")[0]), port


class Monitor:
    """Health of one socket's connection; times are seconds of the monotonic clock.

    Attributes:
        route: to the addresses of the server.
        socket: the one to poll; each of its messages is for `event`.
        made: a connection has existed.
        away: why the newest peer did not serve, until one does; None: none was asked, or it serves.
        liveness: of the server; the receiver of messages updates it.
    """

    def __init__(self, socket: zmq.Socket[bytes], access: Access, say: Callable[[str], None],
                 on: Host = HOST):
        self._address = access.address
        self._patience = access.patience  # after that the server is lost for good
        self._say = say
        self.route = Route(socket, access.address, on)
        self._link = Link(socket, access.token, on.network)
        self.socket = self._link.monitor
        self.made = False
        self.away: str | None = None
        self._served = False  # a peer has served, once
        self.liveness = Liveness(SERVER, 0.0)
        self._failures = Counter[str]()  # address -> handshakes that failed
        self._refusal = ""  # possible reason of the newest, for the lines about a lost server
        self._broken_since: float | None = None
        self._unserved_since: float | None = None  # no server, despite connections
        self._lost = False  # the serving server
        self._notice = Throttle(_NOTICE)
        self._first: tuple[float, float] | None = None  # since when and for how long it is sought

    def seek(self, now: float, seconds: float) -> None:
        """Wait for a server that serves, for at most `seconds`; `check` raises after that."""
        self._first = now, seconds
        self._notice.rest(now, _FIRST_NOTICE)

    def event(self, now: float) -> bool:
        """Read one event of `monitor`.

        True: the connection is a new one, after a break or to another address, and messages on
        their way may be lost. Raises TransportError when the server refuses the connection.
        """
        message = self._link.event()
        if message is None or self.route.left(message["endpoint"].decode()):
            return False
        event = message["event"]
        if event & HANDSHAKE_FAILED:
            self._fail(event, now)
        elif event == zmq.EVENT_CONNECT_RETRIED:
            self.route.refused(now)
            if self.route.number == 1:
                self.away = None  # that process has ended
        elif event == zmq.EVENT_CONNECTED:
            self.route.accepted(now)
        elif event == zmq.EVENT_DISCONNECTED:
            self.route.ended(now)
            if self.made and self._broken_since is None:
                self._lost = True
                self._broken_since = now
                self._notice.rest(now, 0.0)
        else:
            again = self.made
            self.made = True
            self._broken_since = None
            self._refusal = ""
            self.liveness.hear(now)
            return again or self.route.moved
        return False

    def turn_away(self, reason: str, now: float) -> None:
        """Leave a peer that does not serve for the next address."""
        self._lost = True
        self.away = reason
        if self._unserved_since is None:
            self._unserved_since = now
            self._notice.rest(now)
            self._say(reason)
        self._broken_since = self._unserved_since
        self.route.leave(now)

    def served(self) -> None:
        """Note that the peer serves."""
        self._unserved_since = self.away = self._first = None
        again, self._served = self._served, True
        if self._lost:
            self._lost = False
            self._say(f"connected {'again ' if again else ''}to {self._address}")

    @property
    def broken(self) -> bool:
        """True from a break until the reconnection. For any thread."""
        return self._broken_since is not None

    def woke(self, now: float, seconds: float) -> None:
        """Handle the end of a suspension of some `seconds`, in which no contact was possible."""
        self.liveness.woke(now)
        if self._unserved_since is not None:
            self._unserved_since += seconds
        if self._broken_since is not None:
            self._broken_since += seconds
        self._notice.woke(seconds)
        if self._first is not None:
            self._first = self._first[0] + seconds, self._first[1]

    def check(self, now: float) -> None:
        """Try the next address while no connection exists.

        Raises:
            TransportError: the server is lost, or none is found.
        """
        if self._first is not None:
            self._look(now, *self._first)
        if (not self.made or self._broken_since is not None) and not self.socket.poll(0):
            self.route.turn(now)
        since = self._unserved_since if self._broken_since is None else self._broken_since
        if since is not None:
            left = since + self._patience - now
            why = self._refusal if self.away is None else f" (newest answer: {self.away})"
            if left < 0:
                raise TransportError(f"lost the server at {self._address}: no connection for "
                                     f"{self._patience:g} s{why}; start it again with "
                                     "--resume, then this worker")
            if self._served and self._notice.due(now):  # before, the process that waits prints
                self._say(f"no connection to the server at {self._address}{why}; trying "
                          f"for {'another ' if left < self._patience - 1 else ''}{left:.0f} s")
        elif self.made and self.liveness.silent(now):
            raise TransportError(f"the server at {self._address} is connected, but silent "
                                 f"for {SERVER.silent:g} s: it hangs")

    def _look(self, now: float, since: float, seconds: float) -> None:
        """Print that this worker waits for a server, and for how long."""
        left = since + seconds - now
        if left <= 0 and self.away is not None:
            raise TransportError(f"waited {seconds:g} s for the server at {self._address}: "
                                 f"{self.away}")
        if left <= 0:
            raise TransportError(f"no server answered at {shown_server(self._address)} within "
                                 f"{seconds:g} s; {self.route.unknown or to_check(self._address)}")
        if self._notice.due(now):
            why = ": no server answers there yet" if self.away is None else f": {self.away}"
            if self.away is None and _NOTICE <= seconds - left < 2 * _NOTICE:  # once
                why += f"; {to_check(self._address)}"
            self._say(f"waiting for the server at {shown_server(self._address)}, for {left:.0f} s "
                      f"more{why}")

    def _fail(self, event: int, now: float) -> None:
        """Handle a failed handshake.

        A forwarder without its server ends connections without a reason, like a server with another
        token. So all addresses are tried.
        """
        without_reason = event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self.route.ended(now)
        self._failures[self.route.address] += 1 if without_reason else HANDSHAKES
        self._refusal = (" (it ends connections in their handshake: does it have another token, or "
                         "is it not a wbsp server?)")
        refusing = [one for one, times in self._failures.items() if times >= HANDSHAKES]
        if self.made or len(refusing) < self.route.number:
            return  # perhaps the connection broke; libzmq tries again
        raise ForeignServer(f"the server at {self._address} refused the connection: "
                            f"{self._link.foreign}")
