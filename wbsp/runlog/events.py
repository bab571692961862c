"""The one reader of a server's events, as they are written or afterwards, and the one place that
defines what a resume undoes.

A server resumes from a checkpoint that it made at a time t. It undoes all that follows the event of
that checkpoint, except evaluations of versions that still exist (`outlives`). The begin of training
is undone, too, and holds again once a worker reattaches, because that worker has trained on.
"""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from wbsp.limits import one_line
from wbsp.runlog.files import shown, undamaged
from wbsp.runlog.rows import Rows
from wbsp.runlog.tail import Tail

# Up to RESENT: pushes of workers. CUT: a push of this site to the server above. From COMMIT on: new
# versions, and ADOPT: from a version of the server above.
ACCEPT, REJECT, RESENT, CUT, COMMIT, ADOPT = range(6)
_CODES = {"accept": ACCEPT, "reject": REJECT, "resent": RESENT, "cut": CUT, "commit": COMMIT,
          "adopt": ADOPT}
_ROW = np.dtype([
    ("t", "f8"),  # seconds since the run's start
    ("code", "i1"), ("worker", "i4"),
    ("version", "i8"),  # newest at that time, which may be new
    ("base", "i8"),  # of the push
    ("above", "i8"),  # number that the server above gives an adopted version
    ("steps", "i8"), ("samples", "i8"),
    ("seconds", "f8"),  # of compute
    ("pushes", "i8"),
    ("reason", "i4"),  # index into `reasons`; of rejects
])
_ROWS = frozenset(_CODES) - {"resent"}  # kinds of events that are only rows
_LEFT_OUT = frozenset({"norm"})  # of a compact log: one a version, which nothing reads there
_FIELDS = {name: attrgetter(name) for name in (  # named alike in rows and events
    "t", "worker", "version", "base", "above", "steps", "samples", "seconds")}
_WHOLE = msgspec.json.Decoder(dict[str, Any])


class _Event(msgspec.Struct, gc=False):
    """Fields common to the events that are rows; other events may use these names differently."""

    kind: str
    t: float
    worker: Any = 0
    version: Any = 0
    base: Any = 0
    above: Any = 0
    steps: Any = 0
    samples: Any = 0
    seconds: Any = 0.0
    reason: Any = ""
    first: Any = 0  # of the pushes of a resent sum
    last: Any = 0


def outlives(evaluated: float, resumed: float) -> bool:
    """Return whether an evaluation of time `evaluated` still holds after a resume from the
    checkpoint of time `resumed`: its version is not of later."""
    return evaluated <= resumed


class EventLog:
    """The events of one run so far, without those that a resume undid.

    Args:
        path: of events.jsonl.
        compact: keep pushes, versions and a site's cuts as rows of numbers, so that a million of
            them fit into memory; False: keep all events whole.

    Attributes:
        others: (rows before it, event) for each event that is not only a row; a resent sum is in
            both, since it has fields of its own.
    """

    def __init__(self, path: Path, compact: bool = False):
        self._tail = Tail(path, msgspec.json.Decoder(_Event))
        self._compact = compact
        self._rows = Rows(_ROW)
        self.others: list[tuple[int, dict[str, Any]]] = []
        self._reasons: dict[str, int] = {}
        self._undone: dict[str, Any] | None = None  # start of training, undone by the last resume

    @property
    def rows(self) -> np.ndarray:
        """Structured array, [rows], in the order of the file; its fields are above."""
        return self._rows.view

    @property
    def reasons(self) -> list[str]:
        """Why pushes were rejected, by the rows' index."""
        return [*self._reasons]

    @property
    def began(self) -> float:
        """Seconds from the run's start to the start of training; 0 before it."""
        return next((e["t"] for _, e in self.others if e["kind"] == "start"), 0.0)

    @property
    def newest(self) -> float:
        """Seconds from the run's start to the newest event."""
        rows = float(self.rows["t"].max()) if len(self.rows) else 0.0
        newest: float = max([rows, *(e["t"] for _, e in self.others)])
        return newest

    def kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind that is not only in rows."""
        return [event for _, event in self.others if event["kind"] == kind]

    def read(self) -> bool:
        """Read new events; return whether there were any. Raises Replaced and ValueError as `Tail`.
        """
        changed = False
        for block, events in self._tail.blocks():
            changed = True
            if self._compact:
                self._divide(block, events)
            else:
                with undamaged(shown(self._tail.path)):
                    whole = _WHOLE.decode_lines(block)
                for event in whole:
                    self._add(event)
        return changed

    def _divide(self, block: bytes, events: list[_Event]) -> None:
        """Add the events of a block, most of them as rows."""
        others = [index for index, event in enumerate(events) if event.kind not in _ROWS]
        lines = [line for line in block.split(b"\n") if line.strip()] if others else []
        start = 0
        for index in others:
            self._append(events[start:index + (events[index].kind == "resent")])
            start = index + 1
            with undamaged(shown(self._tail.path)):
                event = _WHOLE.decode(lines[index])
            if event["kind"] not in _LEFT_OUT:
                self._add(event)
        self._append(events[start:])

    def _append(self, events: list[_Event]) -> None:
        rows = np.empty(len(events), _ROW)
        try:
            rows["code"] = [_CODES[e.kind] for e in events]
            for name, of in _FIELDS.items():
                rows[name] = np.fromiter(map(of, events), _ROW[name], len(events))
            rows["pushes"] = 1
            rows["reason"] = -1
            known = self._reasons
            for index, event in enumerate(events):
                if event.reason:
                    rows[index]["reason"] = known.setdefault(event.reason, len(known))
            if events and events[-1].kind == "resent":
                rows["pushes"][-1] += events[-1].last - events[-1].first
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{shown(self._tail.path)} holds a push that no server wrote: "
                             f"{one_line(str(error))}") from None
        self._rows.append(rows)

    def _add(self, event: dict[str, Any]) -> None:
        if event["kind"] == "resume":
            self._undo(event["t"])
        elif event["kind"] == "reattach" and self._undone is not None:
            if not self.kind("start"):  # then it stands where it was, in the order of time
                rows, others = self._until(self._undone["t"])
                self.others.insert(others, (rows, self._undone))
            self._undone = None
        self.others.append((len(self._rows), event))

    def _undo(self, t: float) -> None:
        """Undo what followed the checkpoint of time `t`, from which a server resumes."""
        rows, others = self._checkpointed(t)
        gone = [event for _, event in self.others[others:]]
        self._undone = next((e for e in gone if e["kind"] == "start"), self._undone)
        self._rows.keep(slice(rows))
        self.others[others:] = [(rows, e) for e in gone
                                if e["kind"] == "evaluation" and outlives(e["t"], t)]

    def _checkpointed(self, t: float) -> tuple[int, int]:
        """Return the numbers of rows and others up to the checkpoint of `t`."""
        for index in range(len(self.others), 0, -1):
            before, event = self.others[index - 1]
            if event["kind"] == "checkpoint" and event["t"] == t:
                return before, index
        # the checkpoint is of an older release, or was not logged because the disk was full
        return self._until(t)

    def _until(self, t: float) -> tuple[int, int]:
        """Return the numbers of rows and others before the first event later than `t`."""
        later = np.flatnonzero(self.rows["t"] > t)
        row = int(later[0]) if later.size else len(self._rows)
        other = next((i for i, (_, e) in enumerate(self.others) if e["t"] > t), len(self.others))
        if other < len(self.others) and self.others[other][0] <= row:
            return self.others[other][0], other
        return row, sum(before <= row for before, _ in self.others)
