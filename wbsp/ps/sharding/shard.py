"""A shard: a range of the model that follows the server's log of decisions.

It makes no decisions. Slices of updates wait for their decision in the log; the store has the
server's class, with a shorter vector. No sockets, processes or clocks.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from wbsp.core.outer_optimizer import create_outer
from wbsp.core.store import UNSENT, Snapshot, Store
from wbsp.tensors.blocks import Blocks
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.codecs import parse
from wbsp.wire.assembly import Updates, floats_of, split
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import attachment
from wbsp.wire.rate import Frames

# Waiting slices of a worker: its next push may arrive here before the log of the push before,
# because the worker may have that answer already.
_MOST_HELD = 2

Key = tuple[int, bool]  # seq, again: see `wbsp.wire.messages.sharding.Slice`


@dataclass
class Attachment:
    """A worker that the server has announced."""

    worker: int
    secret: int
    name: int  # this and the next: see `wbsp.wire.proof.attachment`
    key: bytes
    updates: Updates
    identity: bytes | None = None  # of its socket, once it has connected
    arriving: Key | None = None  # slice that arrives in chunks
    held: dict[Key, np.ndarray | Blocks] = field(default_factory=dict)  # slices of updates, float32
    decided: int = -1  # newest push in the log
    missed: bool = False  # a slice was dropped because too many were held

    def resends(self) -> bool:
        """Return, once, whether its worker must send a dropped slice again."""
        missed, self.missed = self.missed, False
        return missed

    def take(self, message: s.Slice, body: memoryview) -> bool:
        """Take a chunk; return whether the slice is complete.

        Raises:
            WireError: no correct worker sends it.
        """
        key = message.seq, message.again
        if message.seq <= self.decided or key in self.held:
            return False  # sent twice
        if len(self.held) >= _MOST_HELD:
            self.missed = True
            return False
        if message.offset == 0:
            self.arriving = key
        elif key != self.arriving:
            raise m.WireError(f"worker {self.worker} sent the rest of push {message.seq} without "
                              "its begin")
        vector = self.updates.add(message.offset, body, message.size, message.again)
        if vector is None:
            return False
        self.held[key], self.arriving = vector, None
        return True

    def release(self, seq: int, again: bool) -> np.ndarray | Blocks:
        """Remove and return the slice of a push in the log."""
        vector = self.held.pop((seq, again), None)
        if vector is None:
            raise RuntimeError(f"the log names push {seq} of worker {self.worker}, and here is "
                               f"{list(self.held)}")
        self.decided = seq
        self.held = {key: later for key, later in self.held.items() if key[0] > seq}
        return vector


class Shard:
    """The range of one version after another, and the waiting slices."""

    def __init__(self, begin: s.Begin, vector: np.ndarray, state: dict[str, np.ndarray]):
        """Begin; `vector`: float32 [stop - start]; `state`: as in `Whole`."""
        rule = json.loads(begin.outer)
        outer, self._wire = create_outer(rule["name"], **rule["options"]), parse(rule["wire"])
        outer.restore(state)
        self.start, self.size, self._whole = begin.start, begin.stop - begin.start, begin.size
        start, stop = begin.start, begin.stop
        ranges = [slice(max(one, start) - start, min(end, stop) - start)
                  for one, end in rule["statistics"] if one < stop and end > start]
        self.store = Store(vector, begin.version, outer, self._wire, state.get(UNSENT),
                           statistics=ranges)
        self._pool = BufferPool()
        self._of: dict[int, Attachment] = {}  # worker -> its attachment
        self._by_name: dict[int, Attachment] = {}
        self._by_identity: dict[bytes, Attachment] = {}

    # Workers.

    def knows(self, identity: bytes) -> bool:
        """Return whether this is the socket of a worker that has introduced itself."""
        return identity in self._by_identity

    def attached(self, name: int) -> Attachment | None:
        """Return the attachment of this name; None: the log does not contain it (yet)."""
        return self._by_name.get(name)

    def present(self, identity: bytes, name: int) -> None:
        """Connect a worker that has proven that it owns the attachment of this name."""
        one = self._by_name[name]
        self._by_identity.pop(one.identity or b"", None)
        one.identity, self._by_identity[identity] = identity, one

    def take(self, identity: bytes, message: s.Slice, body: memoryview) -> s.Holds | None:
        """Take a chunk of a slice; return the notice for the server if it was the last, else None.

        Raises:
            WireError: no correct worker sends it.
        """
        one = self._by_identity.get(identity)
        if one is None or one.name != message.name:
            raise m.WireError("a slice from a worker that is not attached")
        if not one.take(message, body):
            return None
        return s.Holds(one.secret, message.seq, message.again, one.updates.square)

    # The log.

    def follow(self, message: m.Message) -> None:
        """Carry out a message of the log."""
        match message:
            case s.Admit():
                self._forget(message.worker)
                one = Attachment(message.worker, message.secret, *attachment(message.secret),
                                 Updates(self.size, self._pool, self._wire))
                self._of[message.worker] = self._by_name[one.name] = one
            case s.Dismiss():
                old = self._of.get(message.worker)
                if old is not None and old.secret == message.secret:
                    self._forget(message.worker)
            case s.Apply():
                held = self._of[message.worker].release(message.seq, message.again)
                self.store.accept(held, message.weight, steps=message.steps)
            case s.Drop():
                self._of[message.worker].release(message.seq, False)
            case s.Commit():
                self.store.commit(message.version)
            case _:
                raise m.WireError(f"{type(message).__name__} is not part of the log")

    def made(self) -> s.Made | None:
        """Return the notice of a version that the server does not know yet, or None."""
        norms = self.store.norms
        version, square = norms.popleft() if norms else (0, None)
        return None if square is None else s.Made(version, square)

    def missed(self, worker: int) -> tuple[bytes, int] | None:
        """Return socket and attachment's name of a worker that must resend its slice, or None."""
        one = self._of.get(worker)
        if one is None or one.identity is None or not one.resends():
            return None
        return one.identity, one.name

    def version(self, message: s.Send) -> tuple[bytes, Iterator[Frames]] | None:
        """Return the worker's socket and the messages for it, or None if it is not connected."""
        newest, one = self.store.latest, self._of.get(message.worker)
        if newest.version != message.version:
            raise RuntimeError(f"the log names version {message.version}, and here is "
                               f"{newest.version}")
        if one is None or one.identity is None or not self.size:
            return None
        return one.identity, self._chunks(message.request, newest, message.held)

    def collected(self, number: int) -> Iterator[Frames]:
        """Yield the messages with a checkpoint's content of this range."""
        newest, state = self.store.latest, self.store.state()
        assert newest.vector is not None
        head = s.Collected(number, newest.version, {name: v.size for name, v in state.items()})
        return itertools.chain([(m.encode(head),)],
                               floats_of(number, newest.vector, *state.values()))

    def _chunks(self, request: int, snapshot: Snapshot, held: int) -> Iterator[Frames]:
        words, base, in_blocks = snapshot.sendable(held)
        size = self._whole if base == m.NONE else words.size
        for offset, chunk in split(words):
            yield m.encode(m.Model(request, snapshot.version, self.start + offset, size,
                                   base, in_blocks=in_blocks)), chunk

    def _forget(self, worker: int) -> None:
        if (old := self._of.pop(worker, None)) is not None:
            del self._by_name[old.name]
            self._by_identity.pop(old.identity or b"", None)
