"""How many bytes updates and versions have on the wire, in the format of the run."""

from __future__ import annotations

from wbsp.formats import Format
from wbsp.ps.store import Snapshot


class Payload:
    """Bytes of what is sent of a model that has `model_bytes` as float32.

    wire:    the run's format
    update:  bytes of an update
    fetched: bytes of all versions that have arrived
    """

    def __init__(self, model_bytes: float, wire: Format):
        self._whole, self.wire, self.fetched = model_bytes, wire, 0.0
        self.update = model_bytes if wire.lossless else 4 * wire.words(round(model_bytes / 4))

    def version(self, snapshot: Snapshot, held: int | None) -> float:
        """Bytes of a version for one who holds version `held`; None: no version, or float32."""
        found = None if held is None else snapshot.since(held)
        if found is None:
            return self._whole
        return self._whole * sum(one.share for one in found)
