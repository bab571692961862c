"""Limits on the memory and file descriptors that a server's unread connections take.

libzmq accepts connections until the process has no file descriptor left, and buffers all parts of
a message until the last has arrived, however many there are. libzmq's own limit on the messages
that it holds is no solution: if a connection breaks while that limit blocks it, and a ZMTP PING was
sent behind, libzmq (4.3.5) aborts the process. So the server counts, for each connection, the bytes
that libzmq has taken and the server has not read, and closes the connections above a limit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import socket
import struct
import termios
from collections import Counter
from dataclasses import dataclass

from wbsp.process.host import HOST, Network
from wbsp.wire.messages.codec import MAX_MESSAGE

ROOM = 8  # outgoing messages that libzmq holds for a connection
_STRANGERS = 64  # connections without a worker, beyond two for each worker
# Bytes of memory that the unread data of all strangers takes together, and that of one worker
# in addition to two models: one model may be sent again before it is read.
_OF_STRANGERS, _OF_MEMBER = 2 * MAX_MESSAGE, 16 * MAX_MESSAGE
_UNKNOWN = 16 * MAX_MESSAGE  # bytes of two models, until the model is known
_FRAME = 80  # bytes of memory that a message's frame takes in addition to its data
_ENOUGH = 64  # frames that were read, from which to estimate the unread ones
_OWN_FILES = 64  # file descriptors of a server without connections
_FILES = 4096  # file descriptors that a server requests, if its hard limit allows them
_BYTES_RECEIVED = 128  # offset in Linux's tcp_info
_SO_BUF_LOCK = 72  # Linux 5.14 and later: whether the kernel may change the buffers' sizes again
# Bytes of a connection's receive buffer: a stranger's is small, so that an endless message is slow
# enough to be noticed in time.
_SLOW, _FAST = 1 << 16, 1 << 20


@dataclass
class _Connection:
    """One accepted connection."""

    socket: socket.socket  # a duplicate, which stays valid when libzmq closes the connection
    delivered: bool = False  # the server has read a message from it since the last `look`
    drains: int = 0  # of the guard, at the last `look`
    anew: bool = False  # the next `look` counts everything before it as read
    unread: int = 0  # bytes that libzmq has taken and the server has not read
    read: int = 0  # bytes that the server has read
    frames: int = 0  # read since `weight` was computed
    since: int = 0  # bytes of these
    weight: float = 1.0  # bytes of memory that one unread byte takes, estimated from those read

    def look(self, most: int = 0) -> bool:
        """Count the unread bytes; return whether libzmq has more to take.

        Args:
            most: limit of the unread bytes; up to it, bytes that libzmq has not taken count, too.
        """
        queued = 0
        if hasattr(socket, "TCP_INFO"):  # only Linux counts the bytes
            with contextlib.suppress(OSError, struct.error):
                info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                (received,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED)
                if received - self.read > most:
                    (queued,) = struct.unpack("i", fcntl.ioctl(self.socket, termios.FIONREAD,
                                                               bytes(4)))
                self.unread = received - queued - self.read
        if self.frames >= _ENOUGH:
            self.weight = 1 + _FRAME * self.frames / max(self.since, 1)
            self.frames = self.since = 0
        if self.anew:
            self.anew, self.read, self.unread = False, self.read + self.unread, 0
        return queued > 0

    @property
    def takes(self) -> int:
        """Bytes of memory that the unread data takes, about."""
        return int(self.weight * max(0, self.unread))

    def buffer(self, size: int, fixed: bool) -> None:
        """Set the size of the receive buffer; unless `fixed`, the kernel may change it again.
        """
        with contextlib.suppress(OSError):  # an older kernel could not undo it
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            if not fixed:
                self.socket.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)


class ConnectionGuard:
    """Limits of a listener's connections, named by file descriptor; used by one thread.

    A connection is a stranger's until a worker's message arrives through it.

    The server is *behind* if it has not read everything that has arrived. While it has, each
    message resets its connection's count, so that pings do not add up.
    """

    def __init__(self, members: int, network: Network = HOST.network):
        """`members`: largest number of simultaneous workers."""
        self.expect(members)
        self._behind = False
        self._drains = 0  # how often the server was seen not to be behind
        self._of_member = _OF_MEMBER + _UNKNOWN
        # The last connection of a descriptor, which has ended, but has messages still to be read.
        self._gone: dict[int, _Connection] = {}
        self._left = 0  # bytes of memory that the unread data of ended connections takes
        self._members: dict[int, _Connection] = {}
        self._strangers: dict[int, _Connection] = {}  # in order of arrival
        self._network = network
        self._arrivals = _Arrivals(network)
        self._due: set[int] = set()  # further connections to check, without new data
        self._read: set[int] = set()  # of members; a message was read since the last `check`
        _raise_file_limit()

    def reads(self, behind: bool) -> None:
        """Note whether the server is behind."""
        self._behind = behind
        if not behind:
            self._left = 0  # the data of ended connections has been read, too

    def expect(self, members: int) -> None:
        """Allow this number of simultaneous workers from now on."""
        self._most_strangers = _STRANGERS + 2 * members

    def allow(self, size: int) -> None:
        """Expect vectors of at most `size` bytes from workers from now on."""
        self._of_member = 2 * size + _OF_MEMBER

    @property
    def strangers(self) -> int:
        """Number of connections without a worker."""
        return len(self._strangers)

    def knows(self, fd: int) -> bool:
        """Return whether this connection was accepted, and neither closed nor cut."""
        return fd in self._members or fd in self._strangers

    def accepted(self, fd: int) -> None:
        """Note a new connection."""
        self.closed(fd)
        with contextlib.suppress(OSError):  # closed already
            connection = self._strangers[fd] = _Connection(self._network.duplicate(fd))
            connection.buffer(_SLOW, fixed=True)
            self._arrivals.expect(connection.socket, fd)

    def closed(self, fd: int) -> None:
        """Forget a connection."""
        for connections in (self._members, self._strangers):
            if connection := connections.pop(fd, None):
                self._gone[fd] = connection
                connection.look()
                self._forget(connection)

    def close(self) -> None:
        """Forget all connections."""
        for fd in [*self._members, *self._strangers]:
            self.closed(fd)
        self._arrivals.close()

    def delivered(self, fd: int, from_member: bool, size: int = 0, frames: int = 0) -> object:
        """Note that a message of `frames` frames and `size` bytes on the line was read.

        Returns the connection; None if it was cut.
        """
        if from_member and fd in self._strangers:
            self._members[fd] = self._strangers.pop(fd)
            self._members[fd].buffer(_FAST, fixed=False)
        if connection := self._members.get(fd) or self._strangers.get(fd):
            connection.delivered = True
            connection.read += size
            connection.since += size
            connection.frames += frames
            (self._read if fd in self._members else self._due).add(fd)
        else:
            self._left = max(0, self._left - size - frames * _FRAME)
        return connection or self._gone.get(fd)

    def check(self) -> Counter[str]:
        """Cut the connections above a limit; return their number, by reason."""
        cut: Counter[str] = Counter()
        while len(self._strangers) > self._most_strangers:
            self._cut(self._strangers, next(iter(self._strangers)))
            cut["one connection too many without a worker"] += 1
        due, self._due = self._due | self._arrivals.since(), set()
        read, self._read = self._read, set()
        if not self._behind:
            self._drains += 1
            self._left = 0  # nothing arrives over the network, so nothing is left to read
        for fd in due:
            if member := self._members.get(fd):
                # Each of a thousand members sends a heartbeat every second, and a check costs as
                # much as reading one. A message whose end was read is not endless.
                more = (self._behind or fd not in read) and self._look(member, self._of_member)
            else:
                more = fd in self._strangers and self._look(self._strangers[fd])
            if more:
                self._due.add(fd)  # libzmq may take more, even if nothing else arrives
        takes = {fd: connection.takes for fd, connection in self._strangers.items()
                 if connection.unread > 0}
        while takes and sum(takes.values()) + self._left > _OF_STRANGERS:
            worst = max(takes, key=takes.__getitem__)
            del takes[worst]
            self._cut(self._strangers, worst)
            cut["an endless message"] += 1
        for fd in due & self._members.keys():
            if self._members[fd].takes > self._of_member:
                self._cut(self._members, fd)
                cut["an endless message of a worker"] += 1
        return cut

    def _look(self, connection: _Connection, most: int = 0) -> bool:
        """See `_Connection.look`."""
        connection.anew |= connection.delivered and connection.drains != self._drains
        connection.delivered, connection.drains = False, self._drains
        return connection.look(int(most / connection.weight))

    def _cut(self, connections: dict[int, _Connection], fd: int) -> None:
        """Cut a connection and forget it at once: once libzmq reports it closed, `fd` may name
        another one."""
        connection = connections.pop(fd)
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)  # also for holders of duplicates
        self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        self._left += connection.takes  # complete messages can still be read
        self._arrivals.forget(connection.socket)
        connection.socket.close()


class _Arrivals:
    """Finds the connections with new data; none if the system has no epoll."""

    def __init__(self, network: Network):
        self._poll = network.epoll() if network.epoll is not None else None
        self._names: dict[int, int] = {}  # by the watched descriptor

    def expect(self, connection: socket.socket, name: int) -> None:
        """Watch a connection, which `since` calls `name`."""
        if self._poll is not None:
            # The connection is writable, so the kernel looks again at each of its events. So data
            # is reported even if libzmq has taken all of it.
            self._poll.register(connection, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
            self._names[connection.fileno()] = name

    def forget(self, connection: socket.socket) -> None:
        """Stop watching it. Call this before closing it: its duplicates are watched, too."""
        if self._poll is not None and self._names.pop(connection.fileno(), None) is not None:
            self._poll.unregister(connection)

    def since(self) -> set[int]:
        """Return the names of the connections with new data since the last call."""
        if self._poll is None:
            return set()
        return {self._names[fd] for fd, _ in self._poll.poll(0)}

    def close(self) -> None:
        """Stop watching."""
        if self._poll is not None:
            self._poll.close()


def too_few_files(members: int) -> str | None:
    """Return a line if this process may open too few files for that many workers, else None.

    Without a file descriptor left, the server stands still.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OWN_FILES + _STRANGERS + 6 * members
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    return (f"this process can open {soft} files, but {members} workers may need {needed}: if "
            "connections are refused, raise the limit (ulimit -n)")


def no_file_left() -> bool:
    """Return whether this process can open no more files, and so accepts no connection."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _raise_file_limit() -> None:
    """Raise the process's soft limit of descriptors, on many systems 1024, to `_FILES`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
