"""What a member of a run has, and other workers have not: a listener, and models on their way."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from wbsp.core.stats import Report
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.tensors.error_feedback import advanced
from wbsp.wire.assembly import Assembly, Parts, Reassembler
from wbsp.wire.messages import codec as m


class Listener(Protocol):
    """Receiver of a member's messages, called in the communication thread.

    `seconds` is the time from the request to the last byte of the answer, of `nbytes`.
    """

    def acked(self, ack: m.Ack, seconds: float) -> None: ...

    def fetched(self, version: int, vector: np.ndarray, nbytes: int, seconds: float) -> None: ...

    def received(self, message: m.Message) -> None: ...

    def failed(self) -> None: ...

    @property
    def waits(self) -> bool: ...

    def report(self) -> Report: ...


class Membership:
    """A listener, and the model that comes in; `chunks` of models have come in so far."""

    def __init__(self, listener: Listener, size: int, wire: Codec = FLOAT32):
        """`size`: of the model, in floats; `wire`: format of differences."""
        self.listener, self._size, self._wire = listener, size, wire
        self.chunks = 0
        self._held = m.NONE  # version that differences are added to, with its floats
        self._vector: np.ndarray | None = None
        self._words = Reassembler(0, BufferPool())  # of differences
        self._pool = BufferPool()
        self._models = Reassembler(size, self._pool)
        self._group: m.Group | None = None
        self._parts = Assembly(size, 1, self._pool)  # models of the group's shards
        self._ranges = Parts(size, 1, wire)  # the same, where differences come
        self._early: list[tuple[m.Model, memoryview | None, m.Group]] = []

    def put_by(self, model: m.Model, chunk: memoryview | None, group: m.Group | None) -> None:
        """Keep a chunk that was not waited for: a shard may be faster than the server's answer that
        grants it."""
        if group is not None:
            self._early = [one for one in self._early if one[0].request == model.request]
            self._early.append((model, chunk, group))

    def early(self, request: int | None,
              group: m.Group | None) -> list[tuple[m.Model, memoryview | None]]:
        """What was put by of the answer to this request, and of these shards."""
        early, self._early = self._early, []
        return [(model, chunk) for model, chunk, origin in early
                if model.request == request and origin == group]

    def take(self, model: m.Model, chunk: memoryview | None,
             group: m.Group | None) -> tuple[np.ndarray, int] | None:
        """The whole model, float32 [size], and the number of bytes in which it came, if this chunk
        was the last of them. Raises WireError."""
        found = self._take(model, chunk, group)
        if found is None:
            return None
        vector, _ = found
        if not self._wire.lossless:  # what a later difference is added to
            vector.flags.writeable = False
            self._held, self._vector = model.version, vector
        return found

    def _take(self, model: m.Model, chunk: memoryview | None,
              group: m.Group | None) -> tuple[np.ndarray, int] | None:
        if chunk is None:
            raise m.WireError("a model without values")
        if group is not None:
            if group != self._group:  # what came from the shards before may be of another version
                self._group = group
                self._parts = Assembly(self._size, len(group.addresses), self._pool)
                self._ranges = Parts(self._size, len(group.addresses), self._wire)
            self.chunks += 1
            if not self._wire.lossless:
                return self._ranges.add(model, chunk, self._held, self._vector)
            vector = self._parts.add(model.version, model.offset, chunk)
            return None if vector is None else (vector, vector.nbytes)
        if model.base != m.NONE:
            vector = self._advance(model, chunk)
            return None if vector is None else (vector, 4 * model.size)
        if model.place is not None:  # all of it, to be read where it lies
            if (model.offset, model.size, chunk.nbytes) != (0, self._size, 4 * self._size):
                raise m.WireError(f"{chunk.nbytes} bytes of version {model.version} in shared "
                                  f"memory, and the model has {self._size} floats")
            self.chunks += 1
            return np.frombuffer(chunk, np.float32), chunk.nbytes
        if model.offset not in (0, self._models.filled):
            return None  # rest of a transfer over a broken connection; the fetch was repeated
        self.chunks += 1
        vector = self._models.add(model.offset, model.size, chunk)
        return None if vector is None else (vector, vector.nbytes)

    def _advance(self, model: m.Model, chunk: memoryview) -> np.ndarray | None:
        """The version that is held, and its differences from the one that comes."""
        if model.base != self._held or self._vector is None or not 0 <= model.size <= self._size:
            raise m.WireError(f"version {model.version} in {model.size} words that are added to "
                              f"version {model.base}, and version {self._held} of {self._size} "
                              "floats is here")
        if model.offset == 0:
            self._words = Reassembler(model.size, BufferPool())
        elif model.offset != self._words.filled or model.size != self._words.size:
            return None  # as above
        self.chunks += 1
        words = self._words.add(model.offset, model.size, chunk)
        try:
            return None if words is None else advanced(self._wire, self._vector, words)
        except ValueError as error:
            raise m.WireError(f"version {model.version} as {error}") from None
