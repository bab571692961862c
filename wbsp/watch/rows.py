"""A table that grows as files are read."""

from __future__ import annotations

import numpy as np


class Rows:
    """A table that grows at its end, as one structured array; appending costs amortized O(1)."""

    def __init__(self, dtype: np.dtype):
        self._array = np.empty(1024, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> np.ndarray:
        """All rows, structured [rows]; valid until the next change."""
        return self._array[:self._size]

    def append(self, rows: np.ndarray) -> None:
        size = self._size + len(rows)
        if size > len(self._array):
            grown = np.empty(max(size, 2 * len(self._array)), self._array.dtype)
            grown[:self._size] = self.view
            self._array = grown
        self._array[self._size:size] = rows
        self._size = size

    def truncate(self, size: int) -> None:
        self._size = size

    def keep(self, chosen: np.ndarray) -> None:
        """Keep the rows of the mask `chosen`, bool [rows]."""
        kept = self.view[chosen]
        self._array[:len(kept)] = kept
        self._size = len(kept)
