"""How large the values of a version can be, so that none is made that is not finite.

Finite updates may add up to an infinite version, from which no server and no standby could go on.
To look at each sum before it is made would be a pass over the model a push. So bounds are added up
in place of values: of a version, of what is pending, of the outer step's state. They are above the
true magnitudes, and far below what float32 holds in any training that gets anywhere.
"""

from __future__ import annotations

import numpy as np

from wbsp.core.decisions import Accepted, Committed, Record, Resent
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.tensors.ops import largest

MOST = 1e38  # of a value; float32 ends at 3.4e38, and sums are rounded


class Reach:
    """Bounds of a store's values; no tensors.

    since: what versions have changed by since `measured` was asked for
    """

    def __init__(self, outer: OuterOptimizer, vector: np.ndarray | None,
                 state: dict[str, np.ndarray], lossless: bool):
        """`vector`: of the version, float32 [size]; `state`: as of a `Whole`; `lossless`: what is
        sent of a change is all of it."""
        self._outer = outer
        self._lossless = lossless
        # what is unsent belongs to a later version
        self.version = largest(vector) + largest(state.get("unsent"))
        self._state = {name: largest(values) for name, values in state.items() if name != "unsent"}
        self.pending = self.since = 0.0

    def fits(self, weight: float, most: float) -> bool:
        """Whether weight * update, of values up to `most`, can be added to what is pending."""
        pending = self.pending + abs(weight) * most
        step, state = self._outer.reach(pending, self._state)
        return max(abs(weight), most, self.version + self._sent(step), *state.values()) <= MOST

    def follow(self, record: Record, most: float) -> None:
        """A decision was carried out; `most`: of the values of the update that it is about."""
        if isinstance(record, Accepted | Resent):
            self.pending += abs(record.weight if isinstance(record, Accepted) else 1.0) * most
        elif isinstance(record, Committed):
            step, self._state = self._outer.reach(self.pending, self._state)
            self.version += self._sent(step)
            self.since += self._sent(step)
            self.pending = 0.0

    def measured(self, version: float, pending: float | None = None) -> None:
        """The values of the version that was the newest when `since` was 0 are at most so large,
        and those of the pending sum, where that is known."""
        self.version = min(self.version, version + self.since)
        if pending is not None:
            self.pending = min(self.pending, pending)

    def _sent(self, step: float) -> float:
        """What of a change, and of those before it, a format may put into one version."""
        return step if self._lossless else 2.02 * step
