"""A simulated run leaves the same folder as a real one.

Nothing of the real time goes into it, so that the same run leaves the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wbsp.runlog.report import Lane, Phase, Report
from wbsp.runlog.server import ServerLog
from wbsp.runlog.worker import WorkerLog
from wbsp.simulate.worker import Observer

MOST_LOGS = 100  # workers that keep files of their own; a larger cluster's are picked evenly


class Recorder(Observer):
    """Writes what happens in a cluster of `workers` workers into `folder`.

    epoch_steps: steps of one worker's pass over the training set; 0 without a training set, and
                 then there is nothing for TensorBoard
    heard:       called with the virtual time at each step's end
    """

    def __init__(self, folder: Path, sync: str, workers: int, epoch_steps: int,
                 heard: Callable[[float], None]):
        self.server = ServerLog(folder, sync, tensorboard=epoch_steps > 0, virtual=True)
        logs = min(workers, MOST_LOGS)
        picked = (i * workers // logs for i in range(logs))
        self._workers = {worker: WorkerLog(folder, worker, sync) for worker in picked}
        self._computed = dict.fromkeys(self._workers, 0.0)  # seconds, up to the last step
        self._epoch_steps, self._heard = epoch_steps, heard

    def span(self, worker: int, lane: Lane, kind: Phase, start: float, end: float) -> None:
        if worker in self._workers:
            self._workers[worker].span(lane, kind, start, end)

    def step(self, worker: int, now: float, loss: float, report: Report) -> None:
        self._heard(now)
        if worker in self._workers:
            computed = report.seconds["compute"]
            step = report.steps - 1
            self._workers[worker].step(now, step % self._epoch_steps if self._epoch_steps else step,
                                       report, computed - self._computed[worker])
            self._computed[worker] = computed

    def close(self) -> None:
        for log in (self.server, *self._workers.values()):
            log.close()
