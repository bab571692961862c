"""Jobs of the reproduction, and with what their runs were made: processor, TensorFlow, CIFAR-10.

A run's own folder names none of it, so that the same command leaves the same bytes everywhere; it
is written beside the runs of a job, when they are made.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from wbsp.figures.table import markdown
from wbsp.runlog.files import write_whole

sys.path.append(str(Path(__file__).parents[2]))  # data of the checkout

FILE = "made.json"  # in a job's folder: part -> name of a thing -> what it was
NOT_RECORDED = "not recorded"


class Job(Protocol):
    """A job: one process that does several parts in their order.

    cost:  estimated seconds of a part
    alone: no other job may run at the same time
    parts: all of them
    uses:  names of what its results depend on, as in `_FIND`
    """

    name: str
    cost: float
    alone: bool
    folder: Path
    parts: Sequence[str]
    uses: Sequence[str]

    def left(self) -> list[str]:
        """Return the parts that are not done yet."""

    def command(self, parts: Sequence[str]) -> list[str]:
        """Return the command line of a process that does `parts`."""


def record(job: Job, parts: Iterable[str]) -> None:
    """Write down that `parts` of a job were made here; what is written already stays."""
    known = read(job)
    new = [part for part in parts if part not in known]
    if new:
        _write(job, known | {part: {name: _FIND[name]() for name in job.uses} for part in new})


def forget(job: Job, parts: Iterable[str]) -> None:
    """Forget with what `parts` were made: they are to be made anew."""
    known = read(job)
    if known:
        _write(job, {part: what for part, what in known.items() if part not in set(parts)})


def read(job: Job) -> dict[str, dict[str, str]]:
    """part -> name of a thing -> what it was."""
    path = job.folder / FILE
    return json.loads(path.read_text()) if path.exists() else {}


def table(jobs: Sequence[Job]) -> str:
    """Return a table of what the finished runs were made with, and of how many were."""
    names = list(_FIND)
    counts: Counter[tuple[str, ...]] = Counter()
    for job in jobs:
        known, left = read(job), set(job.left())
        for part in set(job.parts) - left:
            what = known.get(part)
            counts[tuple(what.get(name, "-") for name in names) if what
                   else (NOT_RECORDED, *["-"] * (len(names) - 1))] += 1
    return markdown([*names, "runs"], [[*what, str(n)] for what, n in counts.most_common()])


def _write(job: Job, content: dict) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    write_whole(job.folder / FILE, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


@cache
def processor() -> str:
    """Return the processor's name, from the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@cache
def tensorflow() -> str:
    """TensorFlow's version, without importing it."""
    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            pass
    return "none"


@cache
def cifar10() -> str:
    """Return the name of CIFAR-10's first file, and the beginning of its SHA-256 in hexadecimal."""
    from data.cifar10 import first_file

    path = first_file()
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}" if path else "none"


_FIND: dict[str, Callable[[], str]] = {
    "processor": processor, "TensorFlow": tensorflow, "CIFAR-10": cifar10}
