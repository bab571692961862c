"""The server's side of the memory that it shares with workers and a standby of its machine and
user."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

import numpy as np
import zmq

from wbsp.core.messages import Place
from wbsp.process.host import HOST, Host
from wbsp.wire.messages.base import WireError
from wbsp.wire.queues import SendQueue
from wbsp.wire.rate import RateLimiter
from wbsp.wire.shm.link import connect, gone
from wbsp.wire.shm.segments import SharedPool, bytes_at, create

_MOST_LENT = 4  # versions that a worker may read: its anchor, one to adopt, and one in transfer


class Handover:
    """A connection over which a pool's segments are handed over, each once.

    Raises OSError unless a process of this machine and user listens on that socket.

    Attributes:
        queue: messages that the other end has not taken.
        ended: the other end has closed it; earlier messages can still be read.
    """

    def __init__(self, name: str, pool: SharedPool, on: Host = HOST):
        self._pool = pool
        self._given: set[int] = set()  # numbers of segments
        self._link = connect(name, on)
        self.ended = False
        self.queue = SendQueue(self._link, RateLimiter(None))

    def hand(self, vector: np.ndarray, copies: bool) -> tuple[np.ndarray, int] | None:
        """Return a vector with the same floats and the number of its segment, or None.

        The other end has the segment, or will receive it. Hold the vector while the other end may
        read it.

        Args:
            vector, copies: see `SharedPool.shared`.
        """
        shared, segment = self._pool.shared(vector, copies)
        if segment is None:
            return None
        if segment.number not in self._given:
            try:
                self._link.give(segment)
            except ConnectionError:
                self.ended = True
                return None
            except OSError:  # the other end takes no segments, or no longer
                return None
            self._given.add(segment.number)
        return shared, segment.number

    def take_back(self, number: int, now: float) -> None:
        """Have the other end release a segment, if it has it."""
        if number in self._given:
            self._given.discard(number)
            self.queue.post(gone(number), now=now)

    def close(self) -> None:
        """Close the connection; mappings of the other end stay until it unmaps them."""
        self._link.close()


class SharedLink(Handover):
    """Messages to and from one worker, and the memory that is shared with it.

    Attributes:
        identity: of the worker's ZeroMQ socket.
        inbox: number of the segment for the floats that the worker sends.
        open: the worker knows of it; all messages to it go here.
    """

    def __init__(self, identity: bytes, name: str, size: int, pool: SharedPool,
                 on: Host = HOST):
        """Hand a segment of `size` floats to the worker that listens on the socket `name`.

        Raises OSError unless a worker of this machine and user listens there.
        """
        super().__init__(name, pool, on)
        self.identity = identity
        self._lent: list[tuple[int, np.ndarray]] = []  # number of a fetch, and its answer
        try:
            segment, self._memory = create(size, False, on)
            try:
                self._link.give(segment)
            finally:
                on.memory.close(segment.fd)
        except OSError:
            self._link.close()
            raise
        self.inbox, self.open = segment.number, False

    def announced(self) -> None:
        """Note that a message that names the link is sent to the worker before the link's own."""
        self.open = True

    def fileno(self) -> int:
        return self._link.fileno()

    def receive(self) -> list[zmq.Frame] | None:
        """Return the worker's next message, or None if none has arrived. Raises OSError at the end.
        """
        try:
            return self._link.recv_multipart()
        except zmq.Again:
            return None

    def read(self, place: Place) -> memoryview:
        """Return the worker's floats, which may change at any time. Raises WireError."""
        if place.segment != self.inbox:
            raise WireError(f"a place in segment {place.segment}, which is not this worker's")
        return bytes_at(place, self._memory)

    def lend(self, request: int, vector: np.ndarray) -> Place | None:
        """Return where the worker can read a version (float32 [size]); None: it must be sent.

        Args:
            request: number of the fetch; the version stays there unchanged until `returned`.
        """
        if len(self._lent) >= _MOST_LENT:
            return None
        handed = self.hand(vector, copies=True)
        if handed is None:
            return None
        shared, segment = handed
        self._lent.append((request, shared))
        return Place(segment, 0, shared.nbytes)

    def returned(self, request: int) -> None:
        """Note that the worker no longer reads the answers to the fetches before this one."""
        self._lent = [one for one in self._lent if one[0] >= request]

    def close(self) -> None:
        super().close()
        for _, vector in self._lent:  # the worker's process may still read it
            self._pool.give_up(vector)
        self._lent.clear()


class Lending:
    """The memory that a server shares, with each worker that can; used by the event loop.

    Attributes:
        pool: of the vectors made from such workers' updates.
    """

    def __init__(self, why_not: str | None, on: Host = HOST):
        """`why_not`: why no memory is shared; None: it is."""
        self._on, self._why_not = on, why_not
        self._epoll: Any = None  # of the links
        if on.network.epoll is None or not on.memory.available():
            self._why_not = why_not or "this system cannot share memory"
        elif why_not is None:
            self._epoll = on.network.epoll()
        self.pool = SharedPool(on)
        self._links: dict[int, SharedLink] = {}
        self._waiting: set[Handover] = set()  # those with messages that are not yet taken
        self._standby: Handover | None = None

    @property
    def fd(self) -> int | None:
        """A file descriptor to poll, readable when a link is; None: memory is not shared."""
        if self._epoll is None:
            return None
        number: int = self._epoll.fileno()
        return number

    def link(self, identity: bytes, name: str, size: int) -> tuple[SharedLink | None, str]:
        """Share memory with the worker that listens on the socket `name`, if possible.

        Returns the link, or None, and how floats travel, for the log.
        """
        reason = self._why_not or (None if name else "the worker shares no memory")
        if reason is None:
            try:
                link = SharedLink(identity, name, size, self.pool, self._on)
                self._epoll.register(link, select.EPOLLIN)
                self._links[link.fileno()] = link
                return link, "shared memory"
            except OSError as error:
                reason = error.strerror or str(error)
        return None, f"TCP ({reason})"

    def follow(self, name: str) -> str:
        """Lend versions to the standby that listens on the socket `name`, if possible, and no
        longer to an earlier one; return how snapshots travel, for the log."""
        self._end_standby()
        reason = self._why_not or (None if name else "the standby shares no memory")
        if reason is None:
            try:
                self._standby = Handover(name, self.pool, self._on)
                return "shared memory"
            except OSError as error:
                reason = error.strerror or str(error)
        return f"TCP ({reason})"

    def copy(self, vector: np.ndarray | None) -> tuple[np.ndarray | None, int]:
        """Return `Handover.hand` for the standby, of a vector that is already shared; None and 0
        if it is not, so that it must be sent."""
        if vector is None or self._standby is None:
            return None, 0
        return self._standby.hand(vector, copies=False) or (None, 0)

    def _end_standby(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._waiting.discard(self._standby)
        self._standby = None

    def end(self, link: SharedLink) -> None:
        """Close a link, with its session or before it."""
        if self._links.pop(link.fileno(), None) is not None:
            self._waiting.discard(link)
            link.close()

    def readable(self) -> Iterator[SharedLink]:
        """Yield the links that have a message or have ended."""
        if self._epoll is not None:
            for fd, _ in self._epoll.poll(0):
                if (link := self._links.get(fd)) is not None:
                    yield link

    def post(self, link: SharedLink, frame: bytes, now: float) -> int:
        """Send a message, now or once the worker takes it; return how many wait for that."""
        link.queue.post(frame, now=now)
        if waiting := len(link.queue):
            self._waiting.add(link)
        return waiting

    def flush(self, now: float) -> None:
        """Send waiting messages to workers that take them again."""
        while self.pool.gone:
            number = self.pool.gone.popleft()
            for one in (*self._links.values(), *([self._standby] if self._standby else [])):
                one.take_back(number, now)
                self._waiting.add(one)
        for link in [*self._waiting]:  # nearly always empty, with a thousand links
            link.queue.flush(now)
            if not link.queue:
                self._waiting.discard(link)

    def close(self) -> None:
        """Stop sharing."""
        for link in [*self._links.values()]:
            self.end(link)
        self._end_standby()
        if self._epoll is not None:
            self._epoll.close()
        self.pool.close()
