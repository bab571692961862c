"""Limits on what a server's connections hold of it before it has read a message of theirs.

libzmq accepts connections until the process has no file descriptor left, and takes in a message of
many parts until it is whole, however many they are. So the server keeps count, connection by
connection, and cuts those that ask too much.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import struct
import termios
from collections import Counter
from dataclasses import dataclass

from wbsp.wire.messages import MAX_MESSAGE

ROOM = 8  # messages that libzmq holds for a connection, each way
_STRANGERS = 64  # connections without a member, beyond two for each member that there can be
_OF_STRANGERS = 2 * MAX_MESSAGE  # bytes that all of them together may have unread
_OF_MEMBER = 2 * ROOM * MAX_MESSAGE  # the same for a member; one that sends its model has half
_FILES = 4096  # descriptors that a server asks for, where it may
_BYTES_RECEIVED = 128  # offset in Linux's tcp_info
_SO_BUF_LOCK = 72  # of Linux 5.14 and later: whether the kernel may choose the buffers' sizes again
# Of a stranger's receive buffer: it slows down who sends without end to what is noticed in time.
_SLOW, _FAST = 1 << 16, 1 << 20


@dataclass
class _Connection:
    """One accepted connection."""

    socket: socket.socket  # a duplicate: it stays this connection's, whatever libzmq closes
    delivered: bool = False  # the server has read a message of it since the last look
    taken: int = 0  # bytes that libzmq had taken from it then

    def unread(self) -> int:
        """Bytes that libzmq has taken since a message came out; framing and pings never add up."""
        taken = self._taken()
        if self.delivered:
            self.delivered, self.taken = False, taken
        return taken - self.taken

    def _taken(self) -> int:
        if not hasattr(socket, "TCP_INFO"):
            return 0  # only Linux tells
        with contextlib.suppress(OSError, struct.error):
            info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            (received,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED)
            (queued,) = struct.unpack("i", fcntl.ioctl(self.socket, termios.FIONREAD, bytes(4)))
            return received - queued
        return self.taken

    def slow_down(self) -> None:
        with contextlib.suppress(OSError):  # an older kernel could not take it back
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW)

    def speed_up(self) -> None:
        """Leave the buffer's size to the kernel again."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _FAST)
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class ConnectionGuard:
    """Knows a listener's connections by their file descriptors; used by one thread."""

    def __init__(self, members: int):
        """`members`: how many connections of members there can be at a time."""
        self._most_strangers = _STRANGERS + 2 * members
        self._members: dict[int, _Connection] = {}
        self._strangers: dict[int, _Connection] = {}  # in the order in which they came
        _raise_file_limit()

    @property
    def strangers(self) -> int:
        """Connections that no member speaks through, yet."""
        return len(self._strangers)

    def knows(self, fd: int) -> bool:
        """True for a connection that was accepted and is not closed or cut."""
        return fd in self._members or fd in self._strangers

    def accepted(self, fd: int) -> None:
        self.closed(fd)
        with contextlib.suppress(OSError):  # closed already
            self._strangers[fd] = _Connection(socket.socket(fileno=os.dup(fd)))
            self._strangers[fd].slow_down()

    def closed(self, fd: int) -> None:
        for connections in (self._members, self._strangers):
            if connection := connections.pop(fd, None):
                connection.socket.close()

    def close(self) -> None:
        for fd in [*self._members, *self._strangers]:
            self.closed(fd)

    def delivered(self, fd: int, from_member: bool) -> None:
        """A message that came through this connection was read."""
        if from_member and fd in self._strangers:
            self._members[fd] = self._strangers.pop(fd)
            self._members[fd].speed_up()
        if connection := self._members.get(fd) or self._strangers.get(fd):
            connection.delivered = True

    def check(self) -> Counter[str]:
        """Cut the connections that ask too much; return how many there were, by reason."""
        cut: Counter[str] = Counter()
        while len(self._strangers) > self._most_strangers:
            self._cut(self._strangers, next(iter(self._strangers)))
            cut["one connection too many without a worker"] += 1
        unread = {fd: connection.unread() for fd, connection in self._strangers.items()}
        while sum(unread.values()) > _OF_STRANGERS:
            worst = max(unread, key=unread.get)
            del unread[worst]
            self._cut(self._strangers, worst)
            cut["an endless message"] += 1
        for fd in [fd for fd, c in self._members.items() if c.unread() > _OF_MEMBER]:
            self._cut(self._members, fd)
            cut["an endless message of a worker"] += 1
        return cut

    def _cut(self, connections: dict[int, _Connection], fd: int) -> None:
        """Cut it now; libzmq says later that it is closed, when `fd` may be another one's."""
        connection = connections.pop(fd)
        connection.cut()
        connection.socket.close()


def _raise_file_limit() -> None:
    """Many systems give a process 1024 descriptors, and let it ask for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
