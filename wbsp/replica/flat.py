"""A live model as one flat float32 vector: read, cut, adopt.

Anchor, difference and versions lie where the variables lie: in numpy arrays on a CPU, else in
arrays of the back end, whose operations are only enqueued here. A reader of the values waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wbsp.replica.base import Variables, Vector
from wbsp.tensors.layout import TensorSpec

_ROUNDING = 2e-6  # relative to the largest weight


class FlatReplica:
    """See `base.Replica`.

    Attributes:
        writes: how often it has written to the variables.
    """

    def __init__(self, variables: Variables, layout: Sequence[TensorSpec], rounds: bool,
                 derive: Callable[[], object] = lambda: None):
        """
        rounds: some variables hold fewer digits than float32
        derive: called after variables that other code had changed were reset
        """
        self.layout = layout
        self._rounds = rounds
        self._derive = derive
        self._variables = variables
        self._anchor = variables.gather()
        self._x = self._anchor  # None: unknown, since a step has changed it
        self.writes = 0

    def read(self) -> np.ndarray:
        self.hold()
        return self._host(self._x)

    def hold(self) -> None:
        if self._x is None:
            self._x = self._variables.gather()

    def put_back(self) -> bool:
        if self._x is None:
            return False
        found = self._variables.gather()
        if not self._host(found != self._x).any():
            return False
        self.writes += 1
        self._variables.scatter(self._x)
        differs = _differs(self._host(found), self._host(self._x))
        if differs:
            self._derive()
        return differs

    def stepped(self) -> None:
        self._x = None

    def cut(self) -> Vector:
        if self._x is None:
            update, self._anchor = self._variables.cut(self._anchor)
            self._x = self._anchor
        else:
            update = self._variables.difference(self._x, self._anchor)
            self._anchor = self._x
        return self._variables.send(update)

    def bring(self, vector: np.ndarray) -> Any:
        return self._variables.bring(vector)

    def adopt(self, vector: Any, how: str) -> None:
        self.writes += 1
        if self._rounds:
            self._adopt_rounded(vector, how)
            return
        if how == "replace":
            self._x = vector
            self._variables.scatter(vector)
        elif self._x is None:
            self._x = self._variables.rebase(vector, self._anchor)
        else:
            self._x = vector + (self._x - self._anchor)
            self._variables.scatter(self._x)
        self._anchor = vector

    def _adopt_rounded(self, vector: Any, how: str) -> None:
        """Adopt a version, rounded to what the variables hold.

        The rounding of W is no progress: the anchor is the new x minus the uncut progress.
        """
        self.hold()
        progress = None if how == "replace" else self._x - self._anchor
        self._variables.scatter(vector if progress is None else vector + progress)
        self._x = self._variables.gather()
        self._anchor = self._x if progress is None else self._x - progress

    def _host(self, vector: Any) -> np.ndarray:
        return np.asarray(self._variables.send(vector))


def _differs(found: np.ndarray, x: np.ndarray) -> bool:
    """Return whether `found` differs from x by more than rounding: on TensorFlow `SwapEMAWeights`
    swaps by additions."""
    where = (found != x) & ~(np.isnan(found) & np.isnan(x))
    with np.errstate(invalid="ignore"):
        gap = np.abs(found[where] - x[where]).max(initial=0)
    return not gap <= _ROUNDING * np.abs(x, where=np.isfinite(x), out=np.zeros_like(x)).max()
