"""Markdown tables of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from reproduction.results import Results, Row
from reproduction.settings import Setting

from wbsp.figures.table import markdown
from wbsp.simulate.study.compare import in_bytes

NONE = "-"
NOT_RUN = "Not run."


def times(results: Results, settings: Sequence[Setting]) -> str:
    """Table of the seconds to the target: a row a model, a column a setting, the lowest in bold."""
    return _grid(results, settings, spread, lambda row: row.seconds)


def shares(results: Results, settings: Sequence[Setting]) -> str:
    """Table of the computing time in percent, of all workers and of the one that computed least."""
    return _grid(results, settings, lambda row: f"{percent(row.mean(lambda one: one.compute))} "
                 f"({percent(row.mean(lambda one: one.least))})")


def _grid(results: Results, settings: Sequence[Setting], text: Callable[[Row], str],
          least: Callable[[Row], float | None] = lambda row: None) -> str:
    if not settings:
        return NOT_RUN
    columns = []
    for setting in settings:
        rows = {row.label: row for row in results.of(setting)}
        bold = min((v for row in rows.values() if (v := least(row)) is not None), default=None)
        columns.append({label: f"**{text(row)}**" if bold is not None and least(row) == bold
                        else text(row) for label, row in rows.items()})
    labels = list(dict.fromkeys(label for column in columns for label in column))
    return markdown(["model", *(setting.title for setting in settings)],
                    [[label, *(column.get(label, NONE) for column in columns)]
                     for label in labels])


def trained(rows: Sequence[Row]) -> str:
    """Table of one cluster's models: the time to the target and what explains it."""
    if not rows:
        return NOT_RUN
    fastest = min((row.seconds for row in rows if row.reached), default=math.nan)
    goal = f"seconds to {100 * rows[0].setting.target:g} %"
    return markdown(
        ["model", goal, "of the fastest", "mini-batches", "compute %", "versions", "staleness",
         "rejected %", "traffic"],
        [[row.label, spread(row), f"{row.seconds / fastest:.2f}" if row.reached else NONE,
          f"{row.mean(lambda one: one.needed):,.0f}",
          percent(row.mean(lambda one: one.compute)),
          f"{row.mean(lambda one: one.versions):,.0f}",
          f"{row.mean(lambda one: one.staleness):.1f}", rejected(row),
          in_bytes(row.mean(lambda one: one.traffic))] for row in rows])


def timed(rows: Sequence[Row], *references: str) -> str:
    """Table of how fast the models step without a training; the ratios are to the first of
    `references` that is among the models."""
    if not rows:
        return NOT_RUN
    by_model = {row.model: row for row in reversed(rows)}
    reference = next((name for name in references if name in by_model), references[0])
    base = by_model[reference].mean(lambda one: one.pace) if reference in by_model else math.nan
    return markdown(
        ["model", "mini-batches/s", f"of {reference}'s", "compute %", "staleness",
         "pushes a version"],
        [[row.label, f"{(pace := row.mean(lambda one: one.pace)):.2f}", f"{pace / base:.2f}",
          percent(row.mean(lambda one: one.compute)),
          f"{row.mean(lambda one: one.staleness):.1f}",
          f"{row.mean(lambda one: one.pushes / one.versions if one.versions else math.nan):.1f}"]
         for row in rows])


def drifted(rows: Sequence[Row]) -> str:
    """Table of the accuracy after the same time, with many local steps."""
    if not rows:
        return NOT_RUN
    return markdown(
        ["model", "best accuracy %", "last accuracy %", "mini-batches", "of them a version"],
        [[row.label, percent(row.mean(lambda one: one.best)),
          percent(row.mean(lambda one: one.final)), f"{row.mean(lambda one: one.needed):,.0f}",
          f"{row.mean(lambda one: one.needed / one.versions if one.versions else math.nan):,.1f}"]
         for row in rows])


def ranking(results: Results, settings: Sequence[Setting]) -> str:
    """Table of the fastest model of each cluster, and of the models that are about as fast."""
    if not settings:
        return NOT_RUN
    rows = []
    for setting in settings:
        here = results.of(setting)
        ranked = sorted((row for row in here if row.reached), key=lambda row: row.seconds)
        missed = [row.label for row in here if not row.reached]
        if not ranked:
            rows.append([setting.title, NONE, NONE, NONE, NONE, ", ".join(missed)])
            continue
        first = ranked[0]
        close = [row.label for row in ranked[1:] if row.seconds <= 1.1 * first.seconds]
        others = [row for row in ranked if row.label not in (first.label, *close)]
        after = f"{others[0].label}, {others[0].seconds / first.seconds:.2f} times" if others \
            else NONE
        rows.append([setting.title, f"{first.label}, {first.seconds:.1f} s", _unbeaten(first, here),
                     ", ".join(close) or NONE, after, ", ".join(missed) or NONE])
    return markdown(["cluster", "fastest", "nobody faster in", "within 10 %", "next",
                     "target not reached"], rows)


def _unbeaten(first: Row, rows: Sequence[Row]) -> str:
    """In how many seeds no model was faster than `first`, which reached the target in all."""
    finished = [one for row in rows for one in row.outcomes if one.seconds is not None]
    unbeaten = sum(all(own.seconds <= one.seconds for one in finished if one.seed == own.seed)
                   for own in first.outcomes)
    return f"{unbeaten} of {len(first.outcomes)} seeds"


def spread(row: Row) -> str:
    """Text on the seconds to the target: their mean and range over the seeds."""
    if not row.times:
        best = row.mean(lambda one: one.best)
        return f"not reached ({percent(best)} %)"
    text = f"{fmean(row.times):.1f}"
    if len(row.times) > 1:
        text += f" ({min(row.times):.1f} to {max(row.times):.1f})"
    return text if row.reached else f"{text}, {len(row.times)} of {len(row.outcomes)} seeds"


def rejected(row: Row) -> str:
    """Text on the worker with the highest share of rejected pushes, in percent."""
    worst = max(row.outcomes[0].rejected, default=None,
                key=lambda worker: row.mean(lambda one: one.rejected.get(worker, 0.0)))
    share = 0.0 if worst is None else row.mean(lambda one: one.rejected.get(worst, 0.0))
    return f"{percent(share)} of worker {worst}'s" if share else NONE


def percent(share: float) -> str:
    return NONE if math.isnan(share) else f"{100 * share:.1f}"
