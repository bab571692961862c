"""What the workers' threads did when, read as it is written: one table of spans for a run.

The table grows at its end, so a page that has the first n spans requests those from n on. If
earlier rows change, as after a server's resumption, `generation` increases, and the page requests
the table again.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from wbsp.runlog.rows import Rows
from wbsp.runlog.spans import ROW, Lives, Span, files_of_workers, rows_of
from wbsp.runlog.tail import Tail

MOST = 2_000_000  # spans of a run that a page receives; above that, neighbours are merged


class SpanLog:
    """The spans of all workers of the run in `folder` so far, without those that were undone."""

    def __init__(self, folder: Path, generation: int = 0):
        self._folder = folder
        self._tails: dict[int, Tail] = {}
        self._lives: dict[int, Lives] = {}  # of each worker
        self._rows = Rows(ROW)
        self.grain = 0.0  # seconds within which spans have lost their order; 0: none has
        self.generation = generation

    @property
    def rows(self) -> np.ndarray:
        """Structured array of ROW, [spans]; in order of time in each lane."""
        return self._rows.view

    @property
    def workers(self) -> list[int]:
        """Indices of the workers that have written a file."""
        return sorted(self._tails)

    def read(self) -> bool:
        """Read new spans; return whether there were any. Raises Replaced and ValueError as `Tail`.
        """
        for worker, path in files_of_workers(self._folder).items():
            if worker not in self._tails:
                self._tails[worker] = Tail(path, msgspec.json.Decoder(Span))
                self._lives[worker] = Lives()
        changed = False
        for worker, tail in self._tails.items():
            for _, spans in tail.blocks():
                changed = True
                self._add(worker, rows_of(worker, spans))
        if len(self._rows) > MOST:
            self._thin(MOST // 2)
        return changed

    def _add(self, worker: int, rows: np.ndarray) -> None:
        """Append spans of `worker`."""
        for part, since in self._lives[worker].split(rows):
            if since is not None:
                old = self._rows.view
                self._rows.keep((old["lane"] // 2 != worker) | (old["t"] + old["seconds"] <= since))
                self.generation += 1
            self._rows.append(rows[part])

    def _thin(self, most: int) -> None:
        """Merge spans until there are at most `most`. Within cells of `grain` seconds, a lane keeps
        its seconds of each phase, in one span a phase, and loses their order."""
        rows = self.rows
        begin, end = float(rows["t"].min()), float((rows["t"] + rows["seconds"]).max())
        lanes = len(np.unique(rows["lane"]))
        grain = max(2 * self.grain, (end - begin) * lanes / most)
        while len(thinned := together(rows, grain)) > most:
            grain *= 2
        self.grain = grain
        self._rows.keep(slice(0))
        self._rows.append(thinned)
        self.generation += 1


def together(rows: np.ndarray, grain: float) -> np.ndarray:
    """Merge those of `rows` (of ROW) that begin in one cell of `grain` seconds into one span for
    each phase, in the order of PHASES. A lane keeps its seconds of each phase."""
    cell = np.floor(rows["t"] / grain).astype(np.int64)
    order = np.lexsort((rows["kind"], cell, rows["lane"]))
    rows, cell = rows[order], cell[order]
    new_cell = np.ones(len(rows), bool)
    new_cell[1:] = (rows["lane"][1:] != rows["lane"][:-1]) | (cell[1:] != cell[:-1])
    new = new_cell.copy()
    new[1:] |= rows["kind"][1:] != rows["kind"][:-1]
    first = np.flatnonzero(new)
    one = rows[first].copy()
    one["seconds"] = np.add.reduceat(rows["seconds"], first)
    cells = np.flatnonzero(new_cell)
    starts = np.minimum.reduceat(rows["t"], cells)  # of each cell
    number = np.cumsum(new_cell[first]) - 1  # the cell of each span
    before = np.cumsum(one["seconds"]) - one["seconds"]
    one["t"] = starts[number] + before - before[np.flatnonzero(new_cell[first])][number]
    return one
