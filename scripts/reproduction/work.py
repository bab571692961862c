"""Carries out jobs side by side: what was done before is not repeated, and what fails does not keep
the rest from being done."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from reproduction.settings import Setting

from wbsp.runlog.reader import Run, read_run

ROOT = Path(__file__).parents[2]
TABLE = "table.md"  # in a job's folder: what its last process printed, if all went well
PRINTED = "printed.txt"  # and before that
PATIENCE = 20.0  # seconds for a process to end when it is asked to
LOOK_SECONDS = 1.0  # between two looks at what runs


class Job(Protocol):
    """One process that does several parts in their order.

    cost:  seconds of a part, a guess
    alone: nothing else may run beside it
    """

    name: str
    cost: float
    alone: bool
    folder: Path

    def left(self) -> list[str]:
        """The parts that are still to be done."""

    def command(self, parts: Sequence[str]) -> list[str]:
        """Of the process that does them."""


@dataclass(frozen=True)
class Simulation:
    """All models of a setting under one seed; a part is a model's run."""

    setting: Setting
    seed: int
    out: Path
    alone = False

    @property
    def name(self) -> str:
        return f"{self.setting.page}/{self.setting.name} seed {self.seed}"

    @property
    def cost(self) -> float:
        return self.setting.cost

    @property
    def folder(self) -> Path:
        return self.out / self.setting.page / self.setting.name / f"seed-{self.seed}"

    def run(self, model: str) -> Run | None:
        """The finished run of a model, unless it was made with other flags."""
        folder = self.folder / model / "run-001"
        if not (folder / "summary.json").exists():
            return None
        run = read_run(folder)
        return run if _same(run.settings["command"], self.setting.command([model], self.seed)) \
            else None

    def left(self) -> list[str]:
        return [model for model in self.setting.models if self.run(model) is None]

    def command(self, parts: Sequence[str]) -> list[str]:
        for model in parts:  # what was torn, or made with other flags
            shutil.rmtree(self.folder / model, ignore_errors=True)
        out = self.folder.relative_to(ROOT) if self.folder.is_relative_to(ROOT) else self.folder
        return [sys.executable, "-m", "wbsp.simulate", *self.setting.arguments(parts, self.seed),
                f"--out={out}"]


def _same(done: str, wanted: str) -> bool:
    """Whether a command did what is wanted of one model, perhaps beside others."""
    done, wanted = (set(command.split()) for command in (done, wanted))
    models = next(word for word in wanted if word.startswith("--sync=")).removeprefix("--sync=")
    ours = f"--sync_option={models}."

    def heard(words: set[str]) -> set[str]:
        return {word for word in words if word.startswith(ours)
                or not word.startswith(("--sync", "--out="))}
    return heard(done) == heard(wanted)


@dataclass(frozen=True)
class Reality:
    """Real processes beside their twins in virtual time; one part, which leaves a table."""

    models: tuple[str, ...]
    epochs: int
    out: Path
    name = "real processes"
    alone = True

    @property
    def cost(self) -> float:
        return 60.0 * len(self.models)

    @property
    def folder(self) -> Path:
        return self.out / "reality"

    def left(self) -> list[str]:
        return [] if (self.folder / TABLE).exists() else ["all"]

    def command(self, parts: Sequence[str]) -> list[str]:
        return [sys.executable, str(ROOT / "scripts/compare_reality.py"), *self.arguments(),
                f"--out={self.folder}"]

    def arguments(self) -> list[str]:
        return [f"--sync={','.join(self.models)}", f"--epochs={self.epochs}"]


class Failure(NamedTuple):
    job: Job
    part: str
    said: str  # the last line of its log


class _Running(NamedTuple):
    job: Job
    process: subprocess.Popen


def carry_out(jobs: Sequence[Job], slots: int, until: float,
              show: Callable[[int, int, float, str], None]) -> list[Failure]:
    """Do the jobs in their order, `slots` at a time; return what failed.

    until: of time.monotonic(); no job begins later
    show:  called again and again with the parts done, their number, a guess of the seconds left
           (NaN when there is none yet), and what runs
    """
    queue, running = deque(jobs), []
    failed: dict[tuple[str, str], Failure] = {}
    left = {job.name: _left(job, failed) for job in jobs}
    total = sum(map(len, left.values()))
    work = sum(job.cost * len(left[job.name]) for job in jobs)
    begin = time.monotonic()
    try:
        while queue or running:
            while queue and time.monotonic() < until and _room(queue[0], running, slots):
                job = queue.popleft()
                if left[job.name]:
                    running.append(_start(job, left[job.name]))
            if not running:
                break  # all is done, or the time is over
            time.sleep(LOOK_SECONDS)
            for one in running[:]:
                job, code = one.job, one.process.poll()
                if code == 0:
                    os.replace(job.folder / PRINTED, job.folder / TABLE)
                left[job.name] = _left(job, failed)
                if code is None:
                    continue
                running.remove(one)
                if left[job.name]:  # its first part failed; the others are yet to be tried
                    part = left[job.name][0]
                    failed[job.name, part] = Failure(job, part, _last_line(job, code))
                    left[job.name] = _left(job, failed)
                    queue.appendleft(job)
            undone = sum(job.cost * len(left[job.name]) for job in jobs)
            pace = (work - undone) / (time.monotonic() - begin)
            show(total - sum(map(len, left.values())), total,
                 undone / pace if pace else float("nan"),
                 ", ".join(one.job.name for one in running))
    finally:
        _stop([one.process for one in running])
    return list(failed.values())


def _left(job: Job, failed: dict[tuple[str, str], Failure]) -> list[str]:
    return [part for part in job.left() if (job.name, part) not in failed]


def _room(job: Job, running: Sequence[_Running], slots: int) -> bool:
    lonely = job.alone or any(one.job.alone for one in running)
    return not running or (len(running) < slots and not lonely)


def _start(job: Job, parts: list[str]) -> _Running:
    command = job.command(parts)
    job.folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with open(job.folder / "log.txt", "a") as log, open(job.folder / PRINTED, "w") as out:
        return _Running(job, subprocess.Popen(
            command, stdout=out, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT,
            start_new_session=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "PYTHONPATH": path}))


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    """End them, and what they have started: in good order if they can. Not by SIGINT, which an
    import of TensorFlow may swallow."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_line(job: Job, code: int) -> str:
    lines = (job.folder / "log.txt").read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
