"""A worker's side of what a server of its machine and user shares with it."""

from __future__ import annotations

from collections import deque

import numpy as np
import zmq

from wbsp.core.messages import Place
from wbsp.process.host import HOST, Host
from wbsp.tensors.buffers import is_held
from wbsp.wire.messages.base import WireError
from wbsp.wire.queues import Duplex
from wbsp.wire.rate import RateLimiter
from wbsp.wire.shm.link import Door, Link
from wbsp.wire.shm.segments import bytes_at


class SharingEnded(Exception):
    """The server has ended the sharing, or the memory cannot be mapped by this process."""


class SharedMemory:
    """What is shared with one server after another; used by the communication thread.

    duplex: for all messages to and from the server; None: nothing is shared (at the moment)
    failed: memory did not come: none is wanted until there is a new connection
    """

    def __init__(self, wanted: bool, on: Host = HOST):
        self._on = on
        self._door = Door(wanted, on)
        self.failed = False
        self.duplex: Duplex | None = None
        self._link: Link | None = None
        self._outbox = 0  # number of the segment for what this worker sends; 0: nothing is shared
        self._lent: deque[tuple[int, int]] = deque()  # fetch, and segment of what answered it
        self._returned = 0

    @property
    def name(self) -> str:
        """Of the socket at which servers find this worker; "": it shares nothing (now)."""
        return "" if self.failed else self._door.name

    def attach(self, number: int) -> None:
        """Share the memory whose first segment has this number, and no other; 0: none.

        Raises SharingEnded where there is no such memory here, though the server believes so.
        """
        self.detach(number)
        if number == self._outbox:
            return
        link = self._door.link(number)
        if link is None:
            self._fail()
            raise SharingEnded(f"segment {number} did not come")
        self._link, self._outbox = link, number
        self.duplex = Duplex(link, RateLimiter(None), RateLimiter(None), self._on,
                             link.fileno())

    def detach(self, number: int = 0) -> None:
        """Share nothing but the memory of this number, until `attach`."""
        if number and number == self._outbox:
            return
        if self._link is not None:
            self._link.close()
        self._link = self.duplex = None
        self._outbox = self._returned = 0
        self._lent.clear()

    def renew(self) -> None:
        """There is a new connection to a server: what failed before may succeed now."""
        self.failed = False

    def _fail(self) -> None:
        self.detach()
        self.failed = True

    def refuse(self) -> None:
        """Share nothing, now or later."""
        self.detach()
        self._door.close()

    def receive(self) -> list[zmq.Frame] | None:
        """The next message; None: there is none yet. Raises SharingEnded."""
        try:
            return self.duplex.receive() if self.duplex else None
        except ConnectionError as error:
            raise SharingEnded(str(error)) from None
        except OSError as error:  # a segment did not come through, and would not so soon again
            self._fail()
            raise SharingEnded(str(error)) from None

    def put(self, offset: int, data: memoryview) -> Place:
        """Copy `data` to where the server can read it; it may be overwritten once the server has
        answered. `offset`: bytes before it in what is sent."""
        assert self._link is not None
        place = Place(self._outbox, offset, data.nbytes)
        there = bytes_at(place, self._link.segments[self._outbox])
        np.copyto(np.frombuffer(there, np.uint8), np.frombuffer(data, np.uint8))
        return place

    def borrow(self, place: Place, request: int) -> memoryview:
        """What the server has put there in answer to a fetch. It stays as it is for as long as
        anything here holds a view of it. Raises WireError."""
        if self._link is None or place.segment not in self._link.segments:
            raise WireError(f"a place in segment {place.segment}, which is not here")
        there = bytes_at(place, self._link.segments[place.segment])
        self._lent.append((request, place.segment))
        return there.toreadonly()

    @property
    def returned(self) -> int:
        """What answered the fetches below this number is held no more."""
        while self._link and self._lent:
            request, number = self._lent[0]
            if number in self._link.segments and is_held(self._link.segments, number):
                break
            self._lent.popleft()
            self._returned = request + 1
            self._link.let_go()
        return self._returned
