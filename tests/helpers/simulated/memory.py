"""Simulate memory that the processes of one machine share, and the Unix sockets between them.

See `wbsp.process.memory.Memory`, and `wbsp.wire.shm.link`, which uses these sockets. They do not
break while both processes live, because there is no network between the two.
"""

from __future__ import annotations

import array
import collections
import errno
import os
import socket
import struct
import weakref

import numpy as np

from simulated.world import Waited

ROOM = 8  # messages that a socket takes before it is read
_NUMBER = struct.Struct("<Q")


class Segment:
    """Attributes:
        lender: the process that made it.
        given_up: when the lender closed its descriptor, or died; None: it has not.
    """

    def __init__(self, lender, size, read_only):
        self.lender, self.read_only, self.given_up = lender, read_only, None
        self.data = bytearray(4 * size)


class Memory:
    """The memory of one process.

    Attributes:
        open: descriptor -> segment.
        mapped: number -> what is mapped, as long as it or a view of it is referenced: a weak
            reference, and the segment.
    """

    def __init__(self, process):
        self._process, self.open, self._mapped = process, {}, {}
        process.memory = self
        process.files.append(self)

    @property
    def mappings(self):
        return [(one(), segment) for one, segment in self._mapped.values()]

    def holds(self, segment):
        """Return whether this process, which lives, has it mapped."""
        return self._process.alive and any(one is segment for _, one in self._mapped.values())

    def available(self):
        return True

    def create(self, size, read_only):
        segment = Segment(self._process, size, read_only)
        return self.opened(segment), self._map(segment, True)

    def mapped(self, fd):
        return self._map(self.open[fd], not self.open[fd].read_only)

    def opened(self, segment):
        fd = next(self._process.numbers)
        self.open[fd] = segment
        return fd

    def close(self, fd):
        segment = self.open.pop(fd)
        if segment.lender is self._process:
            segment.given_up = self._process.world.now

    def _map(self, segment, writeable):
        # no array is its base, so that a view of the mapping holds the mapping
        data = segment.data if writeable else memoryview(segment.data).toreadonly()
        mapping, number = np.frombuffer(data, np.float32), next(self._process.numbers)
        self._mapped[number] = (
            weakref.ref(mapping, lambda _: self._mapped.pop(number, None)), segment)
        return mapping

    def die(self):
        for segment in self.open.values():
            if segment.lender is self._process and segment.given_up is None:
                segment.given_up = self._process.world.now


class Socket(Waited):
    """A Unix socket of whole messages.

    Attributes:
        lends: it is a server's, which connects and hands memory over.
        handed: number -> segment, of both ends.
    """

    connection = None  # over the network

    def __init__(self, network):
        super().__init__()
        self.process, self._network = network.process, network
        self.world, self._fd = self.process.world, next(self.process.numbers)
        network.ends[self._fd] = self
        self.closed = self.lends = self._ended = False
        self.other, self.groups, self.handed = None, [], {}
        self._name, self._pending = None, collections.deque()  # of one that listens
        self._inbox, self._moving, self._free_at = collections.deque(), 0, 0.0
        self.process.files.append(self)

    def setblocking(self, flag):
        pass

    def fileno(self):
        return self._fd

    def notify(self):
        super().notify()
        for group in self.groups:
            group.notify()

    def bind(self, name):
        self._name = name
        self.world.names[name] = self

    def listen(self):
        pass

    def connect(self, name):
        listener = self.world.names.get(name)
        if listener is None or not self.world.together(
                self.process.machine, listener.process.machine):
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        end = Socket(listener._network)
        self.lends = True
        self.other, end.other, end.handed = end, self, self.handed
        listener._pending.append(end)

    def accept(self):
        if not self._pending:
            raise BlockingIOError
        self.world.on_share(self.process)
        return self._pending.popleft(), None

    def getsockopt(self, *_):
        return struct.pack("=iII", 1, os.geteuid(), 0)

    def send(self, data):
        self.sendmsg([data])

    def sendmsg(self, buffers, ancillary=()):
        other, world = self.other, self.world
        if self._ended or other.closed:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        if len(other._inbox) + other._moving >= ROOM:
            raise BlockingIOError
        data = b"".join(buffers)
        segment = None
        if ancillary:
            segment = self.process.memory.open[array.array("i", ancillary[0][2])[0]]
            number = _NUMBER.unpack(data)[0]
            self.handed[number] = segment
            world.on_hand(number, segment)
        check = world.on_local(self, data) if segment is None else None
        other._moving += 1
        other._arrives(lambda: (other._inbox.append((data, segment, check)), True))

    def _arrives(self, deliver):
        world = self.world
        self._free_at = max(self._free_at, world.now) + 1e-5 * (1 + world.rng.random())

        def arrive():
            self._moving -= 1
            if not self.closed:
                deliver()
                self.notify()
        world.at(self._free_at, arrive)

    def recvmsg_into(self, buffers, room, flags):
        data, segment = self._receive()
        given = [] if segment is None else [
            (socket.SOL_SOCKET, socket.SCM_RIGHTS,
             array.array("i", [self.process.memory.opened(segment)]).tobytes())]
        buffers[0][:len(data)] = data
        return len(data), given, 0, None

    def recv_into(self, buffer):
        data, _ = self._receive()
        buffer[:len(data)] = data
        return len(data)

    def _receive(self):
        if not self._inbox:
            if self._ended:
                return b"", None
            raise BlockingIOError
        data, segment, check = self._inbox.popleft()
        if check is not None:
            check()
        if len(self._inbox) == ROOM - 1:
            self.other.notify()  # it may wait for room
        return data, segment

    def readable(self):
        return bool(self._inbox or self._ended or self._pending)

    def writable(self):
        other = self.other
        return self._ended or other.closed or len(other._inbox) + other._moving < ROOM

    def close(self):
        if self.closed:
            return
        self.closed = True
        self._network.ends.pop(self._fd, None)
        if self in self.process.files:
            self.process.files.remove(self)
        if self.world.names.get(self._name) is self:
            del self.world.names[self._name]
        for end in self._pending:
            end.close()
        if self.other is not None and not self.other.closed:
            other = self.other

            def end():
                other._ended = True
            other._moving += 1
            other._arrives(end)

    die = close


class Epoll(Waited):
    """An epoll: which of the registered sockets can be read."""

    def __init__(self, network):
        super().__init__()
        self._network, self._fd, self._registered = network, next(network.process.numbers), {}
        network.ends[self._fd] = self

    def fileno(self):
        return self._fd

    def register(self, what, flags):
        end = self._network.ends[what.fileno()]
        self._registered[what.fileno()] = end
        end.groups.append(self)

    def unregister(self, what):
        self._registered.pop(what.fileno(), None)

    def readable(self):
        return bool(self.poll())

    def poll(self, timeout=0):
        for fd in [fd for fd, end in self._registered.items() if end.closed]:
            del self._registered[fd]
        return [(fd, 1) for fd, end in self._registered.items() if end.readable()]

    def close(self):
        self._network.ends.pop(self._fd, None)
