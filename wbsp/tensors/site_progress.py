"""The replica of a site: its newest version is the live model, and its versions are the steps.

No sockets, threads or clocks: a real site and one in virtual time both keep this object.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wbsp.tensors.ops import is_finite

# Names of further vectors in a checkpoint.
ANCHOR, CUT, OWED = "above.anchor", "above.cut", "above.owed"


class SiteProgress:
    """Progress of a site: the sum of what its versions have added since its anchor.

    It is to a site what `wbsp.replica.base.Replica` is to a worker.

    All vectors are float32 [size] and never written again.

    Attributes:
        anchor: the site's version at its last cut, or the version from above that it adopted last.
        cut: the newest cut, until it is answered; else None.
        owed: what the format between had not sent before that cut, or since its answer; None:
            nothing.
        dropped: the newest `adopt` has left out the uncut progress.
    """

    def __init__(self, anchor: np.ndarray, cut: np.ndarray | None = None,
                 owed: np.ndarray | None = None):
        self.anchor = anchor
        self.cut = cut
        self.owed = owed
        self.dropped = False

    @classmethod
    def of(cls, state: Mapping[str, np.ndarray], first: np.ndarray) -> SiteProgress:
        """Return the progress of a `state`, or of a site that begins with version `first`."""
        return cls(state.get(ANCHOR, first), state.get(CUT), state.get(OWED))

    def state(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint holds of it."""
        found = {ANCHOR: self.anchor, CUT: self.cut, OWED: self.owed}
        return {name: vector for name, vector in found.items() if vector is not None}

    def take(self, x: np.ndarray) -> None:
        """Cut x - anchor, and set anchor = x; `x`: the site's newest version."""
        self.cut = _kept(x - self.anchor)
        self.anchor = x

    def answered(self, owed: np.ndarray | None) -> None:
        """Note that the newest cut is answered; `owed`: what the format has not sent of it."""
        self.cut, self.owed = None, owed

    def adopt(self, above: np.ndarray, x: np.ndarray, drop: bool = False) -> np.ndarray:
        """Return the site's next version, above + (x - anchor), and set anchor = above.

        Args:
            above: the version from above.
            x: the site's newest version.
            drop: leave out the uncut progress, because the server above could not use it.
        """
        progress = x - self.anchor
        self.anchor = _kept(above)
        self.dropped = False
        if not drop:
            found: np.ndarray = np.add(above, progress, out=progress)
            if is_finite(found):
                return found
        self.dropped = True
        return above.copy()

    def take_back(self) -> None:
        """Turn the newest cut into progress again, because the server above lacks it."""
        assert self.cut is not None, "there is a cut to take back"
        self.anchor = _kept(self.anchor - self.cut)
        self.cut = None


def _kept(vector: np.ndarray) -> np.ndarray:
    vector.flags.writeable = False
    return vector
