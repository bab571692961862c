"""Files of one worker: the published text files, and spans of time for a timeline."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wbsp.core.stats import Lane, Phase, Report
from wbsp.process.disk import disk_of
from wbsp.runlog.files import MIB, LineFile, columns, to_json
from wbsp.runlog.folder import read_settings

PUBLISHED_NAME = "wbsp"  # in the names of the published code's text files, of whatever model
MOST = 256 * MIB  # bytes of a real worker's timeline: hours, at some hundred steps a second
LATEST = 2.0  # seconds of the run's time; the communication thread of a worker writes each second


class WorkerLog:
    """Writer of the files of worker `worker` in a run's `folder`; times are seconds since the run's
    start.

    The compute thread and the communication thread may use it at once. Notes are formatted in
    `write`, many at once, because formatting each line just after a step takes several times as
    long.

    Args:
        append: continue the files of a worker that has returned.
        say: called with one line when a file cannot be written.
        most: bytes of the timeline; it ends there.
        texts: write the published text files, too.
        published: give these the published code's names and columns, which depend less on the
            model and lack the position in an epoch; see `step`.

    Raises:
        FileExistsError: files exist, without `append`.
    """

    def __init__(self, folder: str | os.PathLike[str], worker: int, sync: str, append: bool = False,
                 say: Callable[[str], None] = print, most: float = math.inf, texts: bool = True,
                 published: bool = False):
        folder = disk_of(folder).path(folder)
        self._say = say
        self._most = most
        self._spans = LineFile(folder / f"events_wk{worker}.jsonl", append, say)
        self._files = [self._spans]
        self._as_published, self._pcc = published, sync == "pcc"
        if texts:
            named = PUBLISHED_NAME if published else sync
            self._loss = LineFile(folder / f"wk_loss_{worker}_{named}.txt", append, say)
            self._time = LineFile(folder / f"wk_time_{worker}_{named}.txt", append, say)
            self._files += [self._loss, self._time]
        self._texts = texts
        self._noted: deque[tuple[LineFile, Callable[..., bytes], tuple[Any, ...]]] = deque()
        self._written = -math.inf  # the time of the last `write`
        self._closed = False
        self._lock = threading.Lock()  # held while writing

    @classmethod
    def of_run(cls, folder: Path, run: str, worker: int, sync: str,
               say: Callable[[str], None]) -> WorkerLog | None:
        """Return the timeline of a user's own worker in the folder of the run with this id.

        None: this machine cannot access the folder, or cannot write to it.
        """
        try:
            if read_settings(folder).get("id") == run:
                return cls(folder, worker, sync, append=True, say=say, most=MOST, texts=False)
        except (OSError, ValueError):
            pass
        return None

    def step(self, t: float, epoch_step: int, report: Report, seconds: float) -> None:
        """Note a step of `seconds` that ended at `t`, the `epoch_step`-th of its epoch.

        wk_loss: time, epoch-step, local step, loss; as published: time, local step (of pcc from 0),
        local step, loss, and of pcc the seconds of this step.
        wk_time: time, seconds of this step, local step, push seconds so far, pushes, pull seconds
        so far, pulls, MiB of the last push, of its control messages, of the last pull.
        """
        if not self._texts:
            return
        if self._as_published:
            self._note(t, self._loss, columns, t, report.steps - self._pcc, report.steps,
                       report.loss, *[seconds] * self._pcc)
        else:
            self._note(t, self._loss, columns, t, epoch_step, report.steps, report.loss)
        self._note(t, self._time, columns,
                   t, seconds, report.steps, report.push_seconds, report.pushes,
                   report.pull_seconds, report.pulls, report.push_bytes / MIB,
                   report.control_bytes / MIB, report.pull_bytes / MIB)

    def span(self, lane: Lane, kind: Phase, start: float, end: float, **fields: Any) -> None:
        """Note that the worker's `lane` was in phase `kind` from `start` to `end`."""
        self._note(end, self._spans, _span, lane, kind, start, end, fields)

    def write(self, t: float) -> None:
        """Write all notes at `t`; each note does this if the last write was `LATEST` seconds ago.
        """
        with self._lock:
            self._written = t
            while self._noted:
                file, line, values = self._noted.popleft()
                if file is not self._spans:
                    file.write(t, line(*values))
                elif file.size < self._most:
                    file.write(t, line(*values))
                    if file.size >= self._most:
                        self._say(f"{file.path} has reached {file.size / MIB:,.0f} MiB; the "
                                  "timeline of this worker ends here, training continues")
            for file in self._files:
                file.flush()

    def close(self) -> None:
        """Write all notes; later ones, of a loop that has not ended yet, are lost."""
        self._closed = True
        self.write(self._written)
        for file in self._files:
            file.close()

    def _note(self, t: float, file: LineFile, line: Callable[..., bytes], *values: Any) -> None:
        if self._closed:
            return
        self._noted.append((file, line, values))
        if t - self._written >= LATEST:
            self.write(t)


def _span(lane: Lane, kind: Phase, start: float, end: float, fields: dict[str, Any]) -> bytes:
    return to_json({"t": start, "seconds": end - start, "lane": lane, "kind": kind, **fields}) \
        + b"\n"
