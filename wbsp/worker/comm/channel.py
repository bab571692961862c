"""A worker's socket to its server, with rate limits, queue and monitor, those to the shards, and
the memory that is shared with a server of the same machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import zmq

from wbsp import timeouts
from wbsp.process.forks import close_connections
from wbsp.process.host import HOST, Host
from wbsp.tensors.buffers import keep_freed
from wbsp.wire.addresses import split_addresses
from wbsp.wire.assembly import split
from wbsp.wire.messages import codec as m
from wbsp.wire.queues import Duplex
from wbsp.wire.rate import RateLimiter
from wbsp.wire.shm.borrower import SharedMemory, SharingEnded
from wbsp.wire.shm.segments import PIECE
from wbsp.wire.sockets import contact, worker_socket
from wbsp.worker.comm.connection import ConnectionMonitor, numbers
from wbsp.worker.comm.shards import Slices

_IN = int(zmq.POLLIN)  # arithmetic with enums takes its time


class Ready(NamedTuple):
    """Findings of a `poll`."""

    message: bool  # `receive` can return a message
    event: bool  # `read_event` can read an event of the connection
    wake: bool  # the file descriptor `wakes` can be read


class ServerChannel:
    """Messages to and from one server, and floats to and from its shards, if it has some; used by
    the communication thread.

    context:    ZeroMQ's, which `close` destroys with all its sockets
    connection: health of the connection
    slices:     the shards' side; None: the server takes the floats itself
    memory:     shared with the server, where it can be
    """

    def __init__(self, address: str, token: bytes | None, bandwidth: float | None,
                 patience: float, say: Callable[[str], None], share: bool = True,
                 on: Host = HOST):
        """`address`: as in `Route`; `bandwidth`: bytes per second each way, or None.

        patience: as in `ConnectionMonitor`
        share:    whether memory may be shared; it never is where there is a bandwidth

        Raises ValueError for a bad address or bandwidth.
        """
        hosts = [host for host, _ in split_addresses(address)]
        keep_freed()
        self.on = on
        self.context = on.network.context()
        self._socket = worker_socket(self.context, hosts, on.scheduler.random(16), token)
        self.connection = ConnectionMonitor(self._socket, address, patience, say, on)
        self._token, self._say = token, say
        self._said = False  # that memory did not come through
        self.slices: Slices | None = None
        self.memory = SharedMemory(share and bandwidth is None, on)
        limiters = RateLimiter(bandwidth), RateLimiter(bandwidth)
        self._slices_of = (lambda group: Slices(self.context, group, self.connection.host, token,
                                                limiters, patience, say, on))
        self._duplex = Duplex(self._socket, *limiters, on)
        self._poller = self._new_poller()
        self._let_go_at = math.inf  # by the server, of the memory that was shared
        self._enclosed: m.Model | None = None  # in the newest message, and not received yet
        self._shared_arriving = False  # memory.receive may return a message
        self._arriving = False  # `receive` may find a message of the server's ZeroMQ socket

    def forked(self) -> None:
        """Close everything, in a process that was forked from the one that owns it."""
        endpoints = [self.connection.endpoint, *(self.slices.where if self.slices else ())]
        close_connections(map(numbers, endpoints))
        self.memory.refuse()

    @property
    def sent(self) -> int:
        """Number of messages sent, without the urgent ones."""
        return (self._duplex.queue.sent + (self.slices.sent if self.slices else 0)
                + (self.memory.duplex.queue.sent if self.memory.duplex else 0))

    @property
    def all_sent(self) -> bool:
        """True if no message waits to be sent."""
        return not (self._duplex.queue or (self.memory.duplex and self.memory.duplex.queue)
                    ) and (self.slices is None or self.slices.all_sent)

    @property
    def ready(self) -> bool:
        """False while there are shards that do not know this worker (yet)."""
        return self.slices is None or self.slices.ready

    @property
    def returned(self) -> int:
        """As in a Fetch."""
        return self.memory.returned

    @property
    def group(self) -> m.ShardGroup | None:
        """The shards; None: there are none."""
        return None if self.slices is None else self.slices.group

    def transferring(self, now: float) -> bool:
        """True while the rate limit delays a message on its way out or in."""
        return self._duplex.transferring(now) or bool(self.slices
                                                      and self.slices.transferring(now))

    def arrange(self, answer: m.Joined | m.Resend | m.Reattached) -> None:
        """These shards belong to the server from here on, and this memory is shared.

        See `let_go` where the memory cannot be had.
        """
        self._arrange_slices(answer.group)
        self.detach(answer.memory)
        try:
            self.memory.attach(answer.memory)
        except SharingEnded as error:
            self._sharing_ended(error)

    def _sharing_ended(self, error: SharingEnded) -> None:
        self._let_go_at = self.on.clock.monotonic()
        if self.memory.failed and not self._said:
            self._said = True
            self._say(f"shared memory did not come through ({error}): going on over TCP, and "
                      "trying again at the next connection to a server")

    def detach(self, memory: int = 0) -> None:
        """Share no memory but that of this number, and speak over the network, until a server
        answers anew."""
        self.memory.detach(memory)
        self._poller, self._let_go_at, self._enclosed = self._new_poller(), math.inf, None

    def woke(self, now: float, seconds: float) -> None:
        """This process has slept for so many seconds until `now`: patience counts from here on."""
        self.connection.woke(now, seconds)
        if self.slices is not None:
            self.slices.woke(seconds)

    def let_go(self, now: float) -> bool:
        """True if the server is to hear that memory is shared no more, though the connection lives.

        That of a server that has died ends in a moment, too, and then there is another to speak to.
        """
        return now - self._let_go_at > timeouts.SHARING_ENDED

    def _arrange_slices(self, group: m.ShardGroup | None) -> None:
        if self.group == group:
            return
        if self.slices is not None:
            self.slices.close()
        self.slices = None if group is None else self._slices_of(group)

    def poll(self, wakes: int, seconds: float) -> Ready:
        """Wait, for at most `seconds`, until there is something to do or `wakes` can be read."""
        now = self.on.clock.monotonic()
        wait = min(seconds, self._duplex.register(self._poller, now))
        if self.slices is not None:
            wait = min(wait, self.slices.register(self._poller, now))
        if self.memory.duplex is not None:
            wait = min(wait, self.memory.duplex.register(self._poller, now))
        self._poller.register(wakes, _IN)
        found = dict(self._poller.poll(int(1000 * wait)))
        self._arriving = readable = self._duplex.readable(found, now)
        if self.slices is not None:
            readable = self.slices.readable(found, now) or readable
        if self.memory.duplex is not None:
            self._shared_arriving = self.memory.duplex.readable(found, now)
            readable = self._shared_arriving or readable
        return Ready(readable, self.connection.monitor in found, wakes in found)

    def receive(self) -> tuple[m.Message, memoryview | None] | None:
        """The next message, with its chunk if it has one; None: there is none yet.

        Raises WireError.
        """
        model, self._enclosed = self._enclosed, None
        if model is not None:
            return model, self._floats(model)
        frames = None
        if self._shared_arriving:  # one message: to look for another in vain takes its time
            self._shared_arriving = False
            try:
                frames = self.memory.receive()
            except SharingEnded as error:
                self.detach()
                self._sharing_ended(error)
        if frames is None and self._arriving:
            frames = self._duplex.receive()
            self._arriving = frames is not None
        if frames is None:
            return None if self.slices is None else self.slices.receive()
        self.connection.liveness.hear(self.on.clock.monotonic())
        message = m.decode(m.FromServer, frames[0].buffer)
        if isinstance(message, m.Ack):
            self._enclosed = message.model
        if len(frames) == 2:
            return message, frames[1].buffer
        return message, self._floats(message) if isinstance(message, m.Model) else None

    def _floats(self, model: m.Model) -> memoryview | None:
        """What lies in shared memory; None: nothing. Raises WireError."""
        return None if model.place is None else self.memory.borrow(model.place, model.request)

    def read_event(self) -> bool:
        """Read all events of the connection. True: the connection is a new one.

        All messages that were on their way, and the rest of what was queued, are lost then. No
        message of a new connection is read before this has said so.
        """
        connection, renewed = self.connection, False
        while connection.monitor.poll(0):
            renewed = connection.event(self.on.clock.monotonic()) or renewed
        if renewed:
            self._duplex.queue.clear()
            self.memory.renew()
        return renewed

    @property
    def contact(self) -> bytes:
        """The key of a first contact; see `ServerSocket.contact`."""
        return contact(self._token, self.on)

    def post(self, message: m.Message, chunk: memoryview | None = None,
             urgent: bool = False) -> None:
        """Send a message now if possible, else later; an urgent one replaces an older one."""
        frames = (m.encode(message),) if chunk is None else (m.encode(message), chunk)
        (self.memory.duplex or self._duplex).post(*frames, urgent=urgent)

    def post_chunks(self, vector: np.ndarray, header: Callable[[int], m.Message]) -> None:
        """Send a vector (float32 [size]), each chunk after the message `header`(offset)."""
        if self.memory.duplex is None:
            for offset, chunk in split(vector):
                self.post(header(offset), chunk)
            return
        for offset, chunk in split(vector, PIECE):
            place = self.memory.put(4 * offset, chunk)
            self.post(msgspec.structs.replace(header(offset), place=place))

    def hand_over(self, vector: np.ndarray, header: Callable[[int], m.Update | m.Kept],
                  parts: Sequence[np.ndarray] = ()) -> None:
        """The same, where there are shards: to them, and the head to the server.

        parts: what goes to each shard; none: its range of the vector
        """
        if self.slices is None:
            self.post_chunks(vector, header)
            return
        head = header(0)
        self.post(head)
        if isinstance(head, m.Kept):
            self.slices.post(vector, head.work.last, again=True)
        else:
            self.slices.post(vector, head.push.seq, again=False, parts=parts)

    def flush(self) -> None:
        """Send all queued messages that the rate limit and the socket allow."""
        self._duplex.flush()
        if self.memory.duplex is not None:
            self.memory.duplex.flush()
        if self.slices is not None:
            self.slices.flush()

    def check(self, now: float) -> bool:
        """See whether there are connections; True if the shards have come to know this worker.

        Raises TransportError when the server, or one of them, is lost.
        """
        self.connection.check(now)
        return self.slices is not None and self.slices.check(now, self.connection.broken)

    def close(self) -> None:
        """Close the socket, and all others of the context; what was not sent is lost."""
        self._arrange_slices(None)
        self.memory.refuse()
        self._socket.disable_monitor()
        self.context.destroy(0)

    def _new_poller(self) -> zmq.Poller:
        poller = self.on.network.poller()
        poller.register(self.connection.monitor, _IN)
        return poller
