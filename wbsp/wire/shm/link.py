"""The Unix socket between a server and a worker of its machine, which also carries shared memory.

The connection proves that both are on one machine. The worker listens on a socket in Linux's
abstract namespace, which a container may share or not, and sends its name to the server over the
network. The server connects to it, or cannot. Each asks the kernel for the other's user. From then
on this socket replaces the network between the two: it needs no other thread, which would take
time. When it closes, they share memory no longer.

A server also hands memory to a standby of its machine in this way, but sends no messages.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence

import numpy as np
import zmq

from wbsp.process.host import HOST, Host
from wbsp.tensors.buffers import is_held
from wbsp.wire.shm.segments import Segment

_NUMBER = struct.Struct("<Q")  # of a segment's message, without its file descriptor
_GONE = struct.Struct("<4sQ")  # notice of a released segment: the text below, and its number
_GIVEN_UP = b"\0\0\0\0"  # no encoded message begins with it
_FD = struct.Struct("i")
_ROOM = socket.CMSG_SPACE(_FD.size) if hasattr(socket, "CMSG_SPACE") else 0  # for one descriptor
# Arithmetic with enums is slow; not every system has these.
_CLOEXEC, _TRUNCATED = (int(getattr(socket, name, 0))
                        for name in ("MSG_CMSG_CLOEXEC", "MSG_CTRUNC"))
_PEER = struct.Struct("=iII")  # process, user, group
_MOST = 1 << 16  # bytes of a message
TRIES = 3  # failed attempts in a row to share memory, after which there is no other


def gone(number: int) -> bytes:
    """Return the notice that the segment of this number is released."""
    return _GONE.pack(_GIVEN_UP, number)


class Link:
    """One end of the socket, with the methods of a ZeroMQ socket, for messages of one frame.

    Attributes:
        segments: number -> mapping, float32 [size], of those handed over and not released.
    """

    def __init__(self, peer: socket.socket, takes: bool, on: Host = HOST):
        """`takes`: accept segments; anything else that a peer hands over is closed."""
        self._peer, self._takes, self._memory = peer, takes, on.memory
        self._buffer = memoryview(bytearray(_MOST + 1))  # a message that fills it was cut off
        self._too_long = False  # this end had a message that fits into no packet
        self.segments: dict[int, np.ndarray] = {}
        self._gone: set[int] = set()  # of these, those that the other end has released

    def fileno(self) -> int:
        """Return the file descriptor by which a poller names it."""
        return self._peer.fileno()

    def send_multipart(self, frames: Sequence[bytes | memoryview], flags: int = zmq.NOBLOCK,
                       copy: bool = True) -> None:
        """Send a message; do nothing if the peer is gone. Raises zmq.Again.

        A message that is too long, such as a push of a site with thousands of ranges, ends the
        connection: the next read raises OSError, and the message is repeated over TCP.
        """
        (data,) = frames
        if len(data) > _MOST:
            self._too_long = True
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
            return
        try:
            self._peer.send(data)
        except BlockingIOError:
            raise zmq.Again from None
        except OSError:
            pass  # the next read reports it

    def recv_multipart(self, flags: int = zmq.NOBLOCK, copy: bool = True) -> list[zmq.Frame]:
        """Return the next message, or take or unmap a segment that precedes it.

        Raises zmq.Again if there is no message yet, or a segment preceded it; ConnectionError at
        the end; OSError for a segment that cannot be mapped, or a message that is too long.
        """
        data = self._next()
        if data is None:
            raise zmq.Again
        return [zmq.Frame(data)]

    def _next(self) -> bytes | None:
        """Return the next message; None after a segment was taken or unmapped instead."""
        try:
            try:
                size, given, flags = self._receive()
            except ConnectionResetError:
                # The other end closed it with unread messages. The kernel reports that first, and
                # once: messages of the other end, perhaps its last, can still be read.
                size, given, flags = self._receive()
        except BlockingIOError:
            raise zmq.Again from None
        if self._too_long or size > _MOST:
            raise OSError(f"a message has more than {_MOST:,} bytes")
        if not size:
            raise ConnectionResetError("the other process has closed the connection")
        if flags & _TRUNCATED:
            raise OSError("a segment was lost: this process can open no more files")
        data = bytes(self._buffer[:size])
        word = size == _GONE.size and data.startswith(_GIVEN_UP)
        if not (given or (self._takes and word)):
            return data
        if not given:
            self._gone.add(_GONE.unpack(data)[1])
            self.let_go()
            return None
        (fd,) = _FD.unpack(given[0][2])
        try:
            if size != _NUMBER.size:
                raise OSError("a segment came without its number")
            self.segments[_NUMBER.unpack(data)[0]] = self._memory.mapped(fd)
        finally:
            self._memory.close(fd)
        return None

    def _receive(self) -> tuple[int, list[tuple[int, int, bytes]], int]:
        """Read the next packet into the buffer; return its size, ancillary data and flags."""
        if self._takes:
            return self._peer.recvmsg_into([self._buffer], _ROOM, _CLOEXEC)[:3]
        return self._peer.recv_into(self._buffer), [], 0

    def has(self, number: int) -> bool:
        """Return whether this segment was handed over; take all segments before a message."""
        with contextlib.suppress(OSError):
            self._take_until(number)
        return number in self.segments

    def catch_up(self) -> bool:
        """Take segments and notices from a link without messages; unmap released segments.

        Returns:
            Whether more may come; False: the other end has closed it.
        """
        more = True
        try:
            self._take_until(None)
        except OSError:
            more = False
        self.let_go()
        return more

    def _take_until(self, number: int | None) -> None:
        """Take segments up to this one, or all that are there. Raises OSError at the end."""
        with contextlib.suppress(zmq.Again):
            while number not in self.segments and self._next() is None:
                pass

    def let_go(self) -> None:
        """Unmap the segments that the other end has released and this process no longer reads."""
        for number in [*self._gone]:
            if number not in self.segments or not is_held(self.segments, number):
                self.segments.pop(number, None)
                self._gone.discard(number)

    def give(self, segment: Segment) -> None:
        """Hand a segment over, ahead of the next message. Raises OSError."""
        socket.send_fds(self._peer, [_NUMBER.pack(segment.number)], [segment.fd])

    def close(self) -> None:
        """Close it; the peer can still read earlier messages."""
        self._peer.close()


class Door:
    """A socket at which servers of this machine and user hand memory to this process.

    Attributes:
        name: of the socket; "": it takes no memory, or no longer.
    """

    def __init__(self, wanted: bool, on: Host = HOST):
        self._listener: socket.socket | None = None
        self.name, self._on = "", on
        if wanted and on.memory.available():
            with contextlib.suppress(OSError):
                self._listener = _unix_socket(on)
                name = f"wbsp-{on.scheduler.random(16).hex()}"
                self._listener.bind(f"\0{name}")
                self._listener.listen()
                self.name = name

    def accept(self) -> Link | None:
        """Return the next connection; None if it is of another user. Raises OSError without one."""
        if self._listener is None:
            raise ConnectionError("no process listens here")
        peer, _ = self._listener.accept()
        peer.setblocking(False)
        try:
            _check_user(peer)
        except OSError:
            peer.close()
            return None
        return Link(peer, True, self._on)

    def link(self, number: int) -> Link | None:
        """Return the connection that brought this segment, or None.

        Connections before it, of an earlier server or of another user, are closed.
        """
        with contextlib.suppress(OSError):  # no more connections
            while True:
                link = self.accept()
                if link is not None and link.has(number):
                    return link
                if link is not None:
                    link.close()
        return None

    def close(self) -> None:
        """Take no memory from now on."""
        if self._listener is not None:
            self._listener.close()
        self.name, self._listener = "", None


def connect(name: str, on: Host = HOST) -> Link:
    """Return the server's end of a connection to a worker's socket.

    Raises OSError unless there is a socket of that name and of this user.
    """
    peer = _unix_socket(on)
    try:
        peer.connect(f"\0{name}")
        _check_user(peer)
    except OSError:
        peer.close()
        raise
    return Link(peer, False, on)


def _check_user(peer: socket.socket) -> None:
    """Raise OSError unless the process at the other end belongs to this process's user."""
    _, user, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user != os.geteuid():
        raise PermissionError(f"the process at the other end runs as user {user}")


def _unix_socket(on: Host) -> socket.socket:
    one = on.network.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.setblocking(False)
    return one
