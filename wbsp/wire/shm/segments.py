"""Memory that a server and workers of the same machine and user share, in place of sent floats.

A message that has floats says where they lie then. All memory is the server's: a segment for what
each worker sends, and its pool of vectors, of which some become versions, which workers can only
read. It has no name that anybody could open (memfd), is handed over from process to process
(`wbsp.wire.shm.link`), and is gone with the last process that holds it. Its size is sealed, so that
what a process reads cannot be taken away. What stands at a place may change while it is read,
if a peer is not what it should be: it is copied, and the copy is what counts.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import NamedTuple

import numpy as np

from wbsp.core.messages import Place
from wbsp.process.host import HOST, Host
from wbsp.tensors.buffers import BufferPool
from wbsp.wire.messages.base import WireError

PIECE = 1 << 20  # floats of an update at one place: the next is put while this one is read


class Segment(NamedTuple):
    """What there is to hand over: a number that no other segment has, and a file descriptor."""

    number: int
    fd: int


def bytes_at(place: Place, vector: np.ndarray) -> memoryview:
    """What lies at this place in the segment that is `vector`, float32 [size]. Raises WireError."""
    end = place.offset + place.nbytes
    if not 0 <= place.offset < end <= vector.nbytes:
        raise WireError(f"bytes {place.offset} to {end} of a segment of {vector.nbytes}")
    return vector.data.cast("B")[place.offset:end]


def create(size: int, read_only: bool, on: Host = HOST) -> tuple[Segment, np.ndarray]:
    """A new segment of `size` floats, all of which have their memory, and its mapping.

    read_only: to all but this process

    Raises OSError. The descriptor is the caller's to close; the mapping stays.
    """
    fd, vector = on.memory.create(size, read_only)
    return Segment(on.scheduler.number() | 1, fd), vector


class SharedPool(BufferPool):
    """Vectors in segments of their own, which can be handed over.

    gone: numbers of segments that were handed over, perhaps, and are used no more
    """

    def __init__(self, on: Host = HOST) -> None:
        super().__init__()
        self._on = on
        self._segments: dict[int, Segment] = {}  # id of a vector that lives -> what has its floats
        self.gone: deque[int] = deque()
        self._copied: tuple[np.ndarray, np.ndarray] | None = None  # see `shared`

    def _new(self, size: int) -> np.ndarray:
        try:
            segment, vector = create(size, True, self._on)
        except OSError:  # what lies in this one cannot be shared
            return super()._new(size)
        self._segments[id(vector)] = segment
        return vector

    def shared(self, vector: np.ndarray,
               copies: bool = True) -> tuple[np.ndarray, Segment | None]:
        """A vector of this pool with the same floats, and its segment; None: it has none.

        vector: float32 [size], never written again; copied once, if it is not this pool's
        copies: whether it may be copied for this; else there may be no segment
        """
        if id(vector) in self._segments:
            return vector, self._segments[id(vector)]
        if self._copied is None or self._copied[0] is not vector:
            if not copies:
                return vector, None
            copy = self.take(vector.size)
            np.copyto(copy, vector)
            self._copied = vector, copy
        copy = self._copied[1]
        return copy, self._segments.get(id(copy))

    def give_up(self, vector: np.ndarray) -> None:
        """Never use this vector's memory again: another process may read it for good. The system
        takes it back when the last reference is gone."""
        if any(one is vector for one in self._vectors):
            self._vectors = [one for one in self._vectors if one is not vector]
            weakref.finalize(vector, self._forget, id(vector))

    def close(self) -> None:
        """Hand over nothing any more; the vectors stay as long as somebody holds them."""
        for key in [*self._segments]:
            self._forget(key)

    def _forget(self, key: int) -> None:
        if (segment := self._segments.pop(key, None)) is not None:
            self._on.memory.close(segment.fd)
            self.gone.append(segment.number)  # by whichever thread the last view went
