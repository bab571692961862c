"""The progress of a site whose floats are in shards: each shard has the part of its range.

What changes it is in the log, so that all shards cut and adopt at one place. The cut itself comes
with the next version that is collected, which the checkpoint needs without which no cut leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from wbsp.core.overflow import Reach
from wbsp.tensors.ops import largest
from wbsp.tensors.site_progress import CUT, OWED, SiteProgress
from wbsp.wire.messages import sharding as s

_MOST = 3e38  # of a value; float32 ends at 3.4e38


class ShardedProgress(SiteProgress):
    """The server's side; `anchor` is in the shards only, and `cut` is None until it has come.

    Attributes:
        changes: number of changes so far.
    """

    def __init__(self, begun: SiteProgress, reach: Reach,
                 tell: Callable[[s.Cut | s.Settle], None]):
        """Start with what the shards begin with; `reach`: of the store; `tell`: tells all shards.
        """
        self.cut, self.owed = begun.cut, begun.owed
        self.dropped = False
        self.changes = 0
        self._reach, self._tell = reach, tell
        self._anchor = largest(begun.anchor)  # or more: bound of its values
        self._comes = False  # the newest cut

    def state(self) -> dict[str, np.ndarray]:
        """Return what the shards do not have."""
        return {} if self.owed is None else {OWED: self.owed}

    def take(self, x: np.ndarray | None) -> None:
        self._change(s.Cut())
        self.cut, self._comes = None, True
        self._anchor = self._reach.version

    def answered(self) -> None:
        self._change(s.Settle())
        self.cut = None

    def adopt(self, above: np.ndarray, x: np.ndarray | None, drop: bool = False) -> np.ndarray:
        """Return `above`, on which the shards put their progress.

        The progress is also dropped if the sum might not be finite. One shard cannot know that of
        the others, so bounds of the values decide.
        """
        most, progress = largest(above), self._reach.version + self._anchor
        self.dropped = drop or most + progress > _MOST
        self._anchor = most
        # what a lossy format has not sent is in the bound of the version
        self._reach.adopted(most + (0.0 if self.dropped and self._reach.lossless else progress))
        self._reach.since = math.inf  # a version that is being collected does not bound this one
        return above

    def take_back(self) -> None:
        assert self.cut is not None, "there is a cut to take back"
        self._change(s.Settle(True))
        self._anchor += largest(self.cut)
        self.cut = None

    def collected(self, changes: int, state: Mapping[str, np.ndarray]) -> None:
        """Take the cut from a collected `state`, as it was after so many changes."""
        if self._comes and changes == self.changes:
            self.cut, self._comes = state[CUT], False

    def _change(self, message: s.Cut | s.Settle) -> None:
        self.changes += 1
        self._tell(message)
