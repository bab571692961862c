"""The page of the long runs: tables and a figure, from the book."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

from reproduction import whole_figures, whole_report
from reproduction.book import (
    BANDWIDTHS,
    HETEROGENEITY,
    MEASURED,
    PERIOD,
    RATES,
    SECONDS,
    SEEDS,
    SMALL,
    Book,
    Cell,
    Entry,
    alone,
)
from reproduction.long import ALONE, FURTHER, LABELS, PUBLISHED, label, published, wholes
from reproduction.report import refresh
from reproduction.tables import NONE, NOT_RUN
from reproduction.whole_report import spread

from wbsp.figures.table import markdown
from wbsp.runlog.files import write_whole

TARGETS = (0.45, 0.5, 0.55, 0.6)
KINDS = tuple(Cell(h, n, MEASURED) for n in SECONDS for h in sorted(HETEROGENEITY))
SMALLS = tuple(Cell(h, n, b) for n, b, h in product(SECONDS, BANDWIDTHS, sorted(HETEROGENEITY)))
CELLS = (*SMALLS, published())
AHEAD = label("pcc:weight=work"), label("pcc:weight=work:late=true")
PAPERS = tuple(label(model) for model in PUBLISHED + FURTHER)


def write(book: Book, page: Path) -> None:
    """Write the marked parts of `page`, and the figures beside it."""
    figure = _draw(book, page.parent / "figures/long-runs.png")
    ends = whole_figures.draw(book, page.parent / "figures", _looks())
    network = whole_figures.draw_network(book, page.parent / "figures", _looks())
    parts = {"scope": scope(book), "rates": rates(book), "diverged": diverged(book),
             "headline": headline(book),
             "cells": "\n\n".join(filter(None, (cell(book, one) for one in CELLS))) or NOT_RUN,
             "figure-long": "![accuracy over time](figures/long-runs.png)" if figure else NOT_RUN,
             **{f"whole-{name}": whole_report.table(book, where)
                for name, where in wholes().items()},
             **{f"whole-headline-{name}": whole_report.headline(book, where)
                for name, where in wholes().items()},
             "figure-whole": "\n\n".join(f"![{what}](figures/{file.name})"
                                         for what, file in ends.items()) or NOT_RUN,
             "figure-network": f"![accuracy over time, to the end](figures/{network.name})"
                               if network else NOT_RUN}
    write_whole(page, refresh(page.read_text(encoding="utf-8"), parts).encode())


def scope(book: Book) -> str:
    """Table of how many runs are done."""
    names = {one.name for one in SMALLS}
    parts = [one for one in book.entries.values() if one.cell in names]
    rows = [[str(n), str(sum(_workers(one) == n and one.seed == seed for one in parts))]
            for n in SECONDS for seed in SEEDS]
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


def diverged(book: Book) -> str:
    """Table of the runs that diverged."""
    rows = []
    for n, name, rate in product(SECONDS, LABELS, sorted(RATES)):
        of_these = [where for where in SMALLS if where.workers == n]
        if fallen := [(where.title, one) for where in of_these
                      for one in book.of(where, name, rate) if one.diverged]:
            runs = sum(len(book.of(where, name, rate)) for where in of_these)
            rows.append([name, str(n), f"{rate:g}", f"{len(fallen)} of {runs}",
                         "; ".join(f"{title}, seed {one.seed}" for title, one in fallen)])
    return markdown(["model", "workers", "rate", "runs that diverged", "which"],
                    rows) if rows else NONE


def _rate_cell(one: Entry | None, best: bool) -> str:
    if one is None:
        return NONE
    text = f"{100 * one.mean:.1f}, at the end {100 * one.final:.1f}"
    return f"**{text}**" if best else text


def cell(book: Book, where: Cell) -> str:
    """Table of one cluster: each model at its best rate."""
    rows = []
    for name, found in [("one fast worker alone", lone(book, where)),
                        *((name, book.best(where, name)) for name in LABELS)]:
        if found:
            rows.append([name, f"{found[0].rate:g}", str(len(found)),
                         *(spread([one.time_to(target) for one in found], 1, ".1f")
                           for target in TARGETS),
                         spread([one.final for one in found], 100, ".1f"),
                         f"{100 * fmean(one.compute for one in found):.1f}",
                         f"{fmean(one.pushes for one in found):,.0f}",
                         f"{fmean(one.versions for one in found):,.0f}"])
    return "" if len(rows) < 2 else f"{where.title}:\n\n" + markdown(
        ["model", "rate", "seeds", *(f"s to {100 * target:.0f} %" for target in TARGETS),
         "accuracy at the end", "compute %", "pushes", "versions"], rows)


def lone(book: Book, where: Cell) -> list[Entry]:
    """Return the entries of one fast worker alone, for as long as a run in this cluster."""
    if where.network != SMALL:
        return []
    return [replace(one, accuracy=one.accuracy[:round(where.seconds / PERIOD) + 1])
            for one in book.best(alone(), ALONE)]


def headline(book: Book) -> str:
    """Table of pcc by work, and of it just in time, beside the best published model of each
    cluster, and beside one fast worker alone."""
    rows, means = [], []
    for model in AHEAD:
        ratios, to_alone = [], []
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
            at = [one.time_to(target) for one in lone(book, where)]
            if at and max(at) < math.inf:
                to_alone.append(ours[target, model] / fmean(at))
                beside = [f"{fmean(at):.1f}", f"{to_alone[-1]:.2f}"]
            else:
                beside = [NONE] * 2
            rows.append([model, where.title, f"{100 * target:.0f} %", f"{ours[target, model]:.1f}",
                         f"{best}, {theirs[target, best]:.1f}", f"{ratios[-1]:.2f}",
                         *beside, str(len(book.best(where, model)))])
        if ratios:
            over_alone = f", {fmean(to_alone):.2f} to one worker alone" if to_alone else ""
            means.append(f"{fmean(ratios):.2f}{over_alone} ({model})")
    if not rows:
        return NOT_RUN
    return markdown(["model", "cluster", "target", "s", "s of the best published", "ratio",
                     "s of one fast worker alone", "ratio", "seeds"],
                    rows) + f"\n\nMean of the ratios: {'; '.join(means)}."


def _times(book: Book, where: Cell, names: Sequence[str]) -> dict[tuple[float, str], float]:
    """(target, model) -> mean seconds to it at the model's best rate."""
    return {(target, name): fmean(one.time_to(target) for one in found)
            for name in names for target in TARGETS
            if (found := book.best(where, name))}


def _workers(one: Entry) -> int:
    return int(one.cell.split("-")[1])


def _looks() -> dict[str, dict]:
    """How each model's line looks: one colour a synchronization model, one dash a form of it."""
    from wbsp.figures.style import line_look

    looks: dict[str, dict] = {}
    for name in LABELS:
        sync = name.split()[0]
        index = sum(one.split()[0] == sync for one in looks)
        looks[name] = line_look(sync, index) | {"linestyle": ("-", "--", ":", "-.")[index],
                                                "markersize": 3}
    return looks


def _draw(book: Book, path: Path) -> Path | None:
    """Draw the accuracy over time in all kinds of clusters, each model at its best rate."""
    from wbsp.figures.style import legend_below, new_figure, save, set_title

    kinds = [kind for kind in KINDS if any(book.best(kind, name) for name in LABELS)]
    if not kinds:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = new_figure(-(-len(kinds) // 3), min(3, len(kinds)), 12,
                              3.4 * -(-len(kinds) // 3), sharey=True)
    looks = _looks()
    for panel, kind in zip(axes.flat, kinds, strict=False):
        for name in LABELS:
            if found := book.best(kind, name):
                length = min(len(one.accuracy) for one in found)
                mean = [100 * fmean(one.accuracy[i] for one in found) for i in range(length)]
                panel.plot([PERIOD * i for i in range(length)], mean, label=name,
                           markevery=max(1, length // 8), **looks[name])
        set_title(panel, kind.title)
        panel.set(xlabel="virtual seconds", ylim=(10, None))
    axes[0, 0].set(ylabel="accuracy (%)")
    legend_below(figure, *axes[0, 0].get_legend_handles_labels())
    return save(figure, path)
