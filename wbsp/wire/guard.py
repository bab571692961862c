"""Limits on the memory and file descriptors that a server's unread connections take.

libzmq accepts connections until the process has no file descriptor left, and buffers a message of
many parts until all have come, however many they are. A limit of libzmq's own on the messages that
it holds would not do: where a connection breaks while it is held up by that limit, and a ZMTP PING
was sent behind, libzmq (4.3.5) aborts the process. So the server counts the bytes that libzmq has
taken and the server has not read, connection by connection, and closes those above a limit.
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

ROOM = 8  # messages that libzmq holds for a connection on their way out
_STRANGERS = 64  # connections without a worker, beyond two for each worker
# Bytes of memory that what is unread of all of them takes together, and of one worker beside two
# models: one may be sent again before it is read.
_OF_STRANGERS, _OF_MEMBER = 2 * MAX_MESSAGE, 16 * MAX_MESSAGE
_UNKNOWN = 16 * MAX_MESSAGE  # bytes of two models, while there is none
_FRAME = 80  # bytes of memory that a message's frame takes beside its own
_ENOUGH = 64  # frames that were read, to judge by them of those that were not
_OWN_FILES = 64  # file descriptors of a server without connections
_FILES = 4096  # file descriptors that a server requests, if its hard limit allows them
_BYTES_RECEIVED = 128  # offset in Linux's tcp_info
_SO_BUF_LOCK = 72  # of Linux 5.14 and later: whether the kernel may choose the buffers' sizes again
# Bytes of a connection's receive buffer: a stranger's is small, so that an endless message is slow
# enough to be noticed in time.
_SLOW, _FAST = 1 << 16, 1 << 20


@dataclass
class _Connection:
    """One accepted connection."""

    socket: socket.socket  # a duplicate, which stays valid when libzmq closes the connection
    delivered: bool = False  # the server has read a message from it since the last `look`
    drains: int = 0  # of the guard, at the last `look`
    anew: bool = False  # the next `look` takes all before it as read
    unread: int = 0  # bytes that libzmq has taken and the server has not read
    read: int = 0  # bytes that it has read
    frames: int = 0  # that were read since `weight` was found
    since: int = 0  # bytes of these
    weight: float = 1.0  # bytes of memory that one unread byte takes, to judge by what was read

    def look(self, most: int = 0) -> bool:
        """Count what is unread; return whether libzmq has more to take.

        most: so much may be unread, and up to it what libzmq has yet to take may be counted as well
        """
        queued = 0
        if hasattr(socket, "TCP_INFO"):  # only Linux counts
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
        """Bytes of memory that what is unread takes, about."""
        return int(self.weight * max(0, self.unread))

    def buffer(self, size: int, fixed: bool) -> None:
        """Give the receive buffer this size; unless it is `fixed`, the kernel may change it again.
        """
        with contextlib.suppress(OSError):  # an older kernel could not undo it
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            if not fixed:
                self.socket.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)


class ConnectionGuard:
    """Limits of a listener's connections, named by file descriptor; used by one thread.

    A connection is a stranger's until a worker's message comes through it.

    behind: the server has not read all that is there. As long as it has, each count begins anew
            with each message, so that pings do not add up.
    """

    def __init__(self, members: int, network: Network = HOST.network):
        """`members`: largest number of workers at a time."""
        self.expect(members)
        self._behind = False
        self._drains = 0  # how often the server was seen not to be behind
        self._of_member = _OF_MEMBER + _UNKNOWN
        # The last connection of this descriptor, which has ended: messages of it are still to come.
        self._gone: dict[int, _Connection] = {}
        self._left = 0  # bytes of memory that what is unread of those takes that are gone
        self._members: dict[int, _Connection] = {}
        self._strangers: dict[int, _Connection] = {}  # in the order in which they came
        self._arrivals = _Arrivals(network)
        self._due: set[int] = set()  # connections to be looked at, beside those of the arrivals
        self._read: set[int] = set()  # of members; a message was read since the last `check`
        _raise_file_limit()

    @property
    def behind(self) -> bool:
        return self._behind

    @behind.setter
    def behind(self, behind: bool) -> None:
        self._behind = behind
        if not behind:
            self._left = 0  # what came through connections that are gone has been read, too

    def expect(self, members: int) -> None:
        """There may be so many workers at a time from here on."""
        self._most_strangers = _STRANGERS + 2 * members

    def allow(self, size: int) -> None:
        """A worker sends vectors of at most `size` bytes from here on."""
        self._of_member = 2 * size + _OF_MEMBER

    @property
    def strangers(self) -> int:
        """Number of connections without a worker."""
        return len(self._strangers)

    def knows(self, fd: int) -> bool:
        """True for a connection that was accepted, and neither closed nor cut."""
        return fd in self._members or fd in self._strangers

    def accepted(self, fd: int) -> None:
        """Note a new connection."""
        self.closed(fd)
        with contextlib.suppress(OSError):  # closed already
            connection = self._strangers[fd] = _Connection(socket.socket(fileno=os.dup(fd)))
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
        """Note that a message of this connection was read, of so many frames, and of `size` bytes
        on the line; return the connection, None if it was cut."""
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
            self._left = 0  # the server reads nothing where no message comes over the network
        for fd in due:
            if member := self._members.get(fd):
                # Of a thousand members each sends a sign of life a second; to look at one takes as
                # long as to read that, and a message of which the end was read is not endless.
                more = (self._behind or fd not in read) and self._look(member, self._of_member)
            else:
                more = fd in self._strangers and self._look(self._strangers[fd])
            if more:
                self._due.add(fd)  # nothing may come any more, and yet more be taken
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
        """As `_Connection.look`."""
        connection.anew |= connection.delivered and connection.drains != self._drains
        connection.delivered, connection.drains = False, self._drains
        return connection.look(int(most / connection.weight))

    def _cut(self, connections: dict[int, _Connection], fd: int) -> None:
        """Cut a connection and forget it at once: when libzmq reports that it is closed, `fd` may
        name another one."""
        connection = connections.pop(fd)
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)  # whoever else holds it
        self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        self._left += connection.takes  # what is whole can still be read
        self._arrivals.forget(connection.socket)
        connection.socket.close()


class _Arrivals:
    """Of which connections something has come; of none where the system does not tell."""

    def __init__(self, network: Network):
        self._poll = network.epoll() if network.epoll is not None else None
        self._names: dict[int, int] = {}  # by the descriptor that is watched

    def expect(self, connection: socket.socket, name: int) -> None:
        """Watch a connection, which `since` calls `name`."""
        if self._poll is not None:
            # What came is reported also when libzmq has taken all of it, since the connection may
            # be written to: the kernel looks again at what it reports.
            self._poll.register(connection, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
            self._names[connection.fileno()] = name

    def forget(self, connection: socket.socket) -> None:
        """Watch it no more. To be called before it is closed: its duplicates are watched, too."""
        if self._poll is not None and self._names.pop(connection.fileno(), None) is not None:
            self._poll.unregister(connection)

    def since(self) -> set[int]:
        """Names of the connections of which something has come since the last call."""
        if self._poll is None:
            return set()
        return {self._names[fd] for fd, _ in self._poll.poll(0)}

    def close(self) -> None:
        """Watch nothing any more."""
        if self._poll is not None:
            self._poll.close()


def too_few_files(members: int) -> str | None:
    """In one line, that this process can open too few files for so many workers; None: it can open
    enough. Without one left, it stands still."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OWN_FILES + _STRANGERS + 6 * members
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    return (f"this process can open {soft} files, and {members} workers may need {needed}: raise "
            "the limit (ulimit -n) where connections are not accepted")


def no_file_left() -> bool:
    """Whether this process can open no more files: no connection is accepted meanwhile."""
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
