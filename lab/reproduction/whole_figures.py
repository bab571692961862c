"""Figures of the whole trainings of two workers at the published rate: what the papers plot; and of
those of the published network the first of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from reproduction.book import WHOLE_PERIOD, Book
from reproduction.long import whole, wholes
from reproduction.whole_report import TARGETS, Runs, published

Looks = dict[str, dict]  # how a model's line looks, by its name in tables


def draw(book: Book, folder: Path, looks: Looks) -> dict[str, Path]:
    """Draw all figures into `folder`; what each shows -> its file. Nothing before the first run."""
    runs = published(book, whole(2))
    if not runs:
        return {}
    kinds = {"accuracy over time, to the end": ("trainings", _over_time),
             "time to several targets": ("times", _times),
             "accuracy at the end": ("accuracy", _ends),
             "share of time spent computing": ("computing", _computing)}
    return {what: one(runs, folder / f"whole-{name}.png", looks)
            for what, (name, one) in kinds.items()}


def draw_network(book: Book, folder: Path, looks: Looks) -> Path | None:
    """Draw the published network's accuracy over time; None before the first run."""
    runs = published(book, wholes()["published-network"])
    return _over_time(runs, folder / "whole-network.png", looks) if runs else None


def _over_time(runs: Runs, path: Path, looks: Looks) -> Path:
    """Draw each model's mean accuracy, over time and over its logarithm."""
    from wbsp.figures.style import legend_below, new_figure, save, set_title

    figure, axes = new_figure(1, 2, 12, 4.6, sharey=True)
    for name, found in runs.items():
        mean = [100 * fmean(at) for at in zip(*(one.accuracy for one in found), strict=False)]
        seconds = [WHOLE_PERIOD * i for i in range(len(mean))]
        for panel, first in zip(axes.flat, (0, 1), strict=True):
            panel.plot(seconds[first:], mean[first:], label=name,
                       markevery=max(1, len(mean) // 8), **looks[name])
    for panel in axes.flat:
        panel.set(xlabel="virtual seconds")
    axes[0, 0].set(ylabel="accuracy (%)", ylim=(10, None))
    axes[0, 1].set(xscale="log")
    axes[0, 1].xaxis.set_major_formatter("{x:g}")
    set_title(axes[0, 0], "over time")
    set_title(axes[0, 1], "the same, time logarithmic")
    legend_below(figure, *axes[0, 0].get_legend_handles_labels())
    return save(figure, path)


def _times(runs: Runs, path: Path, looks: Looks) -> Path:
    """Draw a panel a target: seconds to it, and how many runs reached it where some did not."""
    from wbsp.figures.style import new_figure, save, set_title

    targets = [target for target in TARGETS if any(
        one.time_to(target) < math.inf for found in runs.values() for one in found)]
    figure, axes = new_figure(1, max(1, len(targets)), 12, 1.2 + 0.26 * len(runs), sharey=True,
                              sharex=True)
    longest = max(one.period * len(one.accuracy) for found in runs.values() for one in found)
    for panel, target in zip(axes.flat, targets, strict=False):
        for row, (name, found) in enumerate(runs.items()):
            times = [t for one in found if (t := one.time_to(target)) < math.inf]
            _dots(panel, row, times, looks[name])
            if len(times) < len(found):
                panel.annotate(f"{len(times)} of {len(found)}", (1, row), (-2, 0), fontsize=7.5,
                               xycoords=("axes fraction", "data"), textcoords="offset points",
                               ha="right", va="center")
        set_title(panel, f"to {100 * target:g} %")
        panel.set(xscale="log", xlabel="virtual seconds", xlim=(None, 4 * longest))
        panel.xaxis.set_major_formatter("{x:g}")
    _label_rows(axes[0, 0], list(runs))
    return save(figure, path)


def _ends(runs: Runs, path: Path, looks: Looks) -> Path:
    """Draw each model's accuracy at the end, and the mean as a number."""
    from wbsp.figures.style import new_figure, save

    figure, [[axes]] = new_figure(1, 1, 8, 1 + 0.26 * len(runs))
    for row, (name, found) in enumerate(runs.items()):
        values = [100 * one.final for one in found]
        _dots(axes, row, values, looks[name])
        _number(axes, row, max(values), fmean(values))
    axes.set(xlabel="accuracy at the end (%)")
    axes.margins(x=0.08)
    _label_rows(axes, list(runs))
    return save(figure, path)


def _computing(runs: Runs, path: Path, looks: Looks) -> Path:
    """Draw a bar a model; the seeds do not differ by anything that one could see."""
    from wbsp.figures.style import new_figure, save

    figure, [[axes]] = new_figure(1, 1, 8, 1 + 0.26 * len(runs))
    for row, (name, found) in enumerate(runs.items()):
        share = 100 * fmean(one.compute for one in found)
        axes.barh(row, share, 0.66, color=looks[name]["color"], alpha=0.85)
        _number(axes, row, share, share)
    axes.set(xlabel="share of the workers' time in which they compute (%)", xlim=(0, 108))
    _label_rows(axes, list(runs))
    return save(figure, path)


def _dots(axes, row: int, values: Sequence[float], look: dict) -> None:
    """Draw a dot a seed, and their mean as a stroke."""
    if values:
        axes.plot([min(values), max(values)], [row, row], color=look["color"], linewidth=2)
        axes.plot(values, [row] * len(values), "o", color=look["color"], markersize=5)
        axes.plot(fmean(values), row, "|", color="black", markersize=13, markeredgewidth=1.6)


def _number(axes, row: int, place: float, value: float) -> None:
    axes.annotate(f"{value:.1f}", (place, row), (7, 0), fontsize=8, textcoords="offset points",
                  va="center")


def _label_rows(axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set(ylim=(len(names) - 0.4, -0.6))
    axes.grid(axis="y", visible=False)
