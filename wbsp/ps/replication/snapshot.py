"""Copies of a version and of all that a server needs to go on from it: made, sent, put together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from wbsp.core.store import Whole
from wbsp.process.host import HOST, Host
from wbsp.ps.checkpoint.format import Checkpoint
from wbsp.ps.checkpoint.state import RunState
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.frozen import NOTHING, FrozenValues
from wbsp.tensors.layout import TensorSpec, total_size
from wbsp.wire.assembly import VectorStream, floats_of
from wbsp.wire.messages import codec as m
from wbsp.wire.rate import Frames
from wbsp.wire.shm.link import TRIES, Door, Link


def messages(number: int, layout: list[TensorSpec], state: RunState,
             whole: Whole, segment: int = 0, frozen: FrozenValues = NOTHING,
             with_frozen: bool = True) -> Iterator[Frames]:
    """A copy's messages: its head, and the chunks of one vector after another, each with its offset
    in all of them.

    segment:     as of `messages.Copy`
    with_frozen: the receiver may not have the values of what is frozen
    """
    vector = whole.snapshot.vector
    outer = whole.outer
    assert vector is not None, "what is whole has its tensors"
    still = [frozen.vector] if frozen.layout and with_frozen else []
    vectors = [*([] if segment else [vector]), *outer.values(), *still]
    text = json.dumps({"state": state.to_json(),
                       "outer": {name: vector.size for name, vector in outer.items()},
                       "layout": [(spec.name, spec.shape) for spec in layout],
                       "frozen": [(spec.name, spec.shape) for spec in frozen.layout],
                       "values": bool(still)})
    yield (m.encode(m.Copy(number, sum(vector.size for vector in vectors), text, segment)),)
    yield from floats_of(number, *vectors, kind=m.CopyChunk)


class RunCopy(NamedTuple):
    """What a standby needs to go on in the place of the server: its settings of the run, and what
    a checkpoint holds."""

    number: int
    run: dict[str, Any]
    saved: Checkpoint


class _Arriving:
    """A copy of which chunks are still to come."""

    def __init__(self, head: m.Copy, vector: np.ndarray | None, pool: BufferPool,
                 frozen: FrozenValues):
        """`vector`: the version, where it does not come in chunks; `pool`: memory of what does;
        `frozen`: of the copy before.

        Raises WireError for a head that no server sends.
        """
        try:
            content = json.loads(head.state)
            self._state = RunState.from_json(content["state"])
            self._outer = content["outer"]
            self._layout, still = ([TensorSpec(name, tuple(shape)) for name, shape in content[of]]
                                   for of in ("layout", "frozen"))
            size = total_size(self._layout)
            sizes = [*self._outer.values()]
            self._still = still
            self._frozen = None if content["values"] else frozen  # None: they are the last to come
            if self._frozen is None:
                sizes.append(total_size(still))
            elif self._frozen.layout != still:
                raise ValueError("values of what is frozen that never came")
            if vector is None:
                sizes.insert(0, size)
            elif vector.size != size:
                raise ValueError(f"a version of {vector.size} floats for {size}")
            if head.size != sum(sizes) or not (head.size or vector is not None):
                raise ValueError(f"{head.size} floats for {sizes}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise m.WireError(f"malformed head of a copy: {error!r}") from None
        self.number = head.number
        self._vector = vector
        self._reader = VectorStream(sizes, pool)

    def add(self, chunk: m.CopyChunk, body: memoryview) -> Checkpoint | None:
        """Take the next chunk; return what the copy holds, if it was the last. Raises WireError."""
        if chunk.number != self.number:
            raise m.WireError(f"received a chunk of snapshot {chunk.number}, expected "
                              f"{self.number}")
        vectors = self._reader.add(chunk.offset, body)
        return None if vectors is None else self.saved(vectors)

    def saved(self, vectors: list[np.ndarray]) -> Checkpoint:
        """What the copy holds, when these have come in chunks."""
        vector, *outer = vectors if self._vector is None else [self._vector, *vectors]
        frozen = self._frozen or FrozenValues(self._still, outer.pop().copy())
        return Checkpoint(vector, self._layout, self._state,
                          dict(zip(self._outer, outer, strict=True)), frozen)


class CopyReader:
    """Takes one copy after another, of one server after another.

    A version that lies in a server's shared memory stays there: the server writes to that memory
    once this process holds a later copy, or the server has gone on alone; and it is there as long
    as this process reads it, whatever ends the server.

    newest: that came whole; None: there is none, or its server has given it up
    chunks: that have come so far
    """

    def __init__(self, share: bool, on: Host = HOST):
        """`share`: whether memory is shared with a server of this machine and user."""
        self._door = Door(share, on)
        self._link: Link | None = None  # over which the server hands memory over
        self._failures = 0  # in a row
        self._pool = BufferPool()
        self._run: dict[str, Any] = {}  # the server's settings
        self._frozen = NOTHING
        self._arriving: _Arriving | None = None
        self.newest: RunCopy | None = None
        self.chunks = 0

    @property
    def socket(self) -> str:
        """As of `messages.Follow`."""
        return self._door.name

    def follow(self, run: dict[str, Any]) -> None:
        """Copies will come of a server with these settings of the run."""
        self._run = run
        self._arriving = None
        if self.newest is not None and self.newest.run["epoch"] != run["epoch"]:
            self.newest = None  # the server has gone on alone since

    def begin(self, head: m.Copy) -> bool:
        """A copy begins; True if no chunks follow. Raises WireError, also where memory does not
        come through; then none is asked for any more."""
        self._arriving = None
        vector = self._version(head.segment) if head.segment else None
        self._arriving = _Arriving(head, vector, self._pool, self._frozen)
        return not head.size and self._keep(self._arriving.saved([]))

    def add(self, chunk: m.CopyChunk, body: memoryview) -> bool:
        """Take a chunk; True if it was the last of a copy. What belongs to none is passed over.
        Raises WireError."""
        self.chunks += 1
        saved = self._arriving.add(chunk, body) if self._arriving else None
        return saved is not None and self._keep(saved)

    def all_have(self, number: int) -> None:
        """All workers have the version of this copy, the run's last."""
        if self.newest is not None and self.newest.number == number:
            self.newest.saved.state.over = True

    def drop(self) -> None:
        """Forget a copy of which chunks are still to come."""
        self._arriving = None

    def _keep(self, saved: Checkpoint) -> bool:
        assert self._arriving is not None
        self.newest = RunCopy(self._arriving.number, self._run, saved)
        self._frozen = saved.frozen
        self._arriving = None
        return True

    def close(self) -> None:
        """Take no memory any more; what has come stays as long as somebody holds it."""
        self._door.close()
        if self._link is not None:
            self._link.close()
        self._link = None

    def _version(self, segment: int) -> np.ndarray:
        """The vector in that segment, float32 [size], read-only. Raises WireError."""
        if self._link is not None:
            self._link.catch_up()
        if self._link is None or not self._link.has(segment):
            found = self._door.link(segment)
            if found is None:
                self._failures += 1
                if self._failures >= TRIES:
                    self.close()
                raise m.WireError(f"segment {segment} did not come")
            if self._link is not None:
                self._link.close()
            self._link = found
        self._failures = 0
        return self._link.segments[segment]
