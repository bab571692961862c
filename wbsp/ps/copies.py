"""Copies of a version and of all that a server needs to go on from it: made, sent, put together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from wbsp.layout import TensorSpec, total_size
from wbsp.ps.checkpoint import Checkpoint
from wbsp.ps.floats import FloatsReader, floats_of
from wbsp.ps.store import Whole
from wbsp.wire import messages as m
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
    vectors = [vector, *outer.values()]
    text = json.dumps({"state": state,
                       "outer": {name: vector.size for name, vector in outer.items()},
                       "layout": [(spec.name, spec.shape) for spec in layout]})
    yield (m.encode(m.Copy(number, sum(vector.size for vector in vectors), text)),)
    yield from floats_of(number, *vectors, kind=m.CopyChunk)


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
            sizes = [total_size(self.layout), *self.outer.values()]
            if head.size != sum(sizes):
                raise ValueError(f"{head.size} floats for {sizes}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise m.WireError(f"a copy that is none: {error!r}") from None
        self.number = head.number
        self._reader = FloatsReader(sizes)

    def add(self, chunk: m.CopyChunk, body: memoryview) -> Checkpoint | None:
        """Take the next chunk; return what the copy holds, if it was the last. Raises WireError."""
        if chunk.number != self.number:
            raise m.WireError(f"a chunk of copy {chunk.number} came when {self.number} was due")
        vectors = self._reader.add(chunk, body)
        if vectors is None:
            return None
        vector, *outer = vectors
        return Checkpoint(vector, self.layout, self.state,
                          dict(zip(self.outer, outer, strict=True)))
