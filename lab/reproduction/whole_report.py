"""Whole trainings on the page of the long runs: tables, from the book."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from reproduction.book import RATES, USUAL, Book, Cell, Entry, alone
from reproduction.long import ALONE, LABELS, OURS, label
from reproduction.tables import NONE, NOT_RUN

from wbsp.figures.table import markdown

TARGETS = (0.4, 0.5, 0.55, 0.6, 0.65, 0.7)
# The paper's rivals as its code runs them, and as textbooks have them; bsp is the same in both.
RUNNERS = "bsp", "ssp refresh=published", "asp refresh=published"
TEXTBOOK = "bsp", "ssp s=40", "asp"
AHEAD = ("wbsp", "pcc", "pcc commit=every_push", *map(label, OURS))

Runs = dict[str, list[Entry]]  # by the model's name in tables


def published(book: Book, where: Cell) -> Runs:
    """Return the runs of each model in a cluster, at the published rate."""
    found = {name: book.of(where, name, USUAL) for name in LABELS}
    return {name: runs for name, runs in found.items() if runs}


def table(book: Book, where: Cell) -> str:
    """Table of all whole trainings in a cluster, each rate by itself."""
    lines = []
    for title, cell, name in [("one fast worker alone", alone(where.epochs), ALONE),
                              *((name, where, name) for name in LABELS)]:
        for rate in sorted(RATES):
            if where.network == cell.network and (found := book.of(cell, name, rate)):
                seconds = fmean(one.period * (len(one.accuracy) - 1) for one in found)
                lines.append([title, f"{rate:g}", str(len(found)),
                              *(spread([one.time_to(target) for one in found], 1, ".0f")
                                for target in TARGETS),
                              spread([one.final for one in found], 100, ".1f"), f"{seconds:,.0f}",
                              f"{100 * fmean(one.compute for one in found):.1f}",
                              f"{fmean(one.pushes for one in found):,.0f}",
                              f"{fmean(one.versions for one in found):,.0f}"])
    return markdown(["model", "rate", "seeds", *(f"s to {100 * t:.0f} %" for t in TARGETS),
                     "accuracy at the end", "s in all", "compute %", "pushes", "versions"],
                    lines) if any(line[0] in LABELS for line in lines) else NOT_RUN


def headline(book: Book, where: Cell) -> str:
    """Table of time to accuracy beside the fastest of the paper's rivals, and of the textbook's."""
    lines, runs = [], published(book, where)
    for name in AHEAD:
        line = [name]
        for rivals in (RUNNERS, TEXTBOOK):
            line += _beside(runs, name, rivals)
        if line.count(NONE) < len(line) - 1:
            lines.append(line)
    return markdown(["model", "target", "s", "s of the fastest published rival", "less time",
                     "target", "s", "s of the fastest rival of the textbook", "less time"],
                    lines) if lines else NOT_RUN


def _beside(runs: Runs, name: str, rivals: Sequence[str]) -> list[str]:
    """Target, seconds, the fastest rival's, and how much less that is."""
    for target in reversed(TARGETS):
        ours = _mean(runs.get(name, []), target)
        times = {rival: _mean(runs.get(rival, []), target) for rival in rivals}
        best = min(times, key=times.__getitem__)
        if max(ours, times[best]) < math.inf:
            return [f"{100 * target:.0f} %", f"{ours:.0f}", f"{best}, {times[best]:.0f}",
                    f"{100 * (1 - ours / times[best]):.0f} %"]
    return [NONE] * 4


def _mean(runs: Sequence[Entry], target: float) -> float:
    return fmean(one.time_to(target) for one in runs) if runs else math.inf


def spread(values: Sequence[float], factor: float, form: str) -> str:
    """Mean and range of those that are finite, and how many that are."""
    reached = [factor * value for value in values if value < math.inf]
    if not reached:
        return NONE
    text = format(fmean(reached), form)
    if len(reached) > 1:
        text += f" ({min(reached):{form}} to {max(reached):{form}})"
    return text if len(reached) == len(values) else f"{text}, {len(reached)} of {len(values)}"
