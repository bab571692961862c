"""What a member of a run has, and other workers have not: a listener, and models on their way."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from wbsp.runlog.report import Report
from wbsp.wire import messages as m
from wbsp.wire.chunks import Assembly, Reassembler
from wbsp.wire.memory import BufferPool


class Listener(Protocol):
    """Receiver of a member's messages, called in the communication thread.

    `seconds` is the time from the request to the last byte of the answer.
    """

    def acked(self, ack: m.Ack, seconds: float) -> None: ...

    def fetched(self, version: int, vector: np.ndarray, seconds: float) -> None: ...

    def received(self, message: m.Message) -> None: ...

    def failed(self) -> None: ...

    def report(self) -> Report: ...


class Membership:
    """A listener, and the model that comes in; `chunks` of models have come in so far."""

    def __init__(self, listener: Listener, size: int):
        """`size`: of the model, in floats."""
        self.listener, self._size = listener, size
        self.chunks = 0
        self._pool = BufferPool()
        self._models = Reassembler(size, self._pool)
        self._group: m.Group | None = None
        self._parts = Assembly(size, 1, self._pool)  # models of the group's shards
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
             group: m.Group | None) -> np.ndarray | None:
        """The whole model, float32 [size], if this chunk was its last. Raises WireError."""
        if chunk is None:
            raise m.WireError("a model without values")
        if group is not None:
            if group != self._group:  # what came from the shards before may be of another version
                self._group = group
                self._parts = Assembly(self._size, len(group.addresses), self._pool)
            self.chunks += 1
            return self._parts.add(model.version, model.offset, chunk)
        if model.offset not in (0, self._models.filled):
            return None  # rest of a transfer over a broken connection; the fetch was repeated
        self.chunks += 1
        self._models.shared = model.place is not None
        return self._models.add(model.offset, model.size, chunk)
