"""A table that grows as files are read."""

from __future__ import annotations

import numpy as np


class Rows:
    """A table as one structured array, which is assembled when it is read."""

    def __init__(self, dtype: np.dtype):
        self._parts = [np.empty(0, dtype)]
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> np.ndarray:
        """All rows, structured [rows]."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def append(self, rows: np.ndarray) -> None:
        self._parts.append(rows)
        self._size += len(rows)

    def keep(self, chosen: np.ndarray | slice) -> None:
        """Keep the rows of the mask `chosen`, bool [rows], or of a slice."""
        self._parts = [self.view[chosen]]
        self._size = len(self._parts[0])
