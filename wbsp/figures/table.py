"""The numbers of all figures as one Markdown page, for further use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from wbsp.core.goal import Goal
from wbsp.core.stats import sum_phases
from wbsp.figures.load import MOST_WORKERS, RunStatistics, times_to

_NONE = "-"


def write_table(statistics: Sequence[RunStatistics], path: Path,
                target: Goal | None = None) -> Path:
    """Write `path`: a row for each run, for each group's time to `target`, and for each worker."""
    lines = ["# Numbers of the figures", "",
             "Times in seconds; shares in % of the workers' time; staleness of accepted pushes in "
             "versions. A dash stands for what was not measured or not reached.", "", "## Runs", "",
             "The number is that of the run's timeline and trace.", ""]
    goal = [] if target is None else [f"time to {target.text}"]
    phases = [*sum_phases(one for stats in statistics for one in stats.seconds.values())]
    lines.append(markdown(
        ["", "run", "sync", "seed", "workers", *goal, "final accuracy", "versions",
         "steps per worker", *(f"{phase} %" for phase in phases), "staleness mean", "max",
         "duration", "command"],
        ([str(number), *_run_row(stats, phases, target)]
         for number, stats in enumerate(statistics, 1))))
    if target is not None:
        lines += ["", f"## Time to {target.whole}", "", markdown(
            ["group", "mean", "lowest", "highest", "runs that reached it", "fastest rival",
             "time / the rival's"], _target_rows(statistics, target))]
    lines += ["", "## Workers", "", markdown(
        ["run", "worker", "steps", *(f"{phase} %" for phase in phases)],
        (row for stats in statistics for row in _worker_rows(stats, phases)))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _run_row(stats: RunStatistics, phases: list[str], target: Goal | None) -> list[str]:
    stale = stats.staleness
    steps = [stats.steps[worker] for worker in stats.workers]
    named = ", ".join(f"{w}: {n}" for w, n in stats.steps.items())
    goal = [] if target is None else [_number(stats.run.time_to(target))]
    return [stats.name, stats.sync, _text(stats.seed), str(len(stats.workers)), *goal,
            _number(stats.last_accuracy, ".4f"), str(stats.version_number),
            named if len(steps) <= MOST_WORKERS else f"{min(steps)} to {max(steps)}",
            *(_number(100 * stats.total_shares.get(phase, 0.0), ".1f") for phase in phases),
            _number(stale.mean() if len(stale) else None, ".2f"),
            _number(stale.max() if len(stale) else None, "d"), _number(stats.duration),
            f"`{command}`" if (command := stats.run.settings.get("command")) else _NONE]


def _target_rows(statistics: Sequence[RunStatistics], target: Goal) -> Iterator[list[str]]:
    for reached in times_to(statistics, target):
        yield [reached.group, _number(reached.mean), _number(min(reached.times, default=None)),
               _number(max(reached.times, default=None)), f"{len(reached.times)} of {reached.runs}",
               reached.rival or _NONE, _number(reached.ratio, ".3f")]


def _worker_rows(stats: RunStatistics, phases: list[str]) -> Iterator[list[str]]:
    for worker in stats.pick_workers(MOST_WORKERS):
        shares = stats.shares.get(worker, {})
        yield [stats.name, str(worker), str(stats.steps[worker]),
               *(_number(100 * shares.get(phase, 0.0) if shares else None, ".1f")
                 for phase in phases)]


def _number(value: float | None, form: str = ".2f") -> str:
    return _NONE if value is None or math.isnan(value) else format(value, form)


def _text(value: object) -> str:
    return _NONE if value is None else str(value)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar inside a cell is escaped."""
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
                     for row in [head, ["---"] * len(head), *rows])
