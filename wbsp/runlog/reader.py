"""Reader of a run's folder, whether the run was real or simulated, finished or killed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np

from wbsp.core.goal import Goal
from wbsp.runlog.events import EventLog
from wbsp.runlog.files import read_document, shown, undamaged
from wbsp.runlog.folder import read_settings
from wbsp.runlog.spans import Lives, Span, files_of_workers, rows_of
from wbsp.runlog.tail import Tail

__all__ = ["Evaluations", "Event", "Run", "read_run"]


class Event(TypedDict):
    """The fields of every event: seconds, and its kind."""

    t: float
    kind: str


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
        return [{**event, "t": event["t"] - self._began} for _, event in self._log.others]

    @cached_property
    def _began(self) -> float:
        return self._log.began

    @cached_property
    def _log(self) -> EventLog:
        log = EventLog(self.folder / "events.jsonl")
        log.read()
        return log

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
        return {worker: [{**span, "t": span["t"] - self._began} for span in _spans(path)]
                for worker, path in files_of_workers(self.folder).items()}

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """Content of summary.json; None for a run that has not ended in good order.

        Raises:
            ValueError: the file is damaged; one line.
        """
        path = self.folder / "summary.json"
        return read_document(path) if path.exists() else None

    def metric(self, goal: Goal) -> np.ndarray:
        """Return the values of a goal's metric in the evaluations, float64.

        NaN stands where a version has none.
        """
        found = [event for event in self.events if event["kind"] == "evaluation"]
        with undamaged(shown(self.folder / "events.jsonl")):
            known = [goal.value({**event, **(event.get("metrics") or {})}) for event in found]
        return np.array([np.nan if value is None else value for value in known], np.float64)

    def time_to(self, target: float | str | Goal) -> float | None:
        """Return the seconds to the first evaluation that reaches a target; None if none does.

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


_WHOLE = msgspec.json.Decoder(dict[str, Any])
_DTYPES = (np.float64, np.int64, np.int64, np.float64, np.float64, np.float64)


def read_run(folder: str | os.PathLike[str]) -> Run:
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


def _spans(path: Path) -> list[dict[str, Any]]:
    """Return the spans in a worker's file with all their fields, without those that were undone."""
    kept: list[dict[str, Any]] = []
    lives = Lives()
    for lines, spans in Tail(path, msgspec.json.Decoder(Span)).blocks():
        with undamaged(shown(path)):
            found = _WHOLE.decode_lines(lines)
        for part, since in lives.split(rows_of(0, spans)):
            if since is not None:
                kept = [span for span in kept if span["t"] + span["seconds"] <= since]
            kept += found[part]
    return kept
