"""Accuracy and loss over time and over the summed steps of all workers.

Time shows which model is faster; steps show what its staleness costs. A comparison needs both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from wbsp.core.goal import Goal
from wbsp.figures.colors import GREY
from wbsp.figures.load import RunStatistics, by_group
from wbsp.figures.style import legend_below, line_look, new_figure, save, set_title, time_unit


def draw_curves(statistics: Sequence[RunStatistics], path: Path,
                target: Goal | None = None) -> Path | None:
    """Draw the four panels into `path`; return None if no version was ever evaluated.

    A group of several seeds is its mean with a band from the lowest to the highest seed, as far as
    all seeds go, and each seed is a thin line to its own end.
    """
    statistics = [one for one in statistics if len(one.run.evaluations.t)]
    if not statistics:
        return None
    divisor, unit = time_unit(max(one.run.evaluations.t[-1] for one in statistics))
    figure, axes = new_figure(2, 2, 10, 6.8, sharex="col", sharey="row")
    used: dict[str, int] = {}
    for group, members in by_group(statistics).items():
        sync = members[0].sync
        look = line_look(sync, used.get(sync, 0))
        used[sync] = used.get(sync, 0) + 1
        label = group if len(members) == 1 else f"{group} ({len(members)} runs)"
        found = [one.run.evaluations for one in members]
        for column, of_x in enumerate(([one.t / divisor for one in found],
                                       [one.steps for one in found])):
            for row, of_y in enumerate(([100 * one.accuracy for one in found],
                                        [one.loss for one in found])):
                lines = list(zip(of_x, of_y, strict=True))
                _draw_group(axes[row, column], lines, label, look)
    if target is not None and (place := _place(target)) is not None:
        row, height = place
        for panel in axes[row]:
            panel.axhline(height, color=GREY, linestyle=":", linewidth=1.2)
        # At the left, where all accuracies are still low.
        axes[row, 0].annotate(f"target {target.text}", (0, height), (3, 2), fontsize=8,
                              xycoords=("axes fraction", "data"), textcoords="offset points",
                              color=GREY)
    if all("text" in one.run.settings for one in statistics):
        bits = axes[1, 1].secondary_yaxis("right", functions=(lambda nats: nats / np.log(2),
                                                              lambda bits: bits * np.log(2)))
        bits.set_ylabel("bits a byte")
    set_title(axes[0, 0], "over time")
    set_title(axes[0, 1], "over the steps of all workers")
    axes[0, 0].set(ylabel="accuracy (%)")
    axes[1, 0].set(ylabel="loss", xlabel=f"time since start ({unit})")
    axes[1, 1].set(xlabel="summed worker steps")
    legend_below(figure, *axes[0, 0].get_legend_handles_labels())
    return save(figure, path)


def _place(target: Goal) -> tuple[int, float] | None:
    """Return the row of panels in which a target lies, and its height there; None: in none."""
    if target.target is None:
        return None
    rows = {"accuracy": (0, 100.0), "loss": (1, 1.0), "bits_per_byte": (1, float(np.log(2)))}
    row, unit = rows.get(target.metric.removeprefix("val_"), (None, 0.0))
    return None if row is None else (row, unit * target.target)


def _draw_group(axes: Axes, lines: list[tuple[np.ndarray, np.ndarray]], label: str,
                look: dict[str, Any]) -> None:
    if len(lines) == 1:
        x, y = lines[0]
        axes.plot(x, y, label=label, markevery=max(1, len(x) // 12), **look)
        return
    for x, y in lines:
        axes.plot(x, y, color=look["color"], linestyle=look["linestyle"], linewidth=0.6, alpha=0.5)
    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    grid = np.unique(np.concatenate([x for x, _ in lines] + [[first, last]]))
    grid = grid[(grid >= first) & (grid <= last)]
    seeds = np.array([np.interp(grid, x, y) for x, y in lines])
    axes.plot(grid, seeds.mean(0), label=label, markevery=max(1, len(grid) // 12), **look)
    axes.fill_between(grid, seeds.min(0), seeds.max(0), color=look["color"], alpha=0.18,
                      linewidth=0)
