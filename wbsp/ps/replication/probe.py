"""What can be found out about a server that is silent: whether its process lives, whether another
one serves in its place."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from concurrent.futures import Future

import zmq

from wbsp.limits import one_line
from wbsp.process.host import HOST, Host
from wbsp.wire.addresses import endpoint
from wbsp.wire.intake import TOO_MUCH, Intake
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Claim
from wbsp.wire.sockets import HANDSHAKE_FAILED, NO_HANDSHAKE, ServerSocket

_EVERY = 0.5  # seconds between two attempts
_TRY = 2.0  # seconds that an attempt may take


class Probe:
    """Whether an address refuses connections: attempts that wait for nothing.

    Refusal by the machine proves that no process listens there: one that did has ended. Silence
    proves nothing. An attempt is made only where libzmq, which does not say why, has failed to
    connect: to a server it would be a peer that does not speak its protocol.

    A host's name is looked up anew for each attempt, since it may stand for another machine by
    then; in a thread of its own, since a name server may take half a minute.
    """

    def __init__(self, dealer: zmq.Socket, host: str, port: int, intake: Intake,
                 on: Host = HOST):
        """`dealer`: a socket that is to be connected to that address; `intake`: reads it."""
        self._host = "127.0.0.1" if host == "localhost" else host  # as `endpoint` has it
        self._port = port
        self._dealer, self._intake = dealer, intake
        self._network, self._scheduler = on.network, on.scheduler
        self._monitor = dealer.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED
                                                  | zmq.EVENT_HANDSHAKE_SUCCEEDED
                                                  | Intake.events | HANDSHAKE_FAILED)
        self.strange: str | None = None  # why no connection comes about, though somebody is there
        self.connections = 0  # that were made
        self._failed = False  # to connect, after the newest connection
        self._lookup: Future | None = None  # what the host's name stands for
        self._socket: socket.socket | None = None
        self._since = -_EVERY

    def refused(self, now: float) -> bool:
        """True if the newest attempt was refused; `now` in seconds of any clock."""
        while self._monitor.poll(0):
            message = self._network.event(self._monitor)
            event = message["event"]
            self._intake.event(message)
            self.connections += event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if event & HANDSHAKE_FAILED:
                self.strange = NO_HANDSHAKE
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.strange = None
            self._failed = event == zmq.EVENT_CONNECT_RETRIED
        if self._intake.check():
            self.strange = TOO_MUCH
        if self._socket is None:
            if not self._failed:
                self._lookup = None
                return False
            return self._try(now)
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error or self._connected(self._socket) or now - self._since > _TRY:
            self._give_up()
        return error == errno.ECONNREFUSED

    def close(self) -> None:
        """End everything, before the socket is closed."""
        self._give_up()
        self._intake.close()
        self._dealer.disable_monitor()
        self._monitor.close(0)

    def _give_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _try(self, now: float) -> bool:
        """Make an attempt when it is time, and the address is known; True if it is refused at once.
        """
        if self._lookup is None:
            if now - self._since < _EVERY:
                return False
            self._since, self._lookup = now, self._look_up()
        if not self._lookup.done():
            return False
        self._since, lookup, self._lookup = now, self._lookup, None
        with contextlib.suppress(OSError, UnicodeError):
            family, kind, where = lookup.result()[0]
            self._socket = self._network.socket(family, kind)
            self._socket.setblocking(False)
            if self._socket.connect_ex(where) == errno.ECONNREFUSED:
                self._give_up()
                return True
        return False

    def _look_up(self) -> Future:
        found = self._scheduler.future()

        def resolve() -> None:
            try:
                found.set_result(self._network.resolve(self._host, self._port))
            except (OSError, UnicodeError) as error:
                found.set_exception(error)

        if _is_number(self._host):
            resolve()
        else:
            self._scheduler.thread(resolve, "look-up").start()
        return found

    @staticmethod
    def _connected(one: socket.socket) -> bool:
        with contextlib.suppress(OSError):
            one.getpeername()
            return True
        return False


def _is_number(host: str) -> bool:
    """True for an address that no name server is asked about."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class Inquiry:
    """The question at an address which epoch of a run is served there, asked again and again.

    refused: whether the address refuses connections; see `Probe`
    """

    def __init__(self, server: ServerSocket, host: str, port: int, run: str, secret: bytes):
        """`server`: whose token the question needs; `run`: the run's id; `secret`: the run's, by
        which an answer is proven."""
        self._socket = server.dealer(host)
        self._intake = Intake(server, self._socket, lambda: False)
        self._probe = Probe(self._socket, host, port, self._intake, server.on)
        self.refused = self._probe.refused
        self._socket.connect(endpoint(host, port))
        self._claim = Claim(server.on.scheduler.random, secret)
        self._question = m.encode(m.Ask(run, self._claim.nonce))
        self._asked = -_EVERY
        self._says: str | None = None

    @property
    def why(self) -> str | None:
        """Why there is no answer, as far as is known, in one line."""
        return self._probe.strange or (self._says and f"it says: {one_line(self._says)}")

    def epoch(self, now: float) -> int | None:
        """The epoch that is served there; None: nobody says so (yet)."""
        if now - self._asked >= _EVERY:
            self._asked = now
            with contextlib.suppress(zmq.Again):
                self._socket.send(self._question, zmq.NOBLOCK)
        for frames in self._intake.read():
            with contextlib.suppress(m.WireError):
                answer = m.decode(m.FromServer, frames[0].buffer)
                if isinstance(answer, m.NotServing):  # of anybody: for a line alone
                    self._says = answer.reason
                if isinstance(answer, m.Leading) and self._claim.answers(
                        answer.proof, "leading", answer.epoch):
                    return answer.epoch
        return None

    def close(self) -> None:
        self._probe.close()
        self._socket.close(0)
