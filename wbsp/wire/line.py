"""A connection to a process that answers one question at a time: a server or its file server."""

from __future__ import annotations

import math
from typing import IO, TypeVar

import zmq

from wbsp import timeouts
from wbsp.limits import one_line
from wbsp.process.host import HOST, Host
from wbsp.wire.link import Link
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.reading import ReadVersion, VersionPart
from wbsp.wire.proof import STRANGER, Claim, Request
from wbsp.wire.sockets import HANDSHAKE_FAILED, HANDSHAKES, contact, worker_socket

Answer = TypeVar("Answer", bound=m.Message)
TROUBLE = OSError, zmq.ZMQError, m.WireError  # raised by `Line`


class Refused(ConnectionError):
    """The process refuses the connection, and would refuse another attempt, too."""


class Foreign(Refused):
    """The process has another token, or is no process of wbsp."""


class Nobody(TimeoutError):
    """No process answers at the address."""


class Line(Link):
    """A connection for one question at a time. Raises OSError in one line."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], place: str, token: bytes | None,
                 on: Host = HOST):
        """`place`: as returned by `endpoint`."""
        self._claim = Claim(on.scheduler.random, contact(token, on))
        self.place, self.shown = place, place.removeprefix("tcp://")
        host = self.shown.rpartition(":")[0]
        super().__init__(worker_socket(context, [host], on.scheduler.random(16), token), token,
                         on.network,
                         zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED
                         | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED)
        self._on = on
        self._failures = 0  # of handshakes
        self.made = False
        self.socket.connect(place)

    def ask_proven(self, question: Request, kind: type[Answer]) -> Answer:
        """Return a server's answer, of this type; prove this process, and have the server do so.

        Raises:
            WireError: it is another message.
        """
        for _ in range(3):
            answer = self.ask(self._claim.sealed(question))
            match answer:
                case m.Challenge():
                    if self._claim.meets(answer) is False:
                        raise Refused(STRANGER)
                case m.Refused():
                    raise Refused(one_line(answer.reason))
                case m.NotServing():
                    raise ConnectionError(one_line(answer.reason))
                case m.VersionAt() if answer.ends and kind is not m.VersionAt:
                    raise Refused("the server has ended")
                case _ if isinstance(answer, kind):
                    return answer
                case _:
                    raise m.WireError("the server sent what was not requested")
        raise ConnectionError("the server rejects this process's proof")

    def ask(self, question: m.Message) -> m.Message:
        """Return the answer; ignore heartbeats. Raises WireError where it is no message."""
        self.socket.send(m.encode(question), zmq.NOBLOCK)
        clock, poller = self._on.clock, self._on.network.poller()
        end = clock.monotonic() + timeouts.READ_ANSWER
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)
        while (left := end - clock.monotonic()) > 0:
            found = dict(poller.poll(math.ceil(1000 * left)))
            if self.socket in found:
                answer = m.decode(m.FromServer, self.socket.recv_multipart(copy=False)[0].buffer)
                if not isinstance(answer, m.Alive):
                    return answer
            elif not self.socket.poll(0) and (event := self.event()):  # else read what came before
                self._take(event["event"])
        if not self.made:
            raise Nobody(self._nobody)
        raise TimeoutError(f"{self.shown} does not answer")

    @property
    def _nobody(self) -> str:
        return f"no server answers at {self.shown}"

    def _take(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.made = True
        elif event & HANDSHAKE_FAILED:
            self._failures += 1
            if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL or self._failures >= HANDSHAKES:
                raise Foreign(f"{self.shown} refused the connection: {self.foreign}")
        elif self.made:
            raise ConnectionError(f"the connection to {self.shown} broke")
        elif event == zmq.EVENT_CONNECT_RETRIED and not self._failures:
            raise Nobody(self._nobody)


def read_version(place: str, at: m.VersionAt, token: bytes | None, file: IO[bytes],
                 on: Host = HOST) -> str | None:
    """Read a version's file into `file`; return why it cannot be read, None: it is read.

    Args:
        place: of the server that named the file, as returned by `endpoint`.
        at: which file it is.
        token: of the run, or None.
        file: an empty one.
        on: the host that this process runs on.

    Raises:
        OSError: `file` cannot be written.
    """
    context = on.network.context()
    line = Line(context, place, token, on)
    try:
        while True:
            offset = file.tell()
            try:
                part = line.ask(ReadVersion(at.name, offset))
            except TROUBLE as error:
                return str(error)
            if not isinstance(part, VersionPart) or not part.data or part.offset != offset:
                return f"the server at {line.shown} no longer has it"
            file.write(part.data)
            if file.tell() >= part.size:
                return None
    finally:
        line.close()
        context.destroy(0)
