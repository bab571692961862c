"""Reader of a run's folder, whether the run was real or simulated, finished or killed."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np

from wbsp.core.goal import Goal
from wbsp.core.stats import Lane, Phase
from wbsp.runlog.files import read_document, shown, undamaged
from wbsp.runlog.folder import read_settings
from wbsp.runlog.tail import Tail

__all__ = ["Evaluations", "Event", "Run", "read_run"]


class Event(TypedDict):
    """The fields of every event: seconds, and its kind."""

    t: float
    kind: str


class _Span(TypedDict):
    t: float
    seconds: float
    lane: Lane
    kind: Phase


class Evaluations(NamedTuple):
    """Evaluations as columns, in order; NaN where a value was not finite.

    Attributes:
        t: float64, seconds at which the version was made.
        version: int64.
        steps: int64, of all workers together.
        loss: float64.
        accuracy: float64, 0..1.
        top5: float64, 0..1.
    """

    t: np.ndarray
    version: np.ndarray
    steps: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    top5: np.ndarray


@dataclass
class Run:
    """The files of one run. All but the settings are read at their first use.

    Times are seconds since training began, when the workers had joined, so that a comparison does
    not count the start of processes and the import of TensorFlow.

    Attributes:
        folder: the run's folder.
        settings: the content of run.json.
    """

    folder: Path
    settings: dict[str, Any]

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Events of the server, each with `t` and `kind`, without those that a resume undid."""
        return [{**e, "t": e["t"] - self._began} for e in self._raw_events]

    @cached_property
    def _raw_events(self) -> list[dict[str, Any]]:
        return _valid(_lines(self.folder / "events.jsonl", _EVENTS))

    @cached_property
    def _began(self) -> float:
        return next((e["t"] for e in self._raw_events if e["kind"] == "start"), 0.0)

    @cached_property
    def evaluations(self) -> Evaluations:
        """Evaluations of versions, as columns."""
        found = [event for event in self.events if event["kind"] == "evaluation"]
        with undamaged(shown(self.folder / "events.jsonl")):
            columns = Evaluations(*(
                np.array([event[name] for event in found], dtype)
                for name, dtype in zip(Evaluations._fields, _DTYPES, strict=True)))
        return columns._replace(t=np.maximum(columns.t, 0))  # W_0 may be evaluated while waiting

    @cached_property
    def spans(self) -> dict[int, list[dict[str, Any]]]:
        """Worker -> its spans, each with `t`, `seconds`, `lane` and `kind`."""
        found = [(re.fullmatch(SPANS_OF, path.stem, re.ASCII), path)
                 for path in self.folder.glob("events_wk*.jsonl")]
        workers = {int(match[1]): path for match, path in found if match}
        return {worker: [{**span, "t": span["t"] - self._began}
                         for span in _forward(_lines(workers[worker], _SPANS))]
                for worker in sorted(workers)}

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """Content of summary.json; None for a run that has not ended in good order.

        Raises:
            ValueError: the file is damaged; one line.
        """
        path = self.folder / "summary.json"
        return read_document(path) if path.exists() else None

    def metric(self, goal: Goal) -> np.ndarray:
        """Return the values of a goal's metric in the evaluations, float64; NaN where a version has
        none."""
        found = [event for event in self.events if event["kind"] == "evaluation"]
        with undamaged(shown(self.folder / "events.jsonl")):
            known = [goal.value({**event, **(event.get("metrics") or {})}) for event in found]
        return np.array([np.nan if value is None else value for value in known], np.float64)

    def time_to(self, target: float | str | Goal) -> float | None:
        """Return the seconds to the first evaluation that reaches a target; None if there is none.

        Args:
            target: the least accuracy, 0..1, or a metric and its value, such as "loss:2.0".

        Raises:
            ValueError: the target has another form; one line.
        """
        goal = Goal.of(target)
        if goal is None or goal.target is None:
            return None
        values = self.metric(goal)
        reached = np.flatnonzero(values >= goal.target if goal.most else values <= goal.target)
        return float(self.evaluations.t[reached[0]]) if reached.size else None


_EVENTS, _SPANS = msgspec.json.Decoder(Event), msgspec.json.Decoder(_Span)
_OBJECTS = msgspec.json.Decoder(dict[str, Any])
SPANS_OF = r"events_wk(\d{1,9})"  # name of a file with a worker's spans
_DTYPES = (np.float64, np.int64, np.int64, np.float64, np.float64, np.float64)


def read_run(folder: str | os.PathLike) -> Run:
    """Read a run.

    Args:
        folder: the run's folder.

    Returns:
        The run; its files are read when they are needed.

    Raises:
        FileNotFoundError: it is not a run's folder; one line.
        ValueError: its run.json is damaged; one line.
    """
    return Run(Path(folder), read_settings(folder))


def _valid(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `events` without those between a checkpoint and the "resume" of a server from it.

    Evaluations of versions up to the checkpoint's stay valid, because resuming does not change
    these versions. So does the begin of training, if a worker continued across the resume.
    """
    kept: list[dict[str, Any]] = []
    undone: dict[str, Any] | None = None  # the begin of training, by the newest resumption
    for event in events:
        if event["kind"] == "resume":
            since = _checkpointed(kept, event["t"])
            undone = next((e for e in kept[since:] if e["kind"] == "start"), undone)
            kept[since:] = [e for e in kept[since:]
                            if e["kind"] == "evaluation" and e["t"] <= event["t"]]
        elif event["kind"] == "reattach" and undone is not None:
            if not any(e["kind"] == "start" for e in kept):
                # then the events of the server before a worker reconnected
                kept.insert(bisect_right(kept, undone["t"], key=lambda e: e["t"]), undone)
            undone = None
        kept.append(event)
    return kept


def _checkpointed(events: list[dict[str, Any]], t: float) -> int:
    """Return the index of the first event after the checkpoint that was made at `t`."""
    for index in range(len(events), 0, -1):
        if events[index - 1]["kind"] == "checkpoint" and events[index - 1]["t"] == t:
            return index
    # the checkpoint is of an older release, or was not logged on a full disk
    return next((i for i, event in enumerate(events) if event["t"] > t), len(events))


def _forward(spans: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a worker's `spans` without those that a resumed server undid.

    Where times go back, the server was resumed, and the worker repeated its later work.
    """
    kept: list[dict[str, Any]] = []
    ends: dict[str, float] = {}  # lane -> of its newest span
    for span in spans:
        end = span["t"] + span["seconds"]
        if end < ends.get(span["lane"], end) - 1e-6:
            kept = [one for one in kept if one["t"] + one["seconds"] <= span["t"]]
            ends.clear()
        ends[span["lane"]] = end
        kept.append(span)
    return kept


def _lines(path: Path, shape: msgspec.json.Decoder) -> Iterator[dict[str, Any]]:
    """Yield the lines of `path`, which may be missing, with all their fields.

    Raises:
        ValueError: a line lacks a field of `shape`; one line.
    """
    for lines, _ in Tail(path, shape).blocks():
        with undamaged(shown(path)):
            found = _OBJECTS.decode_lines(lines)
        yield from found
