"""Transfer of updates to a server and of versions from it: over its socket, in shared memory, or
through shards (`shards.ShardPlane`).

A connection has a data plane of one of these kinds, which the server chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import zmq
from msgspec import structs

from wbsp.process.host import Host
from wbsp.wire.assembly import split
from wbsp.wire.liveness import Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.queues import QueuedSocket
from wbsp.wire.shm.borrower import SharedMemory
from wbsp.wire.shm.link import Link
from wbsp.wire.shm.segments import PIECE

# A message with its chunk, if it has one, and the shard that sent it; None: the server.
Received = tuple[m.Message, memoryview | None, int | None]


class SharingEnded(Exception):
    """The server has ended the sharing of memory. `failed`: a segment did not arrive."""

    def __init__(self, reason: str, failed: bool):
        super().__init__(reason)
        self.failed = failed


class DataPlane:
    """Vectors and versions travel in chunks over the server's socket.

    Attributes:
        group: of shards, or None.
        memory: number of the segment that the server shares first; 0: none.
        lines: further sockets for messages.
        monitors: of the connections of these, for `changes`.
        where: endpoints of these connections.
    """

    group: m.ShardGroup | None = None
    memory = 0
    lines: Sequence[QueuedSocket] = ()
    monitors: Sequence[zmq.Socket[bytes]] = ()
    where: Sequence[str] = ()

    def __init__(self, server: QueuedSocket, liveness: Liveness, on: Host):
        """Start; `server`: the socket for messages to the server; `liveness`: of the server."""
        self._server, self._liveness, self._on = server, liveness, on

    @property
    def returned(self) -> int:
        """Number of the oldest fetch with shared memory in use, as in a Fetch."""
        return 0

    def post(self, message: m.Message, chunk: memoryview | None = None,
             urgent: bool = False) -> None:
        """Send a message now if possible, else later; an urgent one replaces an older one."""
        frames = (m.encode(message),) if chunk is None else (m.encode(message), chunk)
        self._server.post(*frames, now=self._on.clock.monotonic(), urgent=urgent)

    def put(self, vector: np.ndarray, header: Callable[[int], m.Update | m.Kept | m.Initial],
            parts: Sequence[np.ndarray] = ()) -> None:
        """Send a vector (float32 [size]), each chunk after the message `header`(offset).

        `parts`: the part for each shard, if the server has shards; none: its range of the vector.
        """
        for offset, chunk in split(vector):
            self.post(header(offset), chunk)

    def receive(self, arriving: list[QueuedSocket]) -> Received | None:
        """Return the next message of these sockets, in their order, or None.

        A socket without further messages is removed from the list.

        Raises:
            WireError: a message is invalid.
            SharingEnded: the server has ended the sharing.
        """
        while arriving:
            frames = arriving[0].receive(self._on.clock.monotonic())
            if frames is None:
                del arriving[0]
            else:
                return self._read(arriving[0], frames)
        return None

    def _read(self, line: QueuedSocket, frames: Sequence[zmq.Frame]) -> Received:
        """Return the message on this socket."""
        return (self._of_server(frames[0].buffer),
                frames[1].buffer if len(frames) == 2 else None, None)

    def changes(self, found: dict[Any, int]) -> Sequence[tuple[int, bool]]:
        """Read the monitors' events; return the shards whose connections are new (True), or broken.

        `found`: of the poller.
        """
        return ()

    def introduce(self, shard: int, message: m.Message) -> None:
        """Send a shard this worker's introduction."""

    def close(self) -> None:
        """Close the plane; unsent vectors are lost."""

    def _of_server(self, data: memoryview) -> m.Message:
        self._liveness.hear(self._on.clock.monotonic())
        return m.decode(m.FromServer, data)


class MemoryPlane(DataPlane):
    """Vectors and versions in memory shared with a server of this machine; messages use its link.
    """

    def __init__(self, link: Link, memory: int, liveness: Liveness, on: Host):
        self.memory = memory
        self._shared = SharedMemory(link, memory)
        self._enclosed: m.Model | None = None  # in the newest message, and not received yet
        self.lines = self._shared.line,
        super().__init__(self._shared.line, liveness, on)

    @property
    def returned(self) -> int:
        return self._shared.returned

    def put(self, vector: np.ndarray, header: Callable[[int], m.Update | m.Kept | m.Initial],
            parts: Sequence[np.ndarray] = ()) -> None:
        for offset, chunk in split(vector, PIECE):
            place = self._shared.put(4 * offset, chunk)
            self.post(structs.replace(header(offset), place=place))

    def receive(self, arriving: list[QueuedSocket]) -> Received | None:
        message: m.Message | None = self._enclosed
        self._enclosed = None
        if message is None and self._shared.line in arriving:
            arriving.remove(self._shared.line)  # a further check would cost time
            message = self._next()
            if isinstance(message, m.Ack):
                self._enclosed = message.model
        if message is None:
            return super().receive(arriving)
        if isinstance(message, m.Model) and message.place is not None:
            return message, self._shared.borrow(message.place, message.request), None
        return message, None, None

    def _next(self) -> m.Message | None:
        try:
            frames = self._shared.line.receive(self._on.clock.monotonic())
        except ConnectionError as error:
            raise SharingEnded(str(error), failed=False) from None
        except OSError as error:  # a segment did not arrive, and would not soon
            raise SharingEnded(str(error), failed=True) from None
        return None if frames is None else self._of_server(frames[0].buffer)

    def close(self) -> None:
        self._shared.close()
