"""A worker's side of what a server of its machine and user shares with it."""

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
    """What one server shares, until `close`; used by the communication thread.

    line: for all messages to and from the server
    """

    def __init__(self, link: Link, outbox: int):
        """`outbox`: number of the segment for what this worker sends."""
        self.line = QueuedSocket(link, RateLimiter(None), RateLimiter(None), link.fileno())
        self._link = link
        self._outbox = outbox
        self._lent: deque[tuple[int, int]] = deque()  # fetch, and segment of what answered it
        self._returned = 0

    def put(self, offset: int, data: memoryview) -> Place:
        """Copy `data` to where the server can read it; it may be overwritten once the server has
        answered. `offset`: bytes before it in what is sent."""
        place = Place(self._outbox, offset, data.nbytes)
        there = bytes_at(place, self._link.segments[self._outbox])
        np.copyto(np.frombuffer(there, np.uint8), np.frombuffer(data, np.uint8))
        return place

    def borrow(self, place: Place, request: int) -> memoryview:
        """What the server has put there in answer to a fetch. It stays as it is for as long as
        anything here holds a view of it. Raises WireError."""
        if place.segment not in self._link.segments:
            raise WireError(f"a place in segment {place.segment}, which is not here")
        there = bytes_at(place, self._link.segments[place.segment])
        self._lent.append((request, place.segment))
        return there.toreadonly()

    @property
    def returned(self) -> int:
        """What answered the fetches below this number is held no more."""
        while self._lent:
            request, number = self._lent[0]
            if number in self._link.segments and is_held(self._link.segments, number):
                break
            self._lent.popleft()
            self._returned = request + 1
            self._link.let_go()
        return self._returned

    def close(self) -> None:
        """Share nothing any more; what is borrowed stays."""
        self._link.close()
