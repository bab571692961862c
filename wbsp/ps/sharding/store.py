"""The store of a server with shards: it counts versions, and collects one when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from wbsp import timeouts
from wbsp.core.decisions import Record
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.core.overflow import Reach
from wbsp.core.store import UNSENT, Snapshot, Store, Whole, initial_vector
from wbsp.ps.sharding.coordinator import ShardLost, Shards
from wbsp.tensors.blocks import Blocks
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.tensors.ops import bounds, largest
from wbsp.wire.assembly import VectorStream
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s

_GRAIN = 0.005  # seconds between two checks meanwhile


class _Collection:
    """A version that is being collected from all shards."""

    def __init__(self, version: int, size: int, shards: int, outer: OuterOptimizer,
                 future: Future[Whole]):
        self.version, self.future = version, future
        self._vector, self._bounds = np.empty(size, np.float32), bounds(size, shards)
        self._states: dict[int, dict[str, np.ndarray]] = {}  # shard -> of the outer step
        self._numbers = outer.NUMBERS
        self._heads: dict[int, s.Collected] = {}
        self._readers: dict[int, VectorStream] = {}

    def take(self, shard: int, message: m.Message, body: memoryview | None) -> bool:
        """Take a message of a shard; return whether it was the last of all.

        Raises:
            ShardLost: the message is invalid.
        """
        try:
            return self._take(shard, message, body)
        except (m.WireError, KeyError, AssertionError) as error:
            raise ShardLost(f"shard {shard} sent an invalid part of version {self.version}: "
                            f"{error!r}") from None

    def _take(self, shard: int, message: m.Message, body: memoryview | None) -> bool:
        start, stop = self._bounds[shard:shard + 2]
        if isinstance(message, s.Collected):
            assert message.version == self.version, f"version {message.version}"
            self._heads[shard] = message
            self._readers[shard] = VectorStream([stop - start, *message.state.values()])
            return False
        assert isinstance(message, s.Floats) and body is not None
        vectors = self._readers[shard].add(message.offset, body)
        if vectors is None:
            return False
        self._vector[start:stop] = vectors[0]
        self._states[shard] = dict(zip(self._heads[shard].state, vectors[1:], strict=True))
        del self._readers[shard]
        if len(self._states) < len(self._bounds) - 1:
            return False
        self._vector.flags.writeable = False
        self.future.set_result(Whole(Snapshot(self.version, self._vector), self._state()))
        return True

    def _state(self) -> dict[str, np.ndarray]:
        parts = [self._states[shard] for shard in sorted(self._states)]
        state = {name: first if name in self._numbers
                 else np.concatenate([part[name] for part in parts])
                 for name, first in parts[0].items()}
        for vector in state.values():
            vector.flags.writeable = False
        return state


class ShardedStore(Store):
    """Versions and the pending sum, whose tensors are in the shards."""

    def __init__(self, initial: np.ndarray, version: int, outer: OuterOptimizer, shards: Shards,
                 wire: Codec = FLOAT32, unsent: np.ndarray | None = None,
                 statistics: Sequence[slice] = ()):
        """Start; arguments as for `Store`.

        Raises:
            ValueError: `initial` is not finite.
        """
        super().__init__(None, version, outer)
        vector = initial_vector(initial)
        state = outer.state() | ({} if unsent is None else {UNSENT: unsent})
        self.reach = Reach(outer, vector, state, wire.lossless)
        whole = Whole(Snapshot(version, vector), state)
        self._size = vector.size
        self._shards = shards
        shards.begin(whole, outer, wire, statistics, self._take)
        # the newest requested one; kept, so that it is requested once
        self._whole = version, Future[Whole]()
        self._whole[1].set_result(whole)
        outer.restore({})
        self._made: dict[int, list[float]] = {}  # version -> squared norms of ranges of its sum
        self._collections: dict[int, _Collection] = {}  # number -> those under way
        self._number = 0

    @property
    def size(self) -> int:
        return self._size

    def check(self, update: np.ndarray | Blocks | None) -> None:
        if update is not None:
            raise ValueError("an update with tensors, but the shards have the tensors")

    def apply(self, record: Record, update: np.ndarray | Blocks | None,
              square: float | None = None) -> None:
        self._shards.log(record)
        super().apply(record, update)

    def _summed(self, version: int) -> None:
        """Do nothing: each shard reports the norm of its range."""

    def _measure(self) -> None:
        """Do nothing: each collected version is measured when it arrives."""

    def whole(self) -> Future[Whole]:
        version, future = self._whole
        if version == self.latest.version:
            return future
        self._number += 1
        one = _Collection(self.latest.version, self._size, len(self._shards), self.outer,
                          self._shards.on.scheduler.future())
        self._collections[self._number] = one
        self.reach.measuring()
        self._whole = self.latest.version, one.future
        self._shards.tell(s.Collect(self._number))
        return one.future

    def settle(self) -> None:
        """Wait for all requested versions, and the newest.

        Raises:
            ShardLost: a shard is lost, or does not send.
        """
        self.whole()
        end = self._shards.on.clock.monotonic() + timeouts.SHARDS_LAST
        while self._collections:
            if self._shards.on.clock.monotonic() > end:
                raise ShardLost("the shards did not send a version within "
                                f"{timeouts.SHARDS_LAST:g} s")
            self._shards.serve()
            self._shards.on.clock.sleep(_GRAIN)

    def give_up(self) -> None:
        """Fail all requests for a version, because the shards are lost."""
        for one in self._collections.values():
            one.future.set_exception(ShardLost("a shard is lost"))
        self._collections.clear()

    def _take(self, shard: int, message: m.Message, body: memoryview | None) -> None:
        if isinstance(message, s.Made):
            parts = self._made.setdefault(message.version, [])
            parts.append(message.square)
            if len(parts) == len(self._shards):
                self.norms.append((message.version, sum(self._made.pop(message.version))))
            return
        number = message.number if isinstance(message, s.Collected | s.Floats) else 0
        one = self._collections.get(number)
        if one is None:
            raise ShardLost(f"shard {shard} sent version number {number} without a request")
        if one.take(shard, message, body):
            del self._collections[number]
            if number == self._number:
                whole = one.future.result()
                self.reach.measured(largest(whole.snapshot.vector)
                                    + largest(whole.outer.get(UNSENT)))
