"""The files of what the workers' threads did when, and the one place that says which of these spans
a resumed server undid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np

from wbsp.core.stats import PHASES, Lane, Phase

ROW = np.dtype([
    ("lane", "u4"),  # 2 * worker, plus one for its network
    ("t", "f8"),  # seconds since the run's start
    ("seconds", "f8"),
    ("kind", "u1"),  # index into PHASES
])
_LANES: dict[Lane, int] = {"compute": 0, "network": 1}
_KINDS = {phase: index for index, phase in enumerate(PHASES)}
_TIMES = {name: attrgetter(name) for name in ("t", "seconds")}
_FILE = r"events_wk(\d{1,9})"
_SLACK = 1e-6  # seconds by which clocks of two threads may differ


class Span(msgspec.Struct, gc=False):
    """A line of a worker's file."""

    t: float
    seconds: float
    lane: Lane
    kind: Phase


def files_of_workers(folder: Path) -> dict[int, Path]:
    """Return worker -> the file with its spans, of the run in `folder`; ascending."""
    found = [(re.fullmatch(_FILE, path.stem, re.ASCII), path)
             for path in folder.glob("events_wk*.jsonl")]
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def rows_of(worker: int, spans: Sequence[Span]) -> np.ndarray:
    """Return the spans of a worker as an array of ROW, [spans]."""
    rows = np.empty(len(spans), ROW)
    rows["lane"] = [_LANES[span.lane] for span in spans]
    rows["lane"] += 2 * worker
    rows["kind"] = [_KINDS[span.kind] for span in spans]
    for name, of in _TIMES.items():
        rows[name] = np.fromiter(map(of, spans), float, len(spans))
    return rows


class Lives:
    """Finds in the spans of one worker, in the order of its file, where times go back.

    There the server was resumed, and the worker has repeated its later work.
    """

    def __init__(self) -> None:
        self._ends = [-np.inf, -np.inf]  # of the newest span of either lane

    def split(self, rows: np.ndarray) -> Iterator[tuple[slice, float | None]]:
        """Yield the parts of the new `rows` between which times go back, and of each the time
        before which an earlier span must have ended to stay; None: all stay."""
        start, since = 0, None
        while start < len(rows):
            stop = start + self._forward(rows[start:])
            yield slice(start, stop), since
            if stop < len(rows):
                since = float(rows["t"][stop])
                self._ends = [-np.inf, -np.inf]
            start = stop

    def _forward(self, rows: np.ndarray) -> int:
        """Return how many of the `rows` follow before times go back; note their ends."""
        ends, lanes, count = rows["t"] + rows["seconds"], rows["lane"] % 2, len(rows)
        own = [np.flatnonzero(lanes == lane) for lane in (0, 1)]
        for lane, places in enumerate(own):
            before = np.concatenate([[self._ends[lane]], ends[places]])[:-1]
            if (back := places[ends[places] < before - _SLACK]).size:
                count = min(count, int(back[0]))
        for lane, places in enumerate(own):
            if (mine := places[places < count]).size:
                self._ends[lane] = float(ends[mine[-1]])
        return count
