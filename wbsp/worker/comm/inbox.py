"""Incoming data of a member: messages for its listener, and versions in chunks."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from wbsp.core.agent import Expect
from wbsp.core.stats import Report
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.wire.assembly import VectorAssembly
from wbsp.wire.messages import codec as m

Next = m.Fetch | Expect | None  # the request that follows a handled message


class Listener(Protocol):
    """Receiver of a member's messages, called in the communication thread.

    `seconds` is the time from the request to the last byte of the answer, of `nbytes`. The return
    value is requested next.
    """

    def acked(self, ack: m.Ack, seconds: float) -> Next: ...

    def fetched(self, version: int, vector: np.ndarray, nbytes: int,
                seconds: float) -> Next: ...

    def received(self, message: m.Message) -> Next: ...

    def failed(self) -> None: ...

    @property
    def waits(self) -> bool: ...

    def report(self) -> Report: ...


class Inbox:
    """A member's listener, and the arriving version; `chunks`: of versions received so far."""

    def __init__(self, listener: Listener, size: int, wire: Codec = FLOAT32):
        """Start; `size`: of the model, in floats; `wire`: format of differences."""
        self.listener = listener
        self.chunks = 0
        self._versions = VectorAssembly(size, wire)
        self._group: m.ShardGroup | None = None  # the shards that send the versions' ranges
        self._early: list[tuple[m.Model, memoryview | None, m.ShardGroup]] = []

    def put_by(self, model: m.Model, chunk: memoryview | None, group: m.ShardGroup | None) -> None:
        """Keep an early chunk, because a shard may be faster than the server's grant."""
        if group is not None:
            self._early = [one for one in self._early if one[0].request == model.request]
            self._early.append((model, chunk, group))

    def early(self, request: int | None,
              group: m.ShardGroup | None) -> list[tuple[m.Model, memoryview | None]]:
        """Return the early chunks of the answer to this request, from these shards."""
        early, self._early = self._early, []
        return [(model, chunk) for model, chunk, origin in early
                if model.request == request and origin == group]

    @property
    def held(self) -> int:
        """Version that the server may add differences to; NONE: none."""
        return self._versions.held

    def take(self, model: m.Model, chunk: memoryview | None, group: m.ShardGroup | None,
             keep: bool = False) -> tuple[np.ndarray, int] | None:
        """Take a chunk; `keep`: as in `VectorAssembly.add`.

        Returns:
            The model, float32 [size], and the number of received bytes, if this chunk completed it;
            else None.

        Raises:
            WireError: the chunk is invalid.
        """
        if chunk is None:
            raise m.WireError("a model without values")
        if group != self._group:  # earlier chunks of the shards may be of another version
            self._group = group
            self._versions.divide(1 if group is None else len(group.addresses))
        self.chunks += 1
        return self._versions.add(model, chunk, keep)
