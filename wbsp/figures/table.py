"""The numbers of all figures as one Markdown page, for those who want to compute with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from wbsp.figures.bars import times_to
from wbsp.figures.load import MOST_WORKERS, RunStatistics
from wbsp.runlog.report import PHASES

_NONE = "-"


def write_table(facts: Sequence[RunStatistics], path: Path, target: float | None = None) -> Path:
    """Write `path`: a row a run, a row a group on its time to `target`, a row a worker."""
    lines = ["# Numbers of the figures", "",
             "Times in seconds; shares in % of the workers' time; staleness of accepted pushes in "
             "versions. A dash stands for what was not measured or not reached.", "", "## Runs", "",
             "The number is that of the run's timeline and trace.", ""]
    goal = [] if target is None else [f"time to {100 * target:g} %"]
    lines += _table(
        ["", "run", "sync", "seed", "workers", *goal, "final accuracy", "versions",
         "steps per worker", *(f"{kind} %" for kind in PHASES), "staleness mean", "max",
         "duration", "command"],
        ([str(number), *_run_row(fact, target)] for number, fact in enumerate(facts, 1)))
    if target is not None:
        lines += ["", f"## Time to {100 * target:g} % accuracy", ""]
        lines += _table(["group", "mean", "lowest", "highest", "runs that reached it",
                         "fastest rival", "time / the rival's"], _target_rows(facts, target))
    lines += ["", "## Workers", ""]
    lines += _table(["run", "worker", "steps", *(f"{kind} %" for kind in PHASES)],
                    (row for fact in facts for row in _worker_rows(fact)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _run_row(fact: RunStatistics, target: float | None) -> list[str]:
    stale = fact.staleness
    steps = [fact.steps[worker] for worker in fact.workers]
    named = ", ".join(f"{w}: {n}" for w, n in fact.steps.items())
    goal = [] if target is None else [_number(fact.run.time_to(target))]
    return [fact.name, fact.sync, _text(fact.seed), str(len(fact.workers)), *goal,
            _number(fact.last_accuracy, ".4f"), str(len(fact.commits)),
            named if len(steps) <= MOST_WORKERS else f"{min(steps)} to {max(steps)}",
            *(_number(100 * fact.total_shares[kind], ".1f") for kind in PHASES),
            _number(stale.mean() if len(stale) else None, ".2f"),
            _number(stale.max() if len(stale) else None, "d"), _number(fact.duration),
            f"`{command}`" if (command := fact.run.settings.get("command")) else _NONE]


def _target_rows(facts: Sequence[RunStatistics], target: float) -> Iterator[list[str]]:
    for reached in times_to(facts, target):
        yield [reached.group, _number(reached.mean), _number(min(reached.times, default=None)),
               _number(max(reached.times, default=None)), f"{len(reached.times)} of {reached.runs}",
               reached.rival or _NONE, _number(reached.ratio, ".3f")]


def _worker_rows(fact: RunStatistics) -> Iterator[list[str]]:
    for worker in fact.pick_workers(MOST_WORKERS):
        shares = fact.shares.get(worker, {})
        yield [fact.name, str(worker), str(fact.steps[worker]),
               *(_number(100 * shares[kind] if shares else None, ".1f") for kind in PHASES)]


def _number(value: float | None, form: str = ".2f") -> str:
    return _NONE if value is None or math.isnan(value) else format(value, form)


def _text(value: object) -> str:
    return _NONE if value is None else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; a bar inside a cell is escaped."""
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
            for row in [head, ["---"] * len(head), *rows]]
