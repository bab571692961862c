"""Transfer of floats from and to workers: over sockets, in shared memory, or through shards.

Each member has a data plane of one of these kinds, from `DataPlanes`. The other parts of the server
do not depend on its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from wbsp.core.messages import Place
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.core.store import Snapshot, Store
from wbsp.ps.sharding.coordinator import Shards
from wbsp.ps.sharding.store import ShardedStore
from wbsp.tensors.blocks import Blocks
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.codecs import Codec
from wbsp.wire.assembly import Updates, split
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.sharding import Dismiss, Holds, Send
from wbsp.wire.queues import MOST_WAITING, PeerQueues
from wbsp.wire.shm.lender import Lending, SharedLink
from wbsp.wire.shm.link import TRIES


class Arrived(NamedTuple):
    """A complete push, or a complete resent sum of pushes."""

    head: m.Update | m.Kept
    vector: np.ndarray | Blocks | None  # float32 [size]; None: in the shards
    square: float  # squared norm of its floats


class DataPlane:
    """Transfer of floats from and to one worker.

    Attributes:
        name: for the log.
        size: of the model, in floats.
        group: of shards, for the worker, or None.
        inbox: number of the shared segment for the worker's floats; 0: none.
        heads: the worker's messages arrive here without floats.
        failed: number of failed attempts to share memory.
    """

    group: m.ShardGroup | None = None
    inbox = 0
    heads = False

    def __init__(self, name: str, size: int, failed: int = 0):
        self.name, self.size, self.failed = name, size, failed

    def put(self, message: m.Update | m.Kept, body: memoryview | None, due: int) -> Arrived | None:
        """Take a chunk of a push or of a sum, or its head.

        Args:
            message: the message.
            body: its floats, or None.
            due: number of the first push of this worker that is not decided.

        Returns:
            The push or sum, if it is complete, else None.

        Raises:
            WireError: the message is invalid.
        """
        raise NotImplementedError

    def held(self, shard: int, notice: Holds) -> Arrived | None:
        """Note that a shard has all of its slice; return as `put` does."""
        raise m.WireError("notice of a shard, but this server has none")

    def send_version(self, request: int, snapshot: Snapshot, held: int) -> None:
        """Answer a fetch of the worker, which has version `held`; drop the rest of earlier answers.
        """
        raise NotImplementedError

    def lend_version(self, request: int, snapshot: Snapshot) -> m.Model | None:
        """Return the message for a version in shared memory, or None."""
        return None

    def read(self, place: Place) -> memoryview:
        """Return the floats that the worker has written there.

        Raises:
            WireError: no memory is shared, or the range is invalid.
        """
        raise m.WireError("a place in memory that is not shared")

    def returned(self, request: int) -> None:
        """Release the memory that answered the worker's fetches before this one."""

    def post(self, message: m.Message) -> bool | None:
        """Send a message over the shared link.

        Returns:
            False if too many messages wait there; None if it must be sent over the network.
        """
        return None

    def unshared(self, failed: bool) -> DataPlane:
        """End the sharing, if there is any; return the plane that continues."""
        self.failed += failed
        return self

    def close(self) -> None:
        """End the plane with its session."""


class SocketPlane(DataPlane):
    """Floats are sent, in chunks, over the server's socket."""

    def __init__(self, name: str, identity: bytes, updates: Updates, queues: PeerQueues,
                 clock: Callable[[], float], failed: int = 0):
        """Start; `identity`: of the worker's socket; `updates`: reassembles its messages."""
        super().__init__(name, updates.size, failed)
        self._identity, self._updates, self._queues = identity, updates, queues
        self._clock = clock

    def put(self, message: m.Update | m.Kept, body: memoryview | None, due: int) -> Arrived | None:
        assert body is not None
        vector = self._updates.add(message.offset, body, message.size, isinstance(message, m.Kept))
        return None if vector is None else Arrived(message, vector, self._updates.square)

    def send_version(self, request: int, snapshot: Snapshot, held: int) -> None:
        words, base, in_blocks = snapshot.sendable(held)
        self._queues.transfer(self._identity, (
            (m.encode(m.Model(request, snapshot.version, offset, words.size, base,
                              in_blocks=in_blocks)), chunk)
            for offset, chunk in split(words)), self._clock())


class Member(Protocol):
    """The part of a session that its plane uses."""

    identity: bytes
    worker: int
    plane: DataPlane | None

    def unshare(self, failed: bool = False) -> None:
        """End the sharing of memory."""


class MemoryPlane(SocketPlane):
    """Floats are in memory that is shared with a worker of this machine; messages use its link."""

    def __init__(self, session: Member, link: SharedLink, updates: Updates, network: DataPlane,
                 planes: DataPlanes):
        """Start; `network`: the plane that continues when the sharing ends."""
        super().__init__("shared memory", session.identity, updates, planes.queues, planes.clock)
        self._session, self.link, self._network, self._planes = session, link, network, planes
        self.inbox = link.inbox

    def read(self, place: Place) -> memoryview:
        return self.link.read(place)

    def returned(self, request: int) -> None:
        self.link.returned(request)

    def lend_version(self, request: int, snapshot: Snapshot) -> m.Model | None:
        """Return the message for a version in shared memory.

        None: the sharing has ended; the worker reattaches without it, and repeats its fetch. Or the
        worker has closed the link: its last messages, perhaps that it leaves, are read first.
        """
        vector = snapshot.vector
        assert vector is not None
        place = self.link.lend(request, vector)
        if place is None:
            if not self.link.ended:
                self._session.unshare(failed=True)
            return None
        return m.Model(request, snapshot.version, 0, vector.size, place=place)

    def send_version(self, request: int, snapshot: Snapshot, held: int) -> None:
        model = self.lend_version(request, snapshot)
        if model is not None:
            self._planes.send(self._identity, model)

    def post(self, message: m.Message) -> bool | None:
        if self.link.open:
            waiting = self._planes.lending.post(self.link, m.encode(message), self._clock())
            return waiting <= MOST_WAITING
        if isinstance(message, m.Joined | m.Resend | m.Reattached):
            self.link.announced()  # the worker reads this message before any of the link
        return None

    def unshared(self, failed: bool) -> DataPlane:
        self._planes.lending.end(self.link)
        return self._network.unshared(failed)

    def close(self) -> None:
        self._planes.lending.end(self.link)


@dataclass(frozen=True)
class _Arrival:
    """A push, or a resent sum of pushes, in flight to the shards."""

    key: tuple[int, bool]  # seq, again: as in `wbsp.wire.messages.sharding.Slice`
    head: m.Update | m.Kept | None = None  # once it has arrived
    squares: dict[int, float] = field(default_factory=dict)  # shard -> norm of its complete slice


class ShardPlane(DataPlane):
    """Heads arrive here; the shards receive and send the floats, and report their slices."""

    heads = True

    def __init__(self, name: str, size: int, worker: int, shards: Shards):
        super().__init__(name, size)
        self._worker = worker
        self._shards = shards
        self._arrival: _Arrival | None = None  # the newest that is not decided
        self.group: m.ShardGroup = shards.admit(worker)

    def put(self, message: m.Update | m.Kept, body: memoryview | None, due: int) -> Arrived | None:
        if isinstance(message, m.Kept):
            arrival = self._arriving(message.work.last, True)
        elif message.push.seq < due:
            return Arrived(message, None, 0.0)  # a repetition, without the shards
        else:
            arrival = self._arriving(message.push.seq, False)
        return self._whole(replace(arrival, head=message))

    def held(self, shard: int, notice: Holds) -> Arrived | None:
        arrival = self._arriving(notice.seq, notice.again)
        return self._whole(replace(arrival, squares=arrival.squares | {shard: notice.square}))

    def send_version(self, request: int, snapshot: Snapshot, held: int) -> None:
        # Effects follow their records directly, so that the shards have that version now.
        self._shards.tell(Send(self._worker, request, snapshot.version, held))

    def close(self) -> None:
        self._shards.tell(Dismiss(self._worker, self.group.secret))

    def _arriving(self, seq: int, again: bool) -> _Arrival:
        """Return the arrival of this number; another one is void."""
        known = self._arrival
        return known if known and known.key == (seq, again) else _Arrival((seq, again))

    def _whole(self, arrival: _Arrival) -> Arrived | None:
        if arrival.head is None or len(arrival.squares) < len(self._shards):
            self._arrival = arrival
            return None
        self._arrival = None
        return Arrived(arrival.head, None, sum(arrival.squares.values()))


class DataPlanes:
    """The planes of a server that keeps the floats itself; used by its event loop.

    Attributes:
        lending: the shared memory, with workers and with a standby.
    """

    def __init__(self, lending: Lending, queues: PeerQueues, clock: Callable[[], float],
                 send: Callable[[bytes, m.Message], None], wire: Codec):
        """Start; `send`: sends a message to a worker's socket; `wire`: the run's format."""
        self.lending, self.queues, self.clock, self.send = lending, queues, clock, send
        self._wire = wire
        self._pool = BufferPool()  # of updates that are sent

    def most(self, size: int) -> int:
        """Return the floats of the largest vector that a worker with this model sends here."""
        return size

    def check(self, size: int) -> None:
        """Raise ValueError, in one line, if a model of this size cannot be served."""

    def store(self, initial: np.ndarray, version: int, outer: OuterOptimizer,
              unsent: np.ndarray | None, site: Mapping[str, np.ndarray] | None,
              statistics: Sequence[slice]) -> Store:
        """Return the store of the versions; arguments as for `Store`."""
        return Store(initial, version, outer, self._wire, unsent, site, statistics)

    def end(self, reason: str, follows: bool = False) -> None:
        """End the run in good order; `follows`: another run follows."""

    def plane_for(self, session: Member, size: int, name: str) -> DataPlane:
        """Return the plane of a new member, or of one with a new connection, which shares nothing.

        New memory is shared with it, if possible.

        Args:
            session: the member's.
            size: floats of an update.
            name: of the worker's socket for shared memory.
        """
        failed = session.plane.failed if session.plane else 0
        link, way = self.lending.link(session.identity, "" if failed >= TRIES else name, size)
        plane = SocketPlane(way, session.identity, Updates(size, self._pool, self._wire),
                            self.queues, self.clock, failed)
        return plane if link is None else MemoryPlane(
            session, link, Updates(size, self.lending.pool, self._wire, shared=True), plane, self)

    def close(self, session: Member) -> None:
        """End the plane of a session."""
        self.queues.drop_transfer(session.identity)
        if session.plane is not None:
            session.plane.close()

    def worker_of(self, secret: int) -> int | None:
        """Return the worker of a shard's message; None: its session has ended."""
        return None


class ShardedPlanes(DataPlanes):
    """The planes of a server that has shards."""

    def __init__(self, shards: Shards, lending: Lending, queues: PeerQueues,
                 clock: Callable[[], float], send: Callable[[bytes, m.Message], None], wire: Codec):
        super().__init__(lending, queues, clock, send, wire)
        self._shards = shards
        self._workers: dict[int, int] = {}  # secret, as in `ShardGroup` -> worker

    def most(self, size: int) -> int:
        return 0

    def check(self, size: int) -> None:
        if len(self._shards) > size:
            raise ValueError(f"a model of {size} floats cannot be split among "
                             f"{len(self._shards)} shards; start the server with fewer: --shards")

    def store(self, initial: np.ndarray, version: int, outer: OuterOptimizer,
              unsent: np.ndarray | None, site: Mapping[str, np.ndarray] | None,
              statistics: Sequence[slice]) -> Store:
        assert site is None, "a site has no shards"
        return ShardedStore(initial, version, outer, self._shards, self._wire, unsent, statistics)

    def end(self, reason: str, follows: bool = False) -> None:
        self._shards.end(reason, follows)

    def plane_for(self, session: Member, size: int, name: str) -> DataPlane:
        if session.plane is not None:
            return session.plane
        _, way = self.lending.link(session.identity, "", size)
        plane = ShardPlane(way, size, session.worker, self._shards)
        self._workers[plane.group.secret] = session.worker
        return plane

    def close(self, session: Member) -> None:
        super().close(session)
        if session.plane is not None and session.plane.group is not None:
            self._workers.pop(session.plane.group.secret, None)

    def worker_of(self, secret: int) -> int | None:
        return self._workers.get(secret)
