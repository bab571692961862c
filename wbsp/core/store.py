"""The versioned store: immutable snapshots, and one pending sum.

It is independent of synchronization models, sockets and clocks. A store made with `initial=None`
counts versions and holds no tensor, for timing studies of thousands of workers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from wbsp.core.decisions import Accepted, Adopted, Committed, Record, Resent
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.core.overflow import Reach
from wbsp.sync.base import NOT_FINITE, TOO_LARGE
from wbsp.tensors import blocks
from wbsp.tensors.blocks import Blocks
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.tensors.error_feedback import ErrorFeedback
from wbsp.tensors.ops import add_weighted, is_finite, largest, squared
from wbsp.tensors.site_progress import SiteProgress

UNSENT = "unsent"  # entry of a `Whole`: the part that the versions' format has not sent yet
_NOTHING = np.empty(0, np.float32)
_KEPT = 256  # differences, at most
_TYPICAL = 1 << 20  # floats of a model whose tensors are not known


class Difference(NamedTuple):
    """The step from version `base` to the next: base + decoded words, float32; or, where versions
    travel as float32, the blocks in which the two differ."""

    base: int
    share: float  # of the bytes of the whole version
    words: np.ndarray | Blocks | None  # see `wbsp.tensors.codecs`; None without tensors
    where: np.ndarray | None = None  # indices of blocks, see `wbsp.tensors.blocks`; None: words


class Sendable(NamedTuple):
    """What makes a version at a worker.

    Attributes:
        words: float32, of the differences from version `base`; or the whole vector.
        base: -1: the whole vector.
        in_blocks: of the version, or of each difference's words, only some blocks are sent.
    """

    words: np.ndarray
    base: int = -1
    in_blocks: bool = False


class Snapshot(NamedTuple):
    """Version `version` of the global model; all processes that hold it hold equal bytes.

    Attributes:
        version: its number.
        vector: float32 [size], or None without tensors.
        differences: the last ones that led to it, oldest first, as many as are shorter than the
            whole.
    """

    version: int
    vector: np.ndarray | None  # float32 [size], never written again
    differences: tuple[Difference, ...] = ()

    def since(self, version: int) -> tuple[Difference, ...] | None:
        """Return the differences from `version` to this one, or None if they are not available."""
        if version == self.version:
            return ()
        for index, one in enumerate(self.differences):
            if one.base == version:
                return self.differences[index:]
        return None

    def sendable(self, held: int) -> Sendable:
        """Return what to send to a worker that has version `held`."""
        found = self.since(held)
        vector = self.vector
        assert vector is not None, "there is nothing to send without tensors"
        if found is None:
            return Sendable(vector)
        if found and found[0].where is not None:
            where = blocks.union([one.where for one in found if one.where is not None])
            if blocks.is_worth(where.size, vector.size):
                return Sendable(blocks.of(vector, where).words, held, True)
            return Sendable(vector)
        words = [one.words for one in found if one.words is not None]
        whole = [one for one in words if isinstance(one, np.ndarray) and one.size]
        if not any(isinstance(one, Blocks) for one in words):
            return Sendable(whole[0] if len(whole) == 1 else np.concatenate([_NOTHING, *whole]),
                            held)
        # An empty commit adds nothing, not even 0 to -0.0.
        joined = np.concatenate([(one if isinstance(one, Blocks) else blocks.of_all(one)).words
                                 for one in words if isinstance(one, Blocks) or one.size])
        return Sendable(joined, held, True) if joined.size < vector.size else Sendable(vector)


class Whole(NamedTuple):
    """A version with its tensors, the state of the outer step, the `UNSENT` part, and a site's
    progress."""

    snapshot: Snapshot
    outer: dict[str, np.ndarray]


def initial_vector(initial: np.ndarray) -> np.ndarray:
    """Return a read-only copy of `initial`, float32 [size].

    Raises:
        ValueError: it is not finite.
    """
    vector = np.array(initial, np.float32).ravel()
    if not is_finite(vector):
        raise ValueError("the initial model holds NaN or infinite values")
    vector.flags.writeable = False
    return vector


class Store:
    """W_v, and the pending sum for W_{v+1}.

    Invariant: W_v = W_0 + the sum of weight * update over all updates accepted before the v-th
    commit; or, with another outer step than identity, W_{v+1} = W_v + step of such a sum. With a
    lossy format, W_{v+1} = W_v + the sent part of that step, and the rest is part of the next step:
    see `ErrorFeedback`.

    Attributes:
        progress: of a site, which its owner changes; None: this is no site, or there are no
            tensors.
    """

    progress: SiteProgress | None

    def __init__(self, initial: np.ndarray | None, version: int = 0,
                 outer: OuterOptimizer | None = None, wire: Codec = FLOAT32,
                 unsent: np.ndarray | None = None, site: Mapping[str, np.ndarray] | None = None,
                 statistics: Sequence[slice] = ()):
        """Start with `initial`.

        Args:
            initial: float32 [size], copied; None: no tensors.
            version: its number.
            outer: the outer optimizer.
            wire: the run's format.
            unsent: as in a `Whole`, float32 [size]; it is not written to.
            site: as of `SiteProgress.of`; None: this is no site.
            statistics: ranges that change by the pending sum itself, whatever the outer step.

        Raises:
            ValueError: `initial` is not finite.
        """
        self.outer = outer or OuterOptimizer()
        self._statistics = () if type(self.outer) is OuterOptimizer else statistics
        self._sending = ErrorFeedback(wire.versions, unsent)
        self._pending: np.ndarray | Blocks | None = None
        self._pool = BufferPool()  # of versions that are not made in an update's memory
        self.accepted = 0  # updates in the pending sum
        self._weight = 0.0  # sum of these updates' weights
        self._steps = 0.0  # sum of weight * steps of these updates; see `Accepted.steps`
        self._square: float | None = 0.0  # squared norm of the pending sum; None: not known
        # (version, squared norm of the pending sum that became it, float64; None: not known). The
        # reader removes each entry.
        self.norms = deque[tuple[int, float | None]]()
        self.progress = vector = None
        if initial is not None:
            vector = initial_vector(initial)
        self.latest = Snapshot(version, vector)
        self.reach = Reach(self.outer, vector, self.state(), wire.lossless)
        if site is not None and vector is not None:
            self.progress = SiteProgress.of(site, vector)

    @property
    def size(self) -> int:
        """Number of float32 values of the model (0 without tensors)."""
        return 0 if self.latest.vector is None else self.latest.vector.size

    def whole(self) -> Future[Whole]:
        """Return the newest version with all that a checkpoint holds of it."""
        future: Future[Whole] = Future()
        future.set_result(Whole(self.latest, self.state()))
        return future

    def settle(self) -> None:
        """Wait until the newest version is complete."""

    def give_up(self) -> None:
        """Fail all requests for a version that is not complete."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the state of the outer step, the unsent part, and a site's progress, as
        `OuterOptimizer.state` does."""
        unsent = self._sending.unsent
        return self.outer.state() | ({} if unsent is None else {UNSENT: unsent}) | (
            {} if self.progress is None else self.progress.state())

    def check(self, update: np.ndarray | Blocks | None) -> None:
        """Raise ValueError if `update` cannot be one of this model."""
        vector = self.latest.vector
        if vector is None or (isinstance(update, Blocks) and update.size == vector.size):
            return
        if isinstance(update, Blocks):
            raise ValueError(f"update has {update.size} floats, the model {vector.size}")
        if update is None:
            raise ValueError(f"there is no update, the model is float32{list(vector.shape)}")
        if update.shape != vector.shape or update.dtype != np.float32:
            raise ValueError(f"update is {update.dtype}{list(update.shape)}, the model "
                             f"float32{list(vector.shape)}")

    def objection(self, weight: float, most: float) -> str | None:
        """Return why weight * update cannot be part of a version, or None.

        Args:
            weight: of the update.
            most: largest magnitude of the update's values; not finite if they are not.
        """
        if not math.isfinite(most):
            return NOT_FINITE
        if self.reach.fits(weight, most):
            return None
        self._measure()
        return None if self.reach.fits(weight, most) else TOO_LARGE

    def _measure(self) -> None:
        """Measure the values, because bounds only grow."""
        unsent = largest(self._sending.unsent)
        self.reach.measuring()
        pending = None if self._pending is None else blocks.floats(self._pending)
        self.reach.measured(largest(self.latest.vector) + unsent, largest(pending))

    def apply(self, record: Record, update: np.ndarray | Blocks | None,
              square: float | None = None) -> None:
        """Apply a decision to the global model; `update` is the decision's; `square`: its squared
        norm, if known.
        """
        if isinstance(record, Accepted):
            self.accept(update, record.weight, square, record.steps)
        elif isinstance(record, Resent):
            self.accept(update, record.weight, square)
        elif isinstance(record, Committed):
            self.commit(record.version)
        elif isinstance(record, Adopted):
            assert not isinstance(update, Blocks) and not self.accepted, "it comes at rest, whole"
            self.adopt(record.version, update)

    def adopt(self, version: int, vector: np.ndarray | None) -> Snapshot:
        """Make `vector`, float32 [size], the newest version; the store owns it from here on.

        It is sent whole, because it is no sum of what workers have. The unsent part stays.
        """
        self.latest = Snapshot(version, vector)
        if vector is None:
            return self.latest
        vector.flags.writeable = False
        self.reach.adopted(largest(vector) + largest(self._sending.unsent))
        return self.latest

    def accept(self, update: np.ndarray | Blocks | None, weight: float,
               square: float | None = None, steps: int = 0) -> None:
        """Add weight * update (float32 [size], finite) to the pending sum.

        `square` is as in `apply`, `steps` as in `Accepted`. The store owns the update from here on;
        its memory may become the next version's.
        """
        if update is not None and self.latest.vector is not None:
            self._pending = _sum(self._pending, update, weight)
        self._square = None if self.accepted or square is None else weight**2 * square
        self.accepted += 1
        self._weight += weight
        self._steps += weight * steps

    def commit(self, version: int | None = None) -> Snapshot:
        """Commit the pending updates as a new version, numbered `version` or the next number."""
        base, vector, _ = self.latest
        words: np.ndarray | Blocks = _NOTHING
        share, where = 0.0, None
        self._summed(base + 1 if version is None else version)
        if vector is None:
            share = self._sending.wire.words(_TYPICAL, self.accepted) / _TYPICAL
        elif self._pending is None:
            where = blocks.union([]) if self._sends_blocks else None
        elif isinstance(self._pending, Blocks) and self._sends_blocks:
            before, vector = vector, self._pool.take(vector.size)
            np.copyto(vector, before)
            self._pending.add_to(vector)
            vector.flags.writeable = False
            where = self._pending.where
            share = blocks.WORDS * where.size / vector.size
        else:
            before, words, change = vector, *self._sent(self._pending, vector)
            vector = np.add(before, change, out=change)
            vector.flags.writeable = False
            if isinstance(words, Blocks):
                share = (1 + blocks.WORDS * words.where.size) / vector.size
            else:
                share = words.size / vector.size
            if self._sending.wire.lossless:
                words = _NOTHING
                if isinstance(self._pending, Blocks):
                    where = blocks.changed(vector, before)
                    share = 0.0 if where is None else blocks.WORDS * where.size / vector.size
        made = Difference(base, share, None if vector is None else words, where)
        self._pending = None
        self.accepted, self._weight, self._steps = 0, 0.0, 0.0
        self.latest = Snapshot(base + 1 if version is None else version, vector,
                               self._differences(made))
        return self.latest

    def _sent(self, pending: np.ndarray | Blocks,
              vector: np.ndarray) -> tuple[np.ndarray | Blocks, np.ndarray]:
        """Return the words that are sent of the step that a pending sum makes, and what they mean,
        float32 [size].

        Args:
            pending: the sum; if it is Blocks, so are step and words, if most are zero.
            vector: the present version.
        """
        wire = self._sending.wire
        summed = pending.whole() if isinstance(pending, Blocks) else pending
        step = self._step(summed)
        if not isinstance(pending, Blocks) or wire.lossless or not wire.in_blocks:
            return self._sending.send(step)
        words, change = self._sending.send(blocks.found(step) or step, vector)
        return blocks.found(words) or words, change

    def _step(self, pending: np.ndarray) -> np.ndarray:
        """Return the outer step from a pending sum, whose memory it may use, float32 [size]."""
        kept = [pending[at].copy() for at in self._statistics]
        for at in self._statistics:
            pending[at] = 0  # no momentum of theirs
        step = self.outer.step(pending, self._weight, self._steps / (self._weight or 1.0))
        for at, values in zip(self._statistics, kept, strict=True):
            step[at] = values
        return step

    def _summed(self, version: int) -> None:
        """Note the norm of the pending sum, of which `version` is made."""
        square = None
        if self.latest.vector is not None:
            square = self._square  # of a single update, which needs no pass
            if square is None:
                pending = self._pending
                square = 0.0 if pending is None else squared(blocks.floats(pending))
        self.norms.append((version, square))
        self._square = 0.0

    def new_norms(self) -> Iterator[tuple[int, float | None]]:
        """Yield, once, the versions since the last call, and the squared norms of their sums."""
        while self.norms:
            yield self.norms.popleft()

    @property
    def _sends_blocks(self) -> bool:
        """True if a version differs from the one before in the blocks of the pending sum alone."""
        return (self._sending.wire.lossless and self._sending.unsent is None
                and type(self.outer) is OuterOptimizer)

    def _differences(self, newest: Difference) -> tuple[Difference, ...]:
        """Return the newest difference, and earlier ones while all are shorter than a version."""
        if self._sending.wire.lossless and newest.where is None:
            return ()
        kept = (*self.latest.differences, newest)[-_KEPT:]
        while kept and sum(one.share for one in kept) >= 1:
            kept = kept[1:]
        return kept


def _sum(pending: np.ndarray | Blocks | None, update: np.ndarray | Blocks,
         weight: float) -> np.ndarray | Blocks:
    """Return pending + weight * update; the memory of both may be used."""
    if isinstance(update, Blocks):
        part = Blocks(update.size, update.where, update.values * np.float32(weight))
        if pending is None:
            return part
        if isinstance(pending, Blocks):
            return pending.plus(part)
        part.add_to(pending)
        return pending
    if isinstance(pending, Blocks):
        total = _sum(None, update, weight)
        assert isinstance(total, np.ndarray)
        pending.add_to(total)
        return total
    if pending is not None:
        add_weighted(pending, update, weight)
        return pending
    total = update if update.flags.writeable else np.empty_like(update)
    if weight != 1.0 or total is not update:
        np.multiply(update, np.float32(weight), out=total)
    return total
