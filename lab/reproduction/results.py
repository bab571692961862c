"""Results of the finished runs: an outcome for each run, a row for runs that differ by the seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np
from reproduction.settings import Setting
from reproduction.work import Simulation

from wbsp.runlog.reader import Run


@dataclass(frozen=True)
class Outcome:
    """The numbers of one run. Times in virtual seconds, shares and accuracies 0..1."""

    seed: int
    seconds: float | None  # to the target; None: not reached, or no target
    best: float  # highest accuracy of an evaluated version; NaN without evaluations
    final: float  # accuracy of the last version
    end: float  # time of the run's end
    needed: float  # mini-batches of all workers, up to the target or else the end
    pace: float  # mini-batches a second
    compute: float  # share of the workers' time
    least: float  # `compute` of the worker that computes least
    pushes: int
    versions: int
    staleness: float  # mean of the accepted pushes, in versions
    rejected: dict[int, float]  # worker -> share of its pushes
    traffic: float  # bytes
    folder: Path


def outcome(run: Run, target: float) -> Outcome:
    """Return the numbers of a finished run."""
    summary, settings, seen = run.summary, run.settings, run.evaluations
    total = summary["total"]
    reached = np.flatnonzero(seen.accuracy >= target)
    end, batches = summary["t"], total["samples"] / settings["batch_size"]
    part = seen.steps[reached[0]] / total["steps"] if reached.size else 1.0
    return Outcome(
        settings["seed"], run.time_to(target), float(max(seen.accuracy, default=np.nan)),
        float(seen.accuracy[-1]) if len(seen.t) else np.nan, end,
        float(part * batches), batches / end, total["shares"]["compute"],
        min(one["shares"]["compute"] for one in summary["workers"].values()),
        total["pushes"], summary["version"], summary["staleness"]["mean"],
        {int(worker): one["rejected"] / one["pushes"] if one["pushes"] else 0.0
         for worker, one in summary["workers"].items()},
        settings["model_bytes"] * (total["pushes"] + total["pulls"]), run.folder)


@dataclass(frozen=True)
class Row:
    """The runs of one model with one set of options in one setting. Means are over the seeds."""

    model: str
    label: str  # the model and its options
    setting: Setting
    outcomes: tuple[Outcome, ...]

    @cached_property
    def times(self) -> list[float]:
        """Seconds to the target, of the runs that reached it."""
        return [one.seconds for one in self.outcomes if one.seconds is not None]

    @property
    def reached(self) -> bool:
        """True when every run reached the target."""
        return len(self.times) == len(self.outcomes)

    @property
    def seconds(self) -> float | None:
        """Mean seconds to the target; None unless every run reached it."""
        return fmean(self.times) if self.reached else None

    def mean(self, of: Callable[[Outcome], float]) -> float:
        return fmean(map(of, self.outcomes))


class Results:
    """The finished runs of some settings, read once.

    A further seed of a setting counts only if the runs of all its models are finished.
    """

    def __init__(self, jobs: Sequence[Simulation]):
        self.jobs = jobs
        found: dict[tuple[str, str, str], list[Outcome]] = {}
        self.settings = {(job.setting.page, job.setting.name): job.setting for job in jobs}
        self._runs: dict[tuple[str, str], list[Run]] = {}
        for job in jobs:
            page, name = job.setting.page, job.setting.name
            runs = {model: run for model in job.setting.models if (run := job.run(model))}
            if (page, name) in self._runs and len(runs) < len(job.setting.models):
                continue  # its models would be compared under different seeds
            if runs:
                self._runs.setdefault((page, name), []).extend(runs.values())
            for model, run in runs.items():
                found.setdefault((page, name, model), []).append(outcome(run, job.setting.target))
        self.rows = {key: Row(key[2], _label(self.settings[key[:2]], key[2]),
                              self.settings[key[:2]], tuple(outcomes))
                     for key, outcomes in found.items()}

    def of_page(self, page: str) -> list[Setting]:
        """Return the settings of a page that have a run, in their order."""
        return [setting for setting in self.settings.values()
                if setting.page == page and self.of(setting)]

    def of(self, setting: Setting) -> list[Row]:
        """Return the rows of a setting, in the order of its models."""
        return [row for key, row in self.rows.items()
                if key[:2] == (setting.page, setting.name)]

    def row(self, page: str, name: str, model: str) -> Row | None:
        return self.rows.get((page, name, model))

    def runs(self, page: str, *names: str) -> list[Run]:
        """Return all finished runs of some settings, for figures."""
        return [run for name in names for run in self._runs.get((page, name), [])]


def _label(setting: Setting, model: str) -> str:
    options = setting.options.get(model, {})
    return " ".join([model, *(f"{key}={value}" for key, value in options.items())])
