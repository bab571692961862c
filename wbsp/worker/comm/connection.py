"""A worker's connection to one server after another: messages, and vectors by its data plane."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import zmq

from wbsp import timeouts
from wbsp.access import Access
from wbsp.process.forks import close_connections
from wbsp.process.host import HOST, Host
from wbsp.tensors.buffers import keep_freed
from wbsp.wire.addresses import split_addresses
from wbsp.wire.messages import codec as m
from wbsp.wire.queues import QueuedSocket
from wbsp.wire.rate import RateLimiter
from wbsp.wire.shm.link import Door
from wbsp.wire.sockets import contact, worker_socket
from wbsp.worker.comm.data_plane import DataPlane, MemoryPlane, Received, SharingEnded
from wbsp.worker.comm.monitor import Monitor, numbers
from wbsp.worker.comm.shards import ShardPlane

_IN = int(zmq.POLLIN)  # arithmetic with enums takes its time


class Ready(NamedTuple):
    """Findings of a `poll`."""

    message: bool  # `receive` can return a message
    event: bool  # `read_event` can read an event of the connection
    wake: bool  # the file descriptor `wakes` can be read
    shards: Sequence[tuple[int, bool]] = ()  # whose connections are new (True), or broken


class Connection:
    """Messages and vectors to and from a server; used by the communication thread.

    Attributes:
        monitor: health of the connection.
        plane: transfer of vectors, and of messages with them.
    """

    def __init__(self, access: Access, say: Callable[[str], None], on: Host = HOST):
        """Connect. Raises ValueError if the address or the bandwidth is bad."""
        hosts = [host for host, _ in split_addresses(access.address)]
        keep_freed()
        self.on = on
        self._token, self._say = access.token, say
        self._context = on.network.context()  # which `close` destroys with all its sockets
        self._socket = worker_socket(self._context, hosts, on.scheduler.random(16), access.token)
        self.monitor = Monitor(self._socket, access, say, on)
        self._limiters = RateLimiter(access.bandwidth), RateLimiter(access.bandwidth)
        self._server = QueuedSocket(self._socket, *self._limiters)
        self._door = Door(access.share and access.bandwidth is None, on)
        self._failed = False  # memory did not arrive: share none until the next connection
        self._said = False  # that was printed
        self._let_go_at = math.inf  # time at which the server ended the sharing
        self._arriving: list[QueuedSocket] = []  # sockets that may have a message
        self._pollers = [on.network.poller()]  # that wait for the connection; the first is its own
        self._monitors: list[zmq.Socket[bytes]] = []
        self._lines: list[QueuedSocket] = []
        self._use(self._over_socket())

    def _over_socket(self) -> DataPlane:
        return DataPlane(self._server, self.monitor.liveness, self.on)

    def _use(self, plane: DataPlane) -> None:
        self._leave_pollers()
        self.plane = plane
        self._lines = [self._server, *plane.lines]
        self._arriving = [line for line in self._arriving if line in self._lines]
        self._monitors = [self.monitor.socket, *plane.monitors]
        for poller in self._pollers:
            self._watch(poller)

    def _leave_pollers(self) -> None:
        for poller in self._pollers:
            for source in (*self._monitors, *(line.polled for line in self._lines)):
                poller.register(source, 0)

    def _watch(self, poller: zmq.Poller) -> None:
        for monitor in self._monitors:
            poller.register(monitor, _IN)

    def forked(self) -> None:
        """Close everything, in a process that was forked from the one that owns it."""
        close_connections(map(numbers, [self.monitor.route.address, *self.plane.where]))
        self.detach()
        self._door.close()

    # Shared memory.

    @property
    def door(self) -> str:
        """Name of the socket for servers of this machine to share memory; "": none (now)."""
        return "" if self._failed else self._door.name

    def arrange(self, answer: m.Joined | m.Resend | m.Reattached) -> None:
        """Use the server's shards and shared memory from its answer on.

        See `let_go` if the memory is not available.
        """
        self._let_go_at = math.inf
        if answer.group != self.plane.group or (
                answer.group is None and answer.memory != self.plane.memory):
            self.plane.close()
            self._use(self._over_socket())
            if answer.group is not None:
                self._use(ShardPlane(
                    self._server, self.monitor.liveness, self._context, answer.group, self.host,
                    self._token, self._limiters, self.on))
            elif answer.memory:
                if link := self._door.link(answer.memory):
                    self._use(MemoryPlane(link, answer.memory, self.monitor.liveness, self.on))
                else:
                    self._sharing_ended(
                        SharingEnded(f"segment {answer.memory} did not arrive", True))

    def detach(self) -> None:
        """Share no memory until a server answers again."""
        self._let_go_at = math.inf
        if self.plane.memory:
            self.plane.close()
            self._use(self._over_socket())

    def _sharing_ended(self, error: SharingEnded) -> None:
        self._let_go_at = self.on.clock.monotonic()
        self._failed = self._failed or error.failed
        if self._failed and not self._said:
            self._said = True
            self._say(f"shared memory is not available ({error}): continuing over TCP; trying "
                      "again at the next connection to a server")

    def let_go(self, now: float) -> bool:
        """Return whether to notify a connected server that the sharing has ended.

        The connection to a server that was lost also ends soon, and then the message is needless.
        """
        return (now - self._let_go_at > timeouts.SHARING_ENDED and self.made
                and not self.broken)

    # What the client must know: see `wire.client.Line`.

    @property
    def made(self) -> bool:
        return self.monitor.made

    @property
    def broken(self) -> bool:
        return self.monitor.broken

    @property
    def host(self) -> str:
        return self.monitor.route.host

    @property
    def returned(self) -> int:
        return self.plane.returned

    @property
    def contact(self) -> bytes:
        return contact(self._token, self.on)

    @property
    def sent(self) -> int:
        """Number of messages sent, without the urgent ones."""
        return sum(line.sent for line in self._lines)

    @property
    def all_sent(self) -> bool:
        """True if no message waits to be sent."""
        return not any(self._lines)

    def transferring(self, now: float) -> bool:
        """Return whether the rate limit delays a message in either direction."""
        return any(line.transferring(now) for line in self._lines)

    # Messages.

    def wake(self, poller: zmq.Poller) -> None:
        """Have a poller of another loop wait for this connection, too; see `delay`."""
        self._pollers[1:] = [poller]
        self._watch(poller)

    def delay(self) -> float:
        """Prepare the pollers for their next wait; return its seconds at most."""
        now = self.on.clock.monotonic()
        return min(line.register(poller, now) for line in self._lines for poller in self._pollers)

    def poll(self, seconds: float, wakes: int | None = None) -> Ready:
        """Wait, for at most `seconds`, for an event, or until `wakes` can be read."""
        wait, own = min(seconds, self.delay()), self._pollers[0]
        if wakes is not None:
            own.register(wakes, _IN)
        found = dict(own.poll(int(1000 * wait)))
        shards = self.plane.changes(found)
        self._arriving = [line for line in self._lines if line.readable(found)]
        return Ready(bool(self._arriving), self.monitor.socket in found, wakes in found, shards)

    def receive(self) -> Received | None:
        """Return the next message with its chunk, if any, or None.

        Raises:
            WireError: the message is invalid.
        """
        try:
            return self.plane.receive(self._arriving)
        except SharingEnded as error:
            self.detach()
            self._sharing_ended(error)
            return self.plane.receive(self._arriving)

    def flush(self) -> None:
        """Send all queued messages that the rate limit and the socket permit."""
        now = self.on.clock.monotonic()
        for line in self._lines:
            line.flush(now)

    # The connection.

    def read_event(self) -> bool:
        """Read all events of the connection; return whether it is a new one.

        Then all messages in flight and all queued ones are lost. No message of a new connection is
        read before this has returned True.
        """
        renewed = False
        while self.monitor.socket.poll(0):
            renewed = self.monitor.event(self.on.clock.monotonic()) or renewed
        if renewed:
            self._server.clear()
            self._failed = False  # it may succeed now
        return renewed

    def close(self) -> None:
        """Close the socket, and all others of the context; unsent messages are lost."""
        self._leave_pollers()
        self.plane.close()
        self._door.close()
        self._socket.disable_monitor()
        self._context.destroy(0)
