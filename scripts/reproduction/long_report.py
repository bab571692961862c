"""The page of the long runs: tables and a figure, from the book."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from reproduction.long import (
    BANDWIDTHS,
    FURTHER,
    HETEROGENEITY,
    LABELS,
    MEASURED,
    PERIOD,
    PUBLISHED,
    RATES,
    SECONDS,
    SEEDS,
    Book,
    Cell,
    Entry,
    label,
)
from reproduction.report import refresh
from reproduction.tables import NONE, NOT_RUN

from wbsp.runlog.files import write_whole
from wbsp.simulate.compare import markdown

TARGETS = (0.45, 0.5, 0.55, 0.6)
KINDS = tuple(Cell(h, n, MEASURED) for n in SECONDS for h in sorted(HETEROGENEITY))
CELLS = tuple(Cell(h, n, b) for n, b, h in product(SECONDS, BANDWIDTHS, sorted(HETEROGENEITY)))
AHEAD = label("pcc:weight=work"), label("pcc:weight=work:late=true")
PAPERS = tuple(label(model) for model in PUBLISHED + FURTHER)


def write(book: Book, page: Path) -> None:
    """Write the marked parts of `page`, and the figure beside it."""
    figure = _draw(book, page.parent / "figures/long-runs.png")
    parts = {"scope": scope(book), "rates": rates(book), "headline": headline(book),
             "cells": "\n\n".join(filter(None, (cell(book, one) for one in CELLS))) or NOT_RUN,
             "figure-long": "![accuracy over time](figures/long-runs.png)" if figure else NOT_RUN}
    write_whole(page, refresh(page.read_text(encoding="utf-8"), parts).encode())


def scope(book: Book) -> str:
    """Table of how many runs are done."""
    rows = [[str(n), str(sum(_workers(one) == n and one.seed == seed for one in
                             book.entries.values()))] for n in SECONDS for seed in SEEDS]
    by_seed = [rows[i:i + len(SEEDS)] for i in range(0, len(rows), len(SEEDS))]
    return markdown(["workers", "virtual seconds", *(f"runs under seed {seed}" for seed in SEEDS)],
                    [[part[0][0], str(SECONDS[int(part[0][0])]), *(row[1] for row in part)]
                     for part in by_seed])


def rates(book: Book) -> str:
    """Table of each model's mean accuracy over time at each rate, under seed 0."""
    rows = []
    for kind, name in product(KINDS, LABELS):
        tried = {rate: found[0] for rate in RATES if (found := book.of(kind, name, rate))}
        if len(tried) > 1:
            best = book.best_rate(kind, name)
            rows.append([kind.title, name, *(_rate_cell(tried.get(rate), rate == best)
                                             for rate in sorted(RATES))])
    return markdown(["cluster", "model", *(f"rate {rate:g}" for rate in sorted(RATES))],
                    rows) if rows else NOT_RUN


def _rate_cell(one: Entry | None, best: bool) -> str:
    if one is None:
        return NONE
    text = f"{100 * one.mean:.1f}, at the end {100 * one.final:.1f}"
    return f"**{text}**" if best else text


def cell(book: Book, where: Cell) -> str:
    """Table of one cluster: each model at its best rate."""
    rows = []
    for name in LABELS:
        if found := book.best(where, name):
            rows.append([name, f"{found[0].rate:g}", str(len(found)),
                         *(_spread([one.time_to(target) for one in found]) for target in TARGETS),
                         _percent([one.final for one in found]),
                         f"{100 * fmean(one.compute for one in found):.1f}",
                         f"{fmean(one.pushes for one in found):,.0f}",
                         f"{fmean(one.versions for one in found):,.0f}"])
    return "" if not rows else f"{where.title}:\n\n" + markdown(
        ["model", "rate", "seeds", *(f"s to {100 * target:.0f} %" for target in TARGETS),
         "accuracy at the end", "compute %", "pushes", "versions"], rows)


def headline(book: Book) -> str:
    """Table of pcc by work, and of it just in time, beside the best published model of each
    cluster."""
    rows, means = [], []
    for model in AHEAD:
        ratios = []
        for where in CELLS:
            ours, theirs = _times(book, where, [model]), _times(book, where, PAPERS)
            # the highest target that both reach in every seed
            target = next((t for t in reversed(TARGETS) if ours.get((t, model), math.inf) < math.inf
                           and min((theirs[t, name] for name in PAPERS if (t, name) in theirs),
                                   default=math.inf) < math.inf), None)
            if target is None:
                continue
            best = min((name for name in PAPERS if (target, name) in theirs),
                       key=lambda name: theirs[target, name])
            ratios.append(ours[target, model] / theirs[target, best])
            rows.append([model, where.title, f"{100 * target:.0f} %", f"{ours[target, model]:.1f}",
                         f"{best}, {theirs[target, best]:.1f}", f"{ratios[-1]:.2f}",
                         str(len(book.best(where, model)))])
        if ratios:
            means.append(f"{fmean(ratios):.2f} ({model})")
    if not rows:
        return NOT_RUN
    return markdown(["model", "cluster", "target", "s", "s of the best published", "ratio",
                     "seeds"], rows) + f"\n\nMean of the ratios: {', '.join(means)}."


def _times(book: Book, where: Cell, names: Sequence[str]) -> dict[tuple[float, str], float]:
    """(target, model) -> mean seconds to it at the model's best rate."""
    return {(target, name): fmean(one.time_to(target) for one in found)
            for name in names for target in TARGETS
            if (found := book.best(where, name))}


def _workers(one: Entry) -> int:
    return int(one.cell.split("-")[1])


def _spread(values: list[float]) -> str:
    reached = [value for value in values if value < math.inf]
    if not reached:
        return NONE
    text = f"{fmean(reached):.1f}"
    if len(reached) > 1:
        text += f" ({min(reached):.1f} to {max(reached):.1f})"
    return text if len(reached) == len(values) else f"{text}, {len(reached)} of {len(values)}"


def _percent(values: list[float]) -> str:
    text = f"{100 * fmean(values):.1f}"
    return text if len(values) == 1 else \
        f"{text} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def _draw(book: Book, path: Path) -> Path | None:
    """Draw the accuracy over time in all kinds of clusters, each model at its best rate."""
    from wbsp.figures.style import legend_below, line_look, new_figure, save, set_title

    kinds = [kind for kind in KINDS if any(book.best(kind, name) for name in LABELS)]
    if not kinds:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = new_figure(-(-len(kinds) // 3), min(3, len(kinds)), 12,
                              3.4 * -(-len(kinds) // 3), sharey=True)
    look: dict[str, dict] = {}
    for name in LABELS:
        sync = name.split()[0]
        index = sum(one.split()[0] == sync for one in look)  # of the forms of one model
        look[name] = line_look(sync, index) | {"linestyle": ("-", "--", ":")[index],
                                               "markersize": 3}
    for panel, kind in zip(axes.flat, kinds, strict=False):
        for name in LABELS:
            if found := book.best(kind, name):
                length = min(len(one.accuracy) for one in found)
                mean = [100 * fmean(one.accuracy[i] for one in found) for i in range(length)]
                panel.plot([PERIOD * i for i in range(length)], mean, label=name,
                           markevery=max(1, length // 8), **look[name])
        set_title(panel, kind.title)
        panel.set(xlabel="virtual seconds", ylim=(10, None))
    axes[0, 0].set(ylabel="accuracy (%)")
    legend_below(figure, *axes[0, 0].get_legend_handles_labels())
    return save(figure, path)
