"""Copies of a version and of all that a server needs to go on from it: made, sent, put together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from wbsp.layout import TensorSpec, total_size
from wbsp.ps.checkpoint import Checkpoint
from wbsp.ps.store import Whole
from wbsp.wire import messages as m
from wbsp.wire.chunks import split
from wbsp.wire.rate import Frames


def voters(state: dict[str, Any], workers: int) -> frozenset[int]:
    """The workers that there were when an engine's `state` was made, in a run of `workers`."""
    awaited = state.get("awaited")
    return frozenset(range(workers) if awaited is None else awaited)


def messages(number: int, layout: list[TensorSpec], state: dict[str, Any],
             whole: Whole) -> Iterator[Frames]:
    """A copy's messages: its head, and the chunks of one vector after another, each with its offset
    in all of them."""
    vector, outer = whole.snapshot.vector, whole.outer
    assert vector is not None, "what is whole has its tensors"
    vectors, start = [vector, *outer.values()], 0
    text = json.dumps({"state": state,
                       "outer": {name: vector.size for name, vector in outer.items()},
                       "layout": [(spec.name, spec.shape) for spec in layout]})
    yield (m.encode(m.Copy(number, sum(vector.size for vector in vectors), text)),)
    for vector in vectors:
        for offset, chunk in split(vector):
            yield m.encode(m.CopyChunk(number, start + offset)), chunk
        start += vector.size


class Copy(NamedTuple):
    """What a standby needs to go on in the place of the server: its settings of the run, and what
    a checkpoint holds."""

    number: int
    run: dict[str, Any]
    saved: Checkpoint


class Arriving:
    """A copy of which chunks are still to come."""

    def __init__(self, head: m.Copy):
        """Raises WireError for a head that no server sends."""
        try:
            content = json.loads(head.state)
            self.state, self.outer = content["state"], content["outer"]
            self.layout = [TensorSpec(name, tuple(shape)) for name, shape in content["layout"]]
            self._sizes = [total_size(self.layout), *self.outer.values()]
            if head.size != sum(self._sizes):
                raise ValueError(f"{head.size} floats for {self._sizes}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise m.WireError(f"a copy that is none: {error!r}") from None
        self.number = head.number
        self._floats = np.empty(head.size, np.float32)
        self._filled = 0

    def add(self, chunk: m.CopyChunk, body: memoryview) -> bool:
        """Take the next chunk; True if it was the last. Raises WireError."""
        count = body.nbytes // 4
        if (chunk.number != self.number or chunk.offset != self._filled
                or body.nbytes % 4 or self._filled + count > self._floats.size):
            raise m.WireError(f"chunk at float {chunk.offset} of copy {chunk.number} came when "
                              f"{self._filled} of {self.number} was due")
        self._floats[self._filled:self._filled + count] = np.frombuffer(body, "<f4")
        self._filled += count
        return self._filled == self._floats.size

    def checkpoint(self) -> Checkpoint:
        """What has come."""
        vector, *outer = np.split(self._floats, np.cumsum(self._sizes)[:-1])
        return Checkpoint(vector, self.layout, self.state,
                          dict(zip(self.outer, outer, strict=True)))
