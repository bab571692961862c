"""Memory that a server and workers of the same machine and user share, to send fewer floats.

A message then names the place of its floats. The server owns all memory: a segment for each
worker's updates, and a pool of vectors, some of which become versions, which workers can only read.
A segment has no name that another process could open (memfd). Processes hand it over
(`wbsp.wire.shm.link`), and it exists as long as a process holds it. Its size is sealed, so that a
reader's memory cannot be taken away. A faulty peer may change floats while they are read, so the
reader copies them and uses the copy.
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

PIECE = 1 << 20  # floats of an update at one place: the next piece is put while this one is read


class Segment(NamedTuple):
    """A segment to hand over: its unique number, and a file descriptor."""

    number: int
    fd: int


def bytes_at(place: Place, vector: np.ndarray) -> memoryview:
    """Return the bytes at this place of the segment `vector`, float32 [size]. Raises WireError."""
    end = place.offset + place.nbytes
    if not 0 <= place.offset < end <= vector.nbytes:
        raise WireError(f"bytes {place.offset} to {end} of a segment of {vector.nbytes}")
    return vector.data.cast("B")[place.offset:end]


def create(size: int, read_only: bool, on: Host = HOST) -> tuple[Segment, np.ndarray]:
    """Create a segment of `size` floats with all of its memory; return it and its mapping.

    Raises OSError. The caller closes the descriptor; the mapping stays.

    Args:
        read_only: to all other processes.
    """
    fd, vector = on.memory.create(size, read_only)
    return Segment(on.scheduler.number() | 1, fd), vector


class SharedPool(BufferPool):
    """Vectors in segments of their own, which can be handed over.

    Attributes:
        gone: numbers of segments that are used no more, and may have been handed over.
    """

    def __init__(self, on: Host = HOST) -> None:
        super().__init__()
        self._on = on
        self._segments: dict[int, Segment] = {}  # id of a living vector -> its segment
        self.gone: deque[int] = deque()
        self._copied: tuple[np.ndarray, np.ndarray] | None = None  # see `shared`

    def _new(self, size: int) -> np.ndarray:
        try:
            segment, vector = create(size, True, self._on)
        except OSError:  # this vector cannot be shared
            return super()._new(size)
        self._segments[id(vector)] = segment
        return vector

    def shared(self, vector: np.ndarray,
               copies: bool = True) -> tuple[np.ndarray, Segment | None]:
        """Return a vector of this pool with the same floats, and its segment; None: it has none.

        Args:
            vector: float32 [size], never written again; copied once, if it is not of this pool.
            copies: whether it may be copied for this; otherwise there may be no segment.
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
        """Never use this vector's memory again: another process may read it for ever. The system
        frees it with the last reference."""
        if any(one is vector for one in self._vectors):
            self._vectors = [one for one in self._vectors if one is not vector]
            weakref.finalize(vector, _forget, weakref.ref(self), id(vector))

    def close(self) -> None:
        """Hand over no more segments, and hold no vectors; they stay while they are referenced."""
        self._vectors, self._copied = [], None
        for key in [*self._segments]:
            self._forget(key)

    def _forget(self, key: int) -> None:
        if (segment := self._segments.pop(key, None)) is not None:
            self._on.memory.close(segment.fd)
            self.gone.append(segment.number)  # from the thread that dropped the last view


def _forget(pool: weakref.ref[SharedPool], key: int) -> None:
    """Forget a segment of a pool, if that still exists; a vector's end must not hold its pool."""
    if (living := pool()) is not None:
        living._forget(key)
