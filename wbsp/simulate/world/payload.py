"""Bytes of updates and versions on the wire, in the format of the run."""

from __future__ import annotations

from wbsp.core.store import Snapshot
from wbsp.tensors.codecs import Codec, Ranges
from wbsp.tensors.ops import bounds


class Payload:
    """Bytes of the messages for a model of `model_bytes` as float32.

    Attributes:
        wire: the run's format; each of several `shards` encodes its range of the model by itself.
        update: bytes of an update.
        fetched: bytes of all versions that have arrived.
    """

    def __init__(self, model_bytes: float, wire: Codec, size: int = 0, shards: int = 1):
        """Compute the bytes; `size`: of the computed vectors, which may differ from `model_bytes`.
        """
        self._whole, self.wire, self.fetched, self.update = model_bytes, wire, 0.0, model_bytes
        if not wire.lossless:
            floats = round(model_bytes / 4)
            if shards > 1:
                self.wire = Ranges(wire, bounds(size, shards)) if size else wire
                wire = Ranges(wire, bounds(floats, shards))
            self.update = 4 * wire.words(floats)

    def arrives(self, size: float) -> None:
        """Count the bytes of a version that has arrived."""
        self.fetched += size

    def version(self, snapshot: Snapshot, held: int | None) -> float:
        """Return the bytes of a version for a worker with version `held`; None: whole floats."""
        found = None if held is None else snapshot.since(held)
        if found is None:
            return self._whole
        return self._whole * sum(one.share for one in found)
