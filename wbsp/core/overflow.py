"""Bounds on the values of a version, so that every version is finite.

Finite updates may add up to an infinite version, from which no server and no standby could
continue. Checking each sum beforehand would cost a pass over the model for each push. So this
module adds bounds in place of values: of a version, of the pending sum, of the outer step's state.
They are above the true magnitudes, and far below the limit of float32 in any training that
converges.
"""

from __future__ import annotations

import numpy as np

from wbsp.core.decisions import Accepted, Committed, Record, Resent
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.tensors.ops import largest

MOST = 1e38  # of a value; float32 ends at 3.4e38, and sums are rounded


class Reach:
    """Bounds of a store's values; no tensors.

    Attributes:
        since: bound of the change of versions since the last `measured`.
        lossless: the wire format sends all of a change.
    """

    def __init__(self, outer: OuterOptimizer, vector: np.ndarray | None,
                 state: dict[str, np.ndarray], lossless: bool):
        """Bound a version.

        Args:
            outer: the outer optimizer.
            vector: of the version, float32 [size], or None.
            state: as in `Whole`.
            lossless: the wire format sends all of a change.
        """
        self._outer = outer
        self.lossless = lossless
        # the unsent part belongs to a later version
        self.version = largest(vector) + largest(state.get("unsent"))
        self._state = {name: largest(values) for name, values in state.items() if name != "unsent"}
        self.pending = self.since = 0.0

    def fits(self, weight: float, most: float) -> bool:
        """Return whether weight * update, of values up to `most`, can be added to the pending sum.
        """
        pending = self.pending + abs(weight) * most
        step, state = self._outer.reach(pending, self._state)
        return max(abs(weight), most, self.version + self._sent(step), *state.values()) <= MOST

    def follow(self, record: Record, most: float) -> None:
        """Follow a decision; `most`: bound of the values of its update."""
        if isinstance(record, Accepted | Resent):
            self.pending += abs(record.weight if isinstance(record, Accepted) else 1.0) * most
        elif isinstance(record, Committed):
            step, self._state = self._outer.reach(self.pending, self._state)
            self.version += self._sent(step)
            self.since += self._sent(step)
            self.pending = 0.0

    def adopted(self, version: float) -> None:
        """Note a version of this magnitude, which is no sum of the one before."""
        self.version, self.since = version, 0.0

    def measuring(self) -> None:
        """Note that the newest version is being measured."""
        self.since = 0.0

    def measured(self, version: float, pending: float | None = None) -> None:
        """Replace bounds by measured magnitudes.

        Args:
            version: magnitude of the version that was the newest when `since` was 0.
            pending: magnitude of the pending sum, if known.
        """
        self.version = min(self.version, version + self.since)
        if pending is not None:
            self.pending = min(self.pending, pending)

    def _sent(self, step: float) -> float:
        """Bound the part of a change, and of earlier ones, that a format puts into one version."""
        return step if self.lossless else 2.02 * step
