"""What drives a member's client and its connection, and the thread in which a worker's are driven.

A loop drives them between two waits: that of a worker's communication thread, or that of a site's
server. The thread sends the heartbeats, so that a worker in a long step is never mistaken for a
lost one. It passes a member's messages to a `Listener`, and is independent of models and rules.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from wbsp import timeouts
from wbsp.core.agent import Expect
from wbsp.process.host import HOST, Host
from wbsp.wire import client as c
from wbsp.wire.errors import TransportError
from wbsp.wire.liveness import Nap
from wbsp.wire.messages import codec as m
from wbsp.worker.comm.connection import Connection, Ready

_SETTLE = 0.005  # seconds of silence after which there is time to add to the resend buffer
Next = m.Fetch | Expect | None  # the request that follows a handled message


class Owner(Protocol):
    """The member whose line is driven."""

    def take(self, command: c.Command) -> None:
        """Handle a command for the member."""

    def follow(self) -> None:
        """Send what follows from the commands just taken."""


class Driver:
    """Drives a client and its connection; used by one thread."""

    def __init__(self, client: c.Client, connection: Connection, owner: Owner):
        self.client, self.connection, self._owner = client, connection, owner
        self._clock = connection.on.clock
        self._nap = Nap(self._clock.monotonic())
        self._closes_by: float | None = None

    def close(self, deadline: float) -> None:
        """Send the queued messages, until `deadline` (monotonic seconds) at most; see `over`."""
        self._closes_by = deadline
        self.client.close()

    def over(self, now: float) -> bool:
        """Return whether the connection may be closed now."""
        return self._closes_by is not None and (
            now > self._closes_by or not self.connection.made or self.connection.all_sent)

    def send(self, request: c.Request) -> None:
        """As `Client.send`; an update is waited for, and copied to the host."""
        if isinstance(request, c.SendUpdate):
            cpu, memory = request.usage()
            request = request._replace(push=request.push._replace(cpu=cpu, memory=memory),
                                       update=np.asarray(request.update))
        self.carry_out(self.client.send(request, self._clock.monotonic()))

    def turn(self, ready: Ready) -> None:
        """Send and handle what is due, after a poll of the connection.

        Raises:
            TransportError: the member cannot continue.
        """
        client, connection, clock = self.client, self.connection, self._clock
        for shard, connected in ready.shards:
            self.carry_out(client.shard_changed(shard, connected, clock.monotonic()))
        if self._nap.over(now := clock.monotonic()):
            connection.monitor.woke(now, self._nap.seconds)
            client.woke(self._nap.seconds)
        if ready.event and connection.read_event():
            self.carry_out(client.connected(clock.monotonic()))
        if ready.message:
            self._receive()
        else:
            client.session.kept.settle()  # while the server or this worker is busy
        connection.flush()
        now = clock.monotonic()
        connection.monitor.check(now)
        if connection.let_go(now):
            self.carry_out(client.connected(now))
        if commands := client.due(now):
            self.carry_out(commands)

    def carry_out(self, commands: Iterable[c.Command]) -> None:
        """Carry out the client's commands, and then what follows from them."""
        connection, taken = self.connection, False
        for command in commands:
            match command:
                case c.Post(message, urgent, None):
                    connection.plane.post(message, urgent=urgent)
                case c.Put(vector, header, parts):
                    connection.plane.put(vector, header, parts)
                case c.Post(message, _, shard) if shard is not None:
                    connection.plane.introduce(shard, message)
                case c.Arrange(answer):
                    connection.arrange(answer)
                case c.Detach():
                    connection.detach()
                case c.TurnAway(reason):
                    connection.monitor.turn_away(reason, self._clock.monotonic())
                case c.Served():
                    connection.monitor.served()
                case _:
                    self._owner.take(command)
                    taken = True
        if taken:
            self._owner.follow()

    def _receive(self) -> None:
        try:
            while (received := self.connection.receive()) is not None:
                message, chunk, shard = received
                self.carry_out(self.client.receive(message, chunk, self._clock.monotonic(), shard))
        except m.WireError as error:
            self.carry_out(self.client.misread(error))


class Listener(c.Member, Protocol):
    """Receiver of a member's messages, called in the communication thread.

    `seconds` is the time from the request to the last byte of the answer, of `nbytes`. The return
    value is requested next.
    """

    def acked(self, ack: m.Ack, seconds: float) -> Next: ...

    def fetched(self, version: int, vector: np.ndarray, nbytes: int,
                seconds: float) -> Next: ...

    def received(self, message: m.Message) -> Next: ...

    def failed(self) -> None: ...


class CallQueue:
    """Calls from the compute thread to the communication thread, in order.

    Both threads need Python's one interpreter lock. So the compute thread appends while it is busy,
    which is cheap, and wakes the communication thread when it is about to leave Python for long.
    The wake-up is a byte between two sockets, so that the communication thread can wait for it and
    for the server at once; the system's sockets take half as long as ZeroMQ's.

    Attributes:
        wakes: a file descriptor, readable after a `wake`.
    """

    def __init__(self, on: Host = HOST):
        self._calls: deque[tuple[Callable[..., None], Any]] = deque()
        self._waker, self._woken = on.network.pair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self.wakes = self._woken.fileno()

    def __len__(self) -> int:
        """Return the number of calls that have not been made."""
        return len(self._calls)

    # Used by the compute thread.

    def append(self, call: Callable[..., None], *arguments: Any) -> None:
        """Queue a call for the communication thread, at the next `wake` or earlier."""
        self._calls.append((call, arguments))

    def wake(self) -> None:
        """Wake the communication thread if calls are queued."""
        if self._calls:
            self._waker.send(b"\0")  # in vain where the thread has ended, or has many to read

    def close(self) -> None:
        """Close the queue after the thread's end."""
        self._waker.close()
        self._woken.close()

    # Used by the communication thread.

    def take_wake(self) -> None:
        """Read the bytes of `wake`."""
        self._woken.recv(1024)

    def make(self) -> None:
        """Make all calls."""
        while self._calls:
            call, arguments = self._calls.popleft()
            call(*arguments)


class Communication:
    """Body of the communication thread. Other threads call only through `CallQueue`.

    Attributes:
        error: why the thread has ended; None while it runs.
        handshake: answers to Hello and Join; the error, if the thread ends.
    """

    def __init__(self, client: c.Client, connection: Connection, calls: CallQueue):
        self.error: TransportError | None = None
        self.handshake: queue.SimpleQueue[m.Message | TransportError] = (
            connection.on.scheduler.queue())
        self._client = client
        self._connection = connection
        self._clock = connection.on.clock
        self._calls = calls
        self._driver = Driver(client, connection, self)
        self._listener: Listener | None = None
        self._following: Next = None

    def run(self) -> None:
        """Communicate until `close`, or until the server is lost."""
        try:
            self._loop()
            self._fail(TransportError("this worker has left the run"))
        except TransportError as error:
            self._fail(error)
        except Exception as error:  # the compute thread must not wait forever
            self._fail(TransportError(f"the communication thread failed: {error!r}"))
        finally:
            self._connection.close()

    def forked(self) -> None:
        """Fail in a process forked from this worker's, in which no thread runs this."""
        self.error = TransportError(
            "this process was forked from a worker's, and is not part of its run")

    # Calls of the compute thread.

    def request(self, request: c.Request) -> None:
        """As `Driver.send`."""
        self._driver.send(request)

    def listen(self, listener: Listener, size: int) -> None:
        """Pass all messages to this member, whose model has `size` floats."""
        self._listener = listener
        for command in self._client.listen(listener, size):
            self.carry_out([command])

    def close(self, deadline: float) -> None:
        """As `Driver.close`; then the thread ends."""
        self._driver.close(deadline)

    # The loop.

    def _loop(self) -> None:
        client, connection, clock = self._client, self._connection, self._clock
        while self._calls or not self._driver.over(clock.monotonic()):
            patience = _SETTLE if client.session.kept.unsettled else timeouts.WORKER_BEAT / 4
            ready = connection.poll(patience, self._calls.wakes)
            if ready.wake:
                self._calls.take_wake()
            self._calls.make()
            self._driver.turn(ready)

    def _fail(self, error: TransportError) -> None:
        self.error = error
        self.handshake.put(error)
        if self._listener:
            self._listener.failed()

    def carry_out(self, commands: Iterable[c.Command]) -> None:
        """Carry out commands of the client, as `Driver.carry_out`."""
        self._driver.carry_out(commands)

    # The `Owner` of the driver.

    def take(self, command: c.Command) -> None:
        """Pass what the member learns to the listener."""
        listener = self._listener
        match command:
            case c.Acked(ack, seconds) if listener:
                self._following = listener.acked(ack, seconds)
            case c.Fetched(version, vector, nbytes, seconds) if listener:
                self._following = listener.fetched(version, vector, nbytes, seconds)
            case c.Received(message) if listener:
                self._following = listener.received(message)
            case c.Answered(message):
                self.handshake.put(message)

    def follow(self) -> None:
        """Request what the listener requests, after all requests of the compute thread."""
        following, self._following = self._following, None
        if following is not None:
            self._calls.make()
            self.request(following)
