"""Jobs of the reproduction, carried out side by side. Finished parts are not repeated, and a failed
part does not keep the others from being done."""

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
from typing import NamedTuple

from reproduction import made
from reproduction.made import Job
from reproduction.settings import Setting

from wbsp.runlog.reader import Run, read_run
from wbsp.simulate.study.variants import variants

ROOT = Path(__file__).parents[2]
TABLE = "table.md"  # in a job's folder: what its last process printed, if all went well
PRINTED = "printed.txt"  # the output of a process that has not ended
PATIENCE = 20.0  # seconds for a process to end when it is asked to
LOOK_SECONDS = 1.0  # between two looks at what runs


@dataclass(frozen=True)
class Simulation:
    """The job of all models of a setting under one seed; a part is a model's run."""

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

    @property
    def parts(self) -> Sequence[str]:
        return self.setting.models

    @property
    def uses(self) -> Sequence[str]:
        flags = self.setting.flags
        return ("processor", *(["TensorFlow"] if flags["model"] != "timing" else []),
                *(["CIFAR-10"] if flags.get("dataset") == "cifar10" else []))

    def run(self, model: str) -> Run | None:
        """Return the finished run of a model, unless it was made with other flags."""
        folder = self.folder / variants([model], [])[0].folder / "run-001"
        if not (folder / "summary.json").exists():
            return None
        run = read_run(folder)
        return run if _same(run.settings["command"], self.setting.command([model], self.seed)) \
            else None

    def left(self) -> list[str]:
        return [model for model in self.setting.models if self.run(model) is None]

    def command(self, parts: Sequence[str]) -> list[str]:
        for model in parts:  # remove runs that were killed, or made with other flags
            folder = variants([model], [])[0].folder
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        out = self.folder.relative_to(ROOT) if self.folder.is_relative_to(ROOT) else self.folder
        return [sys.executable, "-m", "wbsp.simulate", *self.setting.arguments(parts, self.seed),
                f"--out={out}"]


def _same(done: str, wanted: str) -> bool:
    """Return whether the command `done` included the run of one model that `wanted` requests."""
    done, wanted = (set(command.split()) for command in (done, wanted))
    models = next(word for word in wanted if word.startswith("--sync=")).removeprefix("--sync=")
    ours = f"--sync_option={models}."

    def relevant(words: set[str]) -> set[str]:
        return {word for word in words if word.startswith(ours)
                or not word.startswith(("--sync", "--out="))}
    return relevant(done) == relevant(wanted)


@dataclass(frozen=True)
class Printing:
    """The job of one process that prints a table; it measures time, so that nothing runs beside it.

    words:   behind `python`; the current folder is that of the checkout
    folders: it takes --out, a folder for what it leaves
    """

    name: str
    words: tuple[str, ...]
    out: Path
    cost: float
    uses: Sequence[str] = ("processor",)
    folders: bool = False
    alone = True
    parts = ("all",)

    @property
    def folder(self) -> Path:
        return self.out / self.name

    def left(self) -> list[str]:
        return [] if (self.folder / TABLE).exists() else ["all"]

    def command(self, parts: Sequence[str]) -> list[str]:
        return [sys.executable, *self.words, *([f"--out={self.folder}"] if self.folders else [])]

    @property
    def text(self) -> str:
        """The command line with which a reader can repeat it."""
        return " ".join([*(["python"] if self.words[0] == "-m" else []), *self.words])


def reality(models: Sequence[str], epochs: int, out: Path) -> Printing:
    """Return the job of real processes, and the same runs in virtual time."""
    return Printing("reality", ("lab/compare_reality.py", f"--sync={','.join(models)}",
                                f"--epochs={epochs}"), out, 60.0 * len(models),
                    ("processor", "TensorFlow"), folders=True)


def reality_to_60(models: Sequence[str], out: Path) -> Printing:
    """Return that job with the published network on CIFAR-10, to 60 % or for twelve passes."""
    return Printing("reality-60", (
        "lab/compare_reality.py", f"--sync={','.join(models)}", "--model=cnn",
        "--dataset=cifar10", "--target_accuracy=0.6", "--epochs=12", "--check_period=10",
        "--test_images=2000", "--band_width_limit=12.5"), out, 400.0 * len(models),
        ("processor", "TensorFlow", "CIFAR-10"), folders=True)


def zipline(out: Path) -> Printing:
    """Return the job of choosing barriers, by ElasticBSP's three algorithms, for up to 1,000
    workers."""
    return Printing("zipline", ("-m", "lab.benchmarks.zipline", "--workers", "10", "30", "100",
                                "300", "1000", "--r", "15", "150",
                                "--figure", "lab/reports/figures/zipline.png"),
                    out, 60.0)


class Failure(NamedTuple):
    """A part of a job that failed."""

    job: Job
    part: str
    last_line: str  # of the job's log


class _Running(NamedTuple):
    """A job, the parts that are done now, and its process."""

    job: Job
    parts: list[str]
    process: subprocess.Popen


def fetch_data(jobs: Sequence[Job]) -> None:
    """Fetch CIFAR-10 if a job needs it, before many processes do so at once. Raises OSError."""
    if not any("CIFAR-10" in job.uses and job.left() for job in jobs):
        return
    done = subprocess.run([sys.executable, "-c", "import data; data.load('cifar10')"], cwd=ROOT,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip().rpartition("\n")[2])


def carry_out(jobs: Sequence[Job], slots: int, until: float,
              show: Callable[[int, int, float, str], None]) -> list[Failure]:
    """Do the jobs in their order, `slots` at a time; return the failures.

    until: a time of time.monotonic(), after which no job begins
    show:  called again and again with the number of parts done, the number of all parts, the
           estimated seconds left (NaN before there is an estimate), and the names of running jobs
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
                break  # all parts are done, or `until` is over
            time.sleep(LOOK_SECONDS)
            for one in running[:]:
                job, code = one.job, one.process.poll()
                if code == 0:
                    os.replace(job.folder / PRINTED, job.folder / TABLE)
                left[job.name] = _left(job, failed)
                made.record(job, [part for part in one.parts if part not in left[job.name]])
                if code is None:
                    continue
                running.remove(one)
                if left[job.name]:  # the first part failed; the others are still to be tried
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
        for job, parts, _ in running:
            made.record(job, set(parts) - set(job.left()))
    return list(failed.values())


def _left(job: Job, failed: dict[tuple[str, str], Failure]) -> list[str]:
    return [part for part in job.left() if (job.name, part) not in failed]


def _room(job: Job, running: Sequence[_Running], slots: int) -> bool:
    lonely = job.alone or any(one.job.alone for one in running)
    return not running or (len(running) < slots and not lonely)


def _start(job: Job, parts: list[str]) -> _Running:
    made.forget(job, parts)
    command = job.command(parts)
    job.folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with open(job.folder / "log.txt", "a") as log, open(job.folder / PRINTED, "w") as out:
        return _Running(job, parts, subprocess.Popen(
            command, stdout=out, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT,
            start_new_session=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "PYTHONPATH": path}))


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    """End the processes and their children, in good order if possible. The signal is not SIGINT,
    which an import of TensorFlow may swallow."""
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
