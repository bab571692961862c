"""A worker's side of the memory that a server of its machine and user shares with it."""

from __future__ import annotations

from collections import deque

import numpy as np

from wbsp.core.messages import Place
from wbsp.tensors.buffers import is_held
from wbsp.wire.messages.base import WireError
from wbsp.wire.queues import QueuedSocket
from wbsp.wire.rate import RateLimiter
from wbsp.wire.shm.link import Link
from wbsp.wire.shm.segments import bytes_at


class SharedMemory:
    """The memory that one server shares, until `close`; used by the communication thread.

    Attributes:
        line: carries all messages to and from the server.
    """

    def __init__(self, link: Link, outbox: int):
        """`outbox`: number of the segment for the floats that this worker sends."""
        self.line = QueuedSocket(link, RateLimiter(None), RateLimiter(None), link.fileno())
        self._link = link
        self._outbox = outbox
        self._lent: deque[tuple[int, int]] = deque()  # number of a fetch, segment of its answer
        self._returned = 0

    def put(self, offset: int, data: memoryview) -> Place:
        """Copy `data` to where the server can read it; return the place.

        The place may be overwritten once the server has answered.

        Args:
            offset: bytes before `data` in what is sent.
        """
        place = Place(self._outbox, offset, data.nbytes)
        there = bytes_at(place, self._link.segments[self._outbox])
        np.copyto(np.frombuffer(there, np.uint8), np.frombuffer(data, np.uint8))
        return place

    def borrow(self, place: Place, request: int) -> memoryview:
        """Return the server's answer to a fetch, without copying. Raises WireError.

        The floats stay unchanged as long as this process holds a view of them.
        """
        if place.segment not in self._link.segments:
            raise WireError(f"a place in segment {place.segment}, which this process does not have")
        there = bytes_at(place, self._link.segments[place.segment])
        self._lent.append((request, place.segment))
        return there.toreadonly()

    @property
    def returned(self) -> int:
        """Number of a fetch: this process no longer holds the answers to the fetches below it."""
        while self._lent:
            request, number = self._lent[0]
            if number in self._link.segments and is_held(self._link.segments, number):
                break
            self._lent.popleft()
            self._returned = request + 1
            self._link.let_go()
        return self._returned

    def close(self) -> None:
        """Stop sharing; borrowed memory stays mapped."""
        self._link.close()
