"""Snapshots of a version and of the state to resume from it: made, sent, and reassembled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from wbsp.core.store import Whole
from wbsp.process.host import HOST, Host
from wbsp.ps.checkpoint.format import Checkpoint
from wbsp.ps.checkpoint.state import RunState, check_run
from wbsp.runlog.folder import SECRET
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
    """Yield a snapshot's messages: its head, and the chunks of one vector after another.

    Each chunk has its offset in the sequence of vectors.

    Args:
        segment: as in `messages.Copy`.
        with_frozen: the receiver may lack the frozen values.
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
    """A snapshot to take over from: the server's settings of the run, and a checkpoint's content.
    """

    number: int
    run: dict[str, Any]
    saved: Checkpoint


class RunNote(NamedTuple):
    """A run without a version that a standby may begin in place of its server.

    It is not the first of its series, so that its workers are known.
    """

    run: dict[str, Any]


def settings_of(text: str) -> dict[str, Any]:
    """Return the settings of a run in a server's message.

    Raises:
        WireError: no server has written them.
    """
    try:
        run = check_run(json.loads(text), "the server's run.json")
        if missing := [name for name in (SECRET, "id", "epoch", "workers") if name not in run]:
            raise ValueError(f"the server's run.json lacks {', '.join(missing)}")
    except (ValueError, RecursionError) as error:
        raise m.WireError(str(error)) from None
    return run


class _Arriving:
    """An incomplete snapshot."""

    def __init__(self, head: m.Copy, vector: np.ndarray | None, pool: BufferPool,
                 frozen: FrozenValues):
        """Begin a snapshot.

        Args:
            head: its first message.
            vector: the version, if it is not sent in chunks.
            pool: memory for chunks.
            frozen: of the snapshot before.

        Raises:
            WireError: no server sends this head.
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
            raise m.WireError(f"malformed head of a snapshot: {error!r}") from None
        self.number = head.number
        self._vector = vector
        self._reader = VectorStream(sizes, pool)

    def add(self, chunk: m.CopyChunk, body: memoryview) -> Checkpoint | None:
        """Take the next chunk; return the snapshot's content if it was the last, else None.

        Raises:
            WireError: another chunk is due.
        """
        if chunk.number != self.number:
            raise m.WireError(f"received a chunk of snapshot {chunk.number}, expected "
                              f"{self.number}")
        vectors = self._reader.add(chunk.offset, body)
        return None if vectors is None else self.saved(vectors)

    def saved(self, vectors: list[np.ndarray]) -> Checkpoint:
        """Return the snapshot's content, of the vectors that arrived in chunks."""
        vector, *outer = vectors if self._vector is None else [self._vector, *vectors]
        frozen = self._frozen or FrozenValues(self._still, outer.pop().copy())
        return Checkpoint(vector, self._layout, self._state,
                          dict(zip(self._outer, outer, strict=True)), frozen)


class CopyReader:
    """Receiver of snapshots from one server after another.

    A version in a server's shared memory stays there. The server writes to that memory only when
    this process holds a later snapshot, or when the server continues alone. The memory exists as
    long as this process reads it, however the server ends.

    Attributes:
        newest: the newest complete snapshot; None: none, or its server has revoked it.
        chunks: number of received chunks.
    """

    def __init__(self, share: bool, on: Host = HOST):
        """Start; `share`: share memory with a server of this machine and user."""
        self._door = Door(share, on)
        self._link: Link | None = None  # over which the server sends memory segments
        self._failures = 0  # in a row
        self._pool = BufferPool()
        self._run: dict[str, Any] = {}  # the server's settings
        self._frozen = NOTHING
        self._arriving: _Arriving | None = None
        self.newest: RunCopy | None = None
        self.chunks = 0

    @property
    def socket(self) -> str:
        """Name of the socket, as in `messages.Follow`."""
        return self._door.name

    def follow(self, run: dict[str, Any]) -> None:
        """Expect snapshots of a server with these settings of the run."""
        self._run = run
        self._arriving = None
        if self._link is not None and not self._link.catch_up():
            self._link.close()  # it shares other memory from here on; only `newest` is read
            self._link = None
        if self.newest is not None and self.newest.run["epoch"] != run["epoch"]:
            self.newest = None  # the server has continued alone since

    def note(self, run: dict[str, Any]) -> None:
        """Note settings of the server's run that have changed."""
        self._run = run
        if self.newest is not None and self.newest.run["epoch"] == run["epoch"]:
            self.newest = self.newest._replace(run=run)

    def forget(self) -> None:
        """Discard all snapshots, because their run has ended."""
        self._run, self._arriving, self.newest, self._frozen = {}, None, None, NOTHING

    def begin(self, head: m.Copy) -> bool:
        """Begin a snapshot; return whether it is complete without chunks.

        Raises:
            WireError: the head is invalid, or shared memory did not arrive; then none is requested
                any more.
        """
        self._arriving = None
        vector = self._version(head.segment) if head.segment else None
        self._arriving = _Arriving(head, vector, self._pool, self._frozen)
        return not head.size and self._keep(self._arriving.saved([]))

    def add(self, chunk: m.CopyChunk, body: memoryview) -> bool:
        """Take a chunk; return whether it completed a snapshot. Other chunks are ignored.

        Raises:
            WireError: another chunk is due.
        """
        self.chunks += 1
        saved = self._arriving.add(chunk, body) if self._arriving else None
        return saved is not None and self._keep(saved)

    def all_have(self, number: int) -> None:
        """Note that all workers have this snapshot's version, the run's last."""
        if self.newest is not None and self.newest.number == number:
            saved = self.newest.saved
            self.newest = self.newest._replace(
                saved=saved._replace(state=replace(saved.state, over=True)))

    def drop(self) -> None:
        """Discard an incomplete snapshot."""
        self._arriving = None

    def _keep(self, saved: Checkpoint) -> bool:
        assert self._arriving is not None
        self.newest = RunCopy(self._arriving.number, self._run, saved)
        self._frozen = saved.frozen
        self._arriving = None
        return True

    def close(self) -> None:
        """Stop receiving memory; received segments stay as long as they are referenced."""
        self._door.close()
        if self._link is not None:
            self._link.close()
        self._link = None

    def _version(self, segment: int) -> np.ndarray:
        """Return the vector in that segment, float32 [size], read-only.

        Raises:
            WireError: the segment did not arrive.
        """
        if self._link is not None:
            self._link.catch_up()
        if self._link is None or not self._link.has(segment):
            found = self._door.link(segment)
            if found is None:
                self._failures += 1
                if self._failures >= TRIES:
                    self.close()
                raise m.WireError(f"segment {segment} did not arrive")
            if self._link is not None:
                self._link.close()
            self._link = found
        self._failures = 0
        return self._link.segments[segment]
