"""Simulate ZeroMQ and the sockets of processes, as far as wbsp uses them: see
`wbsp.process.host.Network`.

It behaves as libzmq does. A ROUTER learns of ended peers, and lets a peer that reconnects keep its
name. A DEALER queues some messages while it connects, for whichever process answers, and reconnects
by itself. Each direction holds some messages, then raises Again. Messages keep their order, take
their time, and are lost with their connection.
"""

from __future__ import annotations

import collections
import errno
import functools
import itertools
import math
import socket

import zmq

from simulated import memory
from simulated.world import Waited
from wbsp.timeouts import PONG, UNACKNOWLEDGED

ROOM = 16  # messages in one direction of a connection
_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two attempts to connect
_IN, _OUT, _ROUTER = int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.ROUTER)
_ACCEPTED, _CONNECTED, _RETRIED, _HANDSHAKE, _DISCONNECTED = (
    int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_CONNECTED), int(zmq.EVENT_CONNECT_RETRIED),
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED), int(zmq.EVENT_DISCONNECTED))
_NO_HANDSHAKE = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)

_AGAIN = zmq.Again()


class Frame:
    """`fd`: of the connection that it came over, at the end where it is read."""

    __slots__ = ("buffer", "bytes", "fd", "peer")

    def __init__(self, data, peer=None, fd=-1):
        self.bytes, self.buffer, self.peer, self.fd = data, memoryview(data), peer, fd

    def __len__(self):
        return len(self.bytes)

    def get(self, what):
        if what == "Peer-Address":
            return self.peer
        assert what == zmq.SRCFD
        return self.fd


class Pipe:
    """One direction of a connection."""

    def __init__(self, connection, to):
        self.connection, self.to = connection, to
        self.fd = to.process.host.network.descriptor(to)
        self.moving, self.free_at, self.inbox = 0, 0.0, collections.deque()

    @property
    def room(self):
        return self.moving + len(self.inbox) < ROOM

    def ends(self):
        """Close its end where messages are read."""
        self.to.process.host.network.release(self.fd)

    def send(self, frames, sender):
        """False: there is no room."""
        if not self.room:
            return False
        world = sender.world
        if world.doomed:
            world.step(sender)
        world.on_send(sender, frames)
        self.moving += 1
        data = [bytes(frame) for frame in frames]  # as they are now: libzmq sends them later
        low, high = world.latency
        arrives = max(self.free_at, world.now + low + (high - low) * world.rng.random()) + (
            sum(map(len, data)) / world.bandwidth)
        self.free_at = arrives
        connection = self.connection

        def arrive():
            self.moving -= 1
            if connection.open:
                if world.cut and not world.reachable(*connection.route(self)):
                    connection.stuck.append(deliver)
                else:
                    deliver()

        def deliver():
            if connection.open and not self.to.closed:
                for then, frame in zip(data, frames, strict=True):
                    assert then == bytes(frame), "what is on its way was written to"
                self.inbox.append([Frame(one, sender.machine, self.fd) for one in data])
                self.to.ready.append(self)
                self.to.notify()

        world.at(arrives, arrive)
        if (world.storms and world.rng.random() < world.storm
                and world.may_break(connection)):
            world.storms -= 1
            world.at(world.now + world.rng.random() * (arrives - world.now) * 2, connection.close)
        return True


class Connection:
    """A connection between a DEALER and a ROUTER, while it is open; `stuck`: what would arrive if
    the way were not cut. After the cut each end is notified sooner or later.
    """

    def __init__(self, dealer, router, endpoint):
        self.dealer, self.router, self.endpoint, self.open = dealer, router, endpoint, True
        self.deaf = [router, dealer]  # ends that do not know that it is over
        self.name = dealer.routing_id
        self.up, self.down, self.stuck = Pipe(self, router), Pipe(self, dealer), []

    def replaced(self):
        """Note that the peer's next connection takes its name; what is still read from this one has
        another name.
        """
        self.name = b"\0" + self.up.fd.to_bytes(4, "big")
        self.open = False
        self.dealer.process.world.after(0.0005, lambda: self.hears(self.router))

    def route(self, pipe):
        ends = self.dealer.process.machine, self.router.process.machine
        return ends if pipe is self.up else ends[::-1]

    @property
    def parted(self):
        """Return whether the machines of its ends cannot reach each other."""
        one, two = self.route(self.up)
        world = self.dealer.process.world
        return not (world.reachable(one, two) and world.reachable(two, one))

    def close(self, notice=0.0005, by=None):
        """Break it; both ends notice after a while, and messages in transit are lost.

        Args:
            by: the end that has closed it; the other one is not notified while they are parted.
        """
        if not self.open:
            return
        self.open = False
        world = self.dealer.process.world
        self.down.inbox.clear()
        if by is not None and self.parted:
            world.after(notice, lambda: self.hears(by))
            self._hears_late(self.router if by is self.dealer else self.dealer, UNACKNOWLEDGED)
            return
        world.after(notice, lambda: self.hears(self.router))
        world.after(notice * (0.5 + world.rng.random()), lambda: self.hears(self.dealer))

    def lapse(self):
        """Give the connection up in the dealer's kernel; the other end has not sent, or waits for
        pings.
        """
        if self.open:
            self.open = False
            self.down.inbox.clear()
            self.hears(self.dealer)
            self._hears_late(self.router, PONG - UNACKNOWLEDGED)

    def _hears_late(self, end, seconds):
        world = self.dealer.process.world
        until = world.now + seconds

        def look():
            if not self.parted or world.now >= until:
                self.hears(end)
            else:
                world.after(1.0, look)
        world.after(1.0, look)

    def hears(self, end):
        """Notify one of its ends that it is over."""
        if end not in self.deaf:
            return
        self.deaf.remove(end)
        if end is self.router:
            if end.peers.get(self.name) is self:
                del end.peers[self.name]
            self.up.ends()
            end.event(_DISCONNECTED, "", self.up.fd)
            self.up.inbox.clear()
        else:
            self.down.ends()
            if end.connection is self:
                end.connection = None
                end.event(_DISCONNECTED, self.endpoint, self.down.fd)
                end.retry()


class Monitor(Waited):
    def __init__(self, mask):
        super().__init__()
        self.mask, self.events = int(mask), collections.deque()

    def readable(self):
        return bool(self.events)

    def poll(self, timeout=0):
        return len(self.events)

    def close(self, linger=0):
        self.events.clear()


class Socket(Waited):
    # options without an effect here
    linger = maxmsgsize = ipv6 = tcp_maxrt = sndhwm = sndbuf = router_mandatory = 0
    router_handover = rcvhwm = heartbeat_ivl = heartbeat_timeout = heartbeat_ttl = 0
    reconnect_ivl = reconnect_ivl_max = curve_server = 0
    curve_publickey = curve_secretkey = curve_serverkey = routing_id = b""

    def __init__(self, process, kind):
        super().__init__()
        self.process, self.world, self.router = process, process.world, int(kind) == _ROUTER
        self.closed, self.ready, self.monitors = False, collections.deque(), []
        self.peers, self.port = {}, None  # of a ROUTER
        self.connection, self.endpoint, self.backoff = None, None, _PAUSE  # of a DEALER
        self.generation, self.kept = 0, []
        process.sockets.append(self)

    def readable(self):
        ready = self.ready
        while ready and not ready[0].inbox:
            ready.popleft()
        return bool(ready)

    def writable(self):
        if self.connection is None:
            return bool(self.endpoint) and len(self.kept) < ROOM // 2
        return self.connection.open and self.connection.up.room

    def event(self, kind, endpoint, value=-1):
        for monitor in self.monitors:
            if monitor.mask & kind:
                monitor.events.append({"event": kind, "value": value,
                                       "endpoint": endpoint.encode()})
                monitor.notify()

    def get_monitor_socket(self, mask):
        self.monitors.append(Monitor(mask))
        return self.monitors[-1]

    def disable_monitor(self):
        self.monitors.clear()

    def get_string(self, option):
        return f"tcp://{self.process.machine}:{self.port}"

    def bind(self, endpoint):
        port = int(endpoint.rpartition(":")[2])
        if (self.process.machine, port) in self.world.listeners:
            raise zmq.ZMQError(errno.EADDRINUSE)
        self.port = port
        self.world.listeners[self.process.machine, port] = self

    def connect(self, endpoint):
        self.endpoint, self.backoff = endpoint, _PAUSE
        self.generation += 1
        self.attempt(self.generation)

    def disconnect(self, endpoint):
        self.endpoint = None
        self.generation += 1
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close(by=self)

    def retry(self):
        if not self.closed and self.endpoint is not None:
            generation = self.generation  # as libzmq does: its jitter is of the first pause
            self.world.after(self.backoff + _PAUSE * self.world.rng.random(),
                             lambda: self.attempt(generation))
            self.backoff = min(2 * self.backoff, _LONGEST_PAUSE)

    def attempt(self, generation):
        world, here = self.world, self.process.machine
        if self.closed or generation != self.generation or not self.process.alive:
            return
        host, _, port = self.endpoint.removeprefix("tcp://").rpartition(":")

        def answer():
            if self.closed or generation != self.generation or self.connection is not None:
                return
            if not (world.reachable(here, host) and world.reachable(host, here)):
                self.retry()  # without a word: no packet is answered
                return
            listener = world.listeners.get((host, int(port)))
            if listener is None:
                self.event(_RETRIED, self.endpoint)
                self.retry()
                return
            if listener.process.asleep_until > world.now:  # the kernel accepts; no more than that
                self.event(_CONNECTED, self.endpoint)
                world.at(listener.process.asleep_until + 1e-4, answer)
                return
            if self.curve_serverkey != listener.curve_publickey:  # another token
                self.event(_CONNECTED, self.endpoint)
                self.event(_NO_HANDSHAKE, self.endpoint)
                listener.event(_NO_HANDSHAKE, "")
                self.retry()
                return
            connection = Connection(self, listener, self.endpoint)
            old = listener.peers.get(self.routing_id)
            if old is not None:
                old.replaced()
            listener.peers[self.routing_id] = self.connection = connection
            self.backoff = _PAUSE
            listener.event(_ACCEPTED, "", connection.up.fd)
            listener.event(_HANDSHAKE, "")
            self.event(_CONNECTED, self.endpoint, connection.down.fd)
            self.event(_HANDSHAKE, self.endpoint)
            self.notify()
            kept, self.kept = self.kept, []
            for frames in kept:
                connection.up.send(frames, self.process)
        low, high = world.latency
        world.after(low + (high - low) * world.rng.random(), answer)

    def send_multipart(self, frames, flags=0, copy=True):
        if not self.process.alive:
            return
        if self.router:
            connection = self.peers.get(bytes(frames[0]))
            if connection is None:
                raise zmq.ZMQError(errno.EHOSTUNREACH)
            # to a peer that is gone, which this side does not know yet, all can be sent
            if connection.open and not connection.down.send(frames[1:], self.process):
                raise _AGAIN.with_traceback(None)  # to make one takes its time
            return
        connection = self.connection
        if connection is None and len(self.kept) < ROOM // 2 and self.endpoint:
            self.kept.append([*frames])
        elif connection is None or not connection.open or not connection.up.send(
                frames, self.process):
            raise _AGAIN.with_traceback(None)  # to make one takes its time

    def send(self, data, flags=0):
        self.send_multipart([data], flags)

    def recv_multipart(self, flags=0, copy=True):
        if not self.readable():
            raise _AGAIN.with_traceback(None)  # to make one takes its time
        pipe = self.ready.popleft()
        frames = pipe.inbox.popleft()
        if self.router:
            pipe.connection.dealer.notify()  # it may wait for room
        return [Frame(pipe.connection.name, fd=pipe.fd), *frames] if self.router else frames

    def recv(self, flags=0):
        return self.recv_multipart(flags)[0].bytes

    def poll(self, timeout=0):
        return int(self.readable())

    def close(self, linger=0):
        if self.closed:
            return
        self.closed, world = True, self.world
        if world.listeners.get((self.process.machine, self.port)) is self:
            del world.listeners[self.process.machine, self.port]
        for connection in [*self.peers.values(), *filter(None, [self.connection])]:
            close = functools.partial(connection.close, by=self)
            if linger:
                world.after(min(linger / 1000, 0.2), close)
            elif self.process.alive and world.rng.random() < 0.9:  # the kernel has it already
                world.at(max(world.now, connection.up.free_at, connection.down.free_at) + 1e-6,
                         close)
            else:
                close()
        self.__class__ = _Closed

    def die(self):
        self.close(0)


class _Closed(Socket):
    """A closed socket: as with libzmq, it can only be closed again."""

    def _fail(self, *_, **__):
        raise zmq.ZMQError(errno.ENOTSOCK)

    send = send_multipart = recv = recv_multipart = poll = bind = connect = disconnect = _fail
    get_string = get_monitor_socket = disable_monitor = _fail


for _option in (name for name, value in vars(Socket).items() if isinstance(value, int | bytes)):
    setattr(_Closed, _option, property(_Closed._fail, _Closed._fail))


class Context:
    def __init__(self, process):
        self._process, self._sockets = process, []

    def socket(self, kind):
        self._sockets.append(Socket(self._process, kind))
        return self._sockets[-1]

    def destroy(self, linger=0):
        for one in self._sockets:
            one.close(0)


class Poller:
    def __init__(self, network):
        self._network, self._registered = network, {}
        self._stale = True

    def register(self, what, flags=_IN | _OUT):
        if flags:
            self._registered[what] = int(flags)
        else:
            self._registered.pop(what, None)
        self._stale = True

    def _sort(self):
        self._stale = False
        sources = [(key, self._network.ends[key] if isinstance(key, int) else key, flags)
                   for key, flags in self._registered.items()]
        self._sources = [one for _, one, _ in sources]
        self._incoming = [(one, key) for key, one, flags in sources if flags & _IN]
        self._outgoing = [(one, key) for key, one, flags in sources if flags & _OUT]

    def poll(self, timeout=None):
        process = self._network.process
        world = process.world
        if self._stale:
            self._sort()
        sources = self._sources
        deadline = math.inf if timeout is None else process.until(timeout / 1000)
        for one in sources:
            if one.__class__ is _Closed:  # libzmq waits for something else then, or fails
                raise zmq.ZMQError(errno.ENOTSOCK)
        look = world.now + 1e-6 + 5e-6 * world.rng.random()  # it takes its time
        looked = world.passes(look)
        if looked and ((found := self._ready()) or look >= deadline):
            return found
        task = world.current
        for one in sources:
            one.waiting[task] = None
        try:
            world.park(deadline if looked else look)
            while not (found := self._ready()) and world.now < deadline:
                world.park(deadline)
            return found
        finally:
            for one in sources:
                one.waiting.pop(task, None)

    def _ready(self):
        found = [(key, _IN) for one, key in self._incoming if one.readable()]
        if self._outgoing:
            found += [(key, _OUT) for one, key in self._outgoing if one.writable()]
        return found


class End(Waited):
    """One end of a pair of sockets that wake a thread."""

    def __init__(self, fd):
        super().__init__()
        self._fd, self._bytes, self.other = fd, 0, self

    def setblocking(self, flag):
        pass

    def fileno(self):
        return self._fd

    def readable(self):
        return self._bytes > 0

    def send(self, data):
        self.other._bytes += len(data)
        self.other.notify()

    def recv(self, most):
        self._bytes = 0
        return b"\0"

    def close(self):
        pass


class Attempt:
    """A TCP connection that is tried: refused, accepted, or without an answer."""

    def __init__(self, process):
        self._process, self._patience = process, 0.0

    def settimeout(self, seconds):
        self._patience = seconds

    def connect(self, where):
        world, here = self._process.world, self._process.machine
        answered = world.reachable(here, where[0]) and world.reachable(where[0], here)
        listens = tuple(where) in world.listeners
        self._process.sleep(sum(world.latency) if answered else self._patience)
        if not answered:
            raise TimeoutError
        if not listens:
            raise ConnectionRefusedError

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Line(Waited):
    """A connection's socket, as its process sees it: unread bytes are not counted."""

    def __init__(self, network, fd, owner):
        super().__init__()
        self._network, self._fd, self._owner = network, fd, owner
        self.closed, self.groups = False, []
        self._number = next(network.process.numbers)
        network.ends[self._number] = self

    def fileno(self):
        return self._number

    def readable(self):
        return False

    def setsockopt(self, *_):
        raise OSError(errno.ENOTSOCK, "not played")

    getsockopt = setsockopt

    def shutdown(self, how):
        """Close the connection; both ends notice."""
        for connection in [*self._owner.peers.values(), self._owner.connection]:
            if connection is not None and self._fd in (connection.up.fd, connection.down.fd):
                connection.close()

    def close(self):
        self.closed = True
        self._network.ends.pop(self._number, None)


class Network:
    def __init__(self, process):
        self.process, self.ends = process, {}
        self._open = {}  # descriptor of a connection -> the ZeroMQ socket that it belongs to

    def descriptor(self, socket):
        """The smallest that is free, as the system gives them: one that has ended comes again."""
        fd = next(fd for fd in itertools.count(10) if fd not in self._open)
        self._open[fd] = socket
        return fd

    def release(self, fd):
        self._open.pop(fd, None)

    def duplicate(self, fd):
        if fd not in self._open:
            raise OSError(errno.EBADF, "closed")
        return Line(self, fd, self._open[fd])

    def context(self):
        return Context(self.process)

    def poller(self):
        return Poller(self)

    def socket(self, family, kind):
        if family == socket.AF_UNIX:
            return memory.Socket(self)
        return Attempt(self.process)

    def epoll(self):
        return memory.Epoll(self)

    def pair(self):
        numbers = self.process.numbers
        one, two = End(next(numbers)), End(next(numbers))
        one.other, two.other = two, one
        self.ends |= {one.fileno(): one, two.fileno(): two}
        return one, two

    def event(self, monitor):
        return monitor.events.popleft()

    def resolve(self, host, port):
        return [(0, 0, (host, port))]

    def authenticator(self, context):
        return _Authenticator()


class _Authenticator:
    def start(self):
        pass

    stop = start

    def configure_curve_callback(self, **_):
        pass
