"""The files of one worker: the published text files, and spans of time for a timeline."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wbsp.runlog.files import MIB, LineFile, columns, to_json
from wbsp.runlog.report import Lane, Phase, Report


class WorkerLog:
    """Writer of the files of worker `worker` in a run's `folder`; times are seconds since the run's
    start.

    append: go on with the files of a returning worker; without `append`, existing files raise
            FileExistsError
    say:    called with one line when a file cannot be written

    Safe to use from the compute thread and the communication thread at once.
    """

    def __init__(self, folder: str | os.PathLike, worker: int, sync: str, append: bool = False,
                 say: Callable[[str], None] = print):
        folder = Path(folder)
        self._loss = LineFile(folder / f"wk_loss_{worker}_{sync}.txt", append, say)
        self._time = LineFile(folder / f"wk_time_{worker}_{sync}.txt", append, say)
        self._spans = LineFile(folder / f"events_wk{worker}.jsonl", append, say)

    def step(self, t: float, epoch_step: int, report: Report, seconds: float) -> None:
        """A step of `seconds` ended at `t`, the `epoch_step`-th of its epoch.

        wk_loss: time, epoch-step, local step, loss.
        wk_time: time, seconds of this step, local step, push seconds so far, pushes, pull seconds
        so far, pulls, MiB of the last push, of its control messages, of the last pull.
        """
        self._loss.write(t, columns(t, epoch_step, report.steps, report.loss))
        self._time.write(t, columns(
            t, seconds, report.steps, report.push_seconds, report.pushes, report.pull_seconds,
            report.pulls, report.push_bytes / MIB, report.control_bytes / MIB,
            report.pull_bytes / MIB))

    def span(self, lane: Lane, kind: Phase, start: float, end: float, **fields: Any) -> None:
        """From `start` to `end` the worker's `lane` was in phase `kind`."""
        line = {"t": start, "seconds": end - start, "lane": lane, "kind": kind, **fields}
        self._spans.write(end, to_json(line) + b"\n")

    def close(self) -> None:
        for file in (self._loss, self._time, self._spans):
            file.close()
