"""One run as the page shows it: its folder, read as far as it is written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from wbsp.limits import one_line
from wbsp.runlog.events import EventLog
from wbsp.runlog.files import UNREADABLE, read_document, shown
from wbsp.runlog.folder import read_settings
from wbsp.runlog.summary import goodput
from wbsp.runlog.tail import Replaced
from wbsp.watch import state
from wbsp.watch.spans import SpanLog

_AGAIN = 5.0  # seconds until damaged files are read again, from their beginning
_COLUMNS = (("t", "<f8"), ("seconds", "<f4"), ("lane", "<u4"), ("kind", "u1"))


def refreshed(runs: Iterable[WatchedRun]
              ) -> tuple[list[WatchedRun], list[OSError | ValueError]]:
    """Read all files of these runs; return the runs that can be read, and the others' errors.

    Raises:
        OSError, ValueError: none of them can be read; one line.
    """
    found: list[WatchedRun] = []
    bad: list[OSError | ValueError] = []
    for run in runs:
        try:
            run.refresh()
            run.state()
        except (OSError, ValueError) as error:
            bad.append(error)
        else:
            found.append(run)
    if bad and not found:
        raise bad[0]
    return found, bad


class WatchedRun:
    """A run called `name`; `refresh` reads what is new. Used by one thread at a time.

    Raises FileNotFoundError for a folder without run.json.
    """

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        self.stamp = 0  # increases with every change
        self._error: OSError | ValueError | None = None  # of the newest attempt to read
        self._again_at = 0.0  # time of the next attempt
        self._begin(0)
        self._known: tuple[int, dict[str, Any]] | None = None  # stamp, and state at that stamp

    @property
    def sync(self) -> str:
        """Name of the run's synchronization model."""
        return str(self._settings.get("sync", "unknown"))

    def refresh(self) -> None:
        """Read the new part of the files. Raises ValueError, in one line, for a damaged
        file, and OSError for an unreadable one."""
        if self._error is not None and time.monotonic() < self._again_at:
            raise self._error
        begun, self._error = self._error is not None, None
        try:
            if begun:  # the part before the damage would be read twice
                self._begin(self._spans.generation + 1)
            try:
                changed = [self._events.read(), self._spans.read(), self._read_summary()]
            except Replaced:  # such as a folder that was deleted and created again
                self._begin(self._spans.generation + 1)
                changed = [self._events.read(), self._spans.read(), self._read_summary()]
        except Replaced as error:  # again, while it was read
            self._fail(OSError(str(error)))
        except (OSError, ValueError) as error:
            self._fail(error)
        if begun or any(changed):
            self.stamp += 1

    def _fail(self, error: OSError | ValueError) -> NoReturn:
        self._error, self._again_at = error, time.monotonic() + _AGAIN
        raise error

    def state(self) -> dict[str, Any]:
        """Return everything that the page shows of the run except its spans, for JSON.

        Raises ValueError, in one line, for events that no server wrote.
        """
        if self._known is None or self._known[0] != self.stamp:
            try:
                self._known = self.stamp, self._state()
            except UNREADABLE as error:
                raise ValueError(f"{shown(self.folder)} holds an event or a summary that no server "
                                 f"wrote: {one_line(repr(error))}") from error
        return self._known[1]

    def pack(self, generation: int = -1, have: int = 0) -> bytes:
        """Return the spans for a page that has the first `have` ones of a `generation`.

        A line of JSON {generation, from, count}, padded with blanks to a multiple of 8 bytes; then
        the columns, little endian: t float64, seconds float32, lane uint32 (2 * worker, plus one
        for its network), kind uint8 (index into PHASES), [count] each.
        """
        rows = self._spans.rows
        first = have if generation == self._spans.generation and have <= len(rows) else 0
        rows = rows[first:]
        head = json.dumps({"generation": self._spans.generation, "from": first, "count": len(rows)})
        filled = head.ljust(-(-(len(head) + 1) // 8) * 8 - 1) + "\n"
        return filled.encode() + b"".join(
            np.ascontiguousarray(rows[name], dtype).tobytes() for name, dtype in _COLUMNS)

    def _begin(self, generation: int) -> None:
        self._settings = read_settings(self.folder)
        self._events = EventLog(self.folder / "events.jsonl", compact=True)
        self._spans = SpanLog(self.folder, generation)
        self._summary: dict[str, Any] | None = None
        self._summary_time = 0  # of its file, ns

    def _read_summary(self) -> bool:
        path = self.folder / "summary.json"
        written = path.stat().st_mtime_ns if path.exists() else 0
        if written == self._summary_time:
            return False
        self._summary = read_document(path) if written else None
        self._summary_time = written
        return True

    def _state(self) -> dict[str, Any]:
        log, spans = self._events, self._spans
        there = state.members(log)
        done = self._summary is not None and state.valid(self._summary, log, there)
        totals = self._summary if done and self._summary else state.totals(log, spans, there)
        return {
            "name": self.name, "folder": str(self.folder), "stamp": self.stamp,
            "settings": self._settings, "written": self._written(), "ended": done,
            "began": log.began, "started": bool(log.kind("start")),
            "duration": log.newest - log.began,
            "workers": sorted({*there, *spans.workers}),
            "active": sorted(worker for worker, member in there.items() if member.active),
            "epoch": state.epoch(log), "sites": state.sites(log),
            "above": state.above(log, self._settings),
            "summary": totals, "goodput": goodput(totals),
            "rejections": state.rejections(
                {worker: one["rejected_why"] for worker, one in totals["workers"].items()}),
            **state.curves(log, there), "happenings": state.happenings(log),
            "spans": {"generation": spans.generation, "count": len(spans.rows),
                      "grain": spans.grain},
        }

    def _written(self) -> float | None:
        """Return when the newest event was written, seconds since 1970; None before the first."""
        try:
            return (self.folder / "events.jsonl").stat().st_mtime
        except FileNotFoundError:
            return None
