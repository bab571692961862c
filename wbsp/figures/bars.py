"""Bars: time to a target, how each worker spent its time, and how stale updates were."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wbsp.core.goal import ACCURACY, Goal
from wbsp.figures import style
from wbsp.figures.colors import PHASE_COLORS, sync_look
from wbsp.figures.load import MOST_WORKERS, Reached, RunStatistics, by_group, times_to


def draw_time_to_target(statistics: Sequence[RunStatistics], path: Path,
                        target: Goal) -> Path | None:
    """Draw a bar for each group: the mean over the seeds, a dot for each seed, and the ratio to the
    fastest rival.

    A group in which no run reached the target gets a hatched bar as long as its longest run.
    Returns None if no version was ever evaluated.
    """
    groups = times_to(statistics, target)
    if all(reached.best is None for reached in groups):
        return None
    ends = [max(reached.times, default=reached.waited) for reached in groups]
    divisor, unit = style.time_unit(max(ends))
    texts = [_describe(reached, target, unit, divisor) for reached in groups]
    width = 7.0  # inches of the bars and their texts
    figure, [[axes]] = style.new_figure(1, 1, width + 2.5, 1.3 + 0.55 * len(groups))
    for row, (reached, end, text) in enumerate(zip(groups, ends, texts, strict=True)):
        color = sync_look(reached.sync)[0]
        if reached.times:
            axes.barh(row, reached.mean / divisor, 0.62, color=color, alpha=0.85,
                      hatch=None if reached.complete else "//", edgecolor="white")
            dots = np.array(reached.times) / divisor
            axes.plot(dots, np.full(len(dots), row), "o", color="white", markeredgecolor="black",
                      markersize=5, zorder=3)
        else:
            axes.barh(row, end / divisor, 0.62, color="none", hatch="////", edgecolor=color,
                      alpha=0.5)
        axes.annotate(text, (end / divisor, row), (7, 0), textcoords="offset points", va="center",
                      fontsize=8.5)
    axes.set_yticks(range(len(groups)), [textwrap.fill(r.group, 28) for r in groups])
    room = [end * width / max(1, width - 0.2 - style.text_inches(text))
            for end, text in zip(ends, texts, strict=True)]
    axes.set(xlabel=f"time to {target.whole} ({unit})", ylim=(len(groups) - 0.4, -0.6),
             xlim=(0, max(room) / divisor))
    style.set_title(axes, f"Time to {target.whole}: the mean, and a dot a run")
    axes.grid(axis="y", visible=False)
    return style.save(figure, path)


def _describe(reached: Reached, target: Goal, unit: str, divisor: float) -> str:
    if not reached.times:
        best = "no evaluation"
        if reached.best is not None:
            of_accuracy = target.metric == ACCURACY
            best = f"best {target.say(reached.best, '.1f' if of_accuracy else '.4g')}"
        return f"not reached in {reached.waited / divisor:.3g} {unit} ({best})"
    text = f"{reached.mean / divisor:.3g} {unit}"
    if not reached.complete:
        return (f"{text} in {len(reached.times)} of {reached.runs} runs; "
                f"the others not in {reached.waited / divisor:.3g} {unit}")
    if reached.rival is None:
        return text
    return f"{text} = {reached.ratio:.2f} × {textwrap.shorten(reached.rival, 40)}"


def draw_shares(statistics: Sequence[RunStatistics], path: Path) -> Path | None:
    """Draw the phases (compute, push, pull, wait ...) as shares of each worker's time, a panel a
    run.

    Of many workers, a panel shows 12. Returns None if no worker has recorded any time.
    """
    statistics = [one for one in statistics if one.shares]
    if not statistics:
        return None
    shown = [[w for w in one.pick_workers(MOST_WORKERS) if w in one.shares]
             for one in statistics]
    figure, panels = style.new_panels(
        len(statistics), 2 if len(statistics) <= 4 else 3, 4.2 if len(statistics) > 1 else 8.2,
        max(map(len, shown)) * 0.27 + 0.62, 0.8, "share of the worker's time (%)", sharex=True)
    for panel, stats, workers in zip(panels, statistics, shown, strict=True):
        start = np.zeros(len(workers))
        for phase, color in PHASE_COLORS.items():
            parts = np.array([100 * stats.shares[w].get(phase, 0.0) for w in workers])
            bars = panel.barh(range(len(workers)), parts, 0.74, left=start, color=color)
            panel.bar_label(bars, [f"{p:.0f}" if p >= 5 else "" for p in parts], fontsize=8,
                            label_type="center")
            start += parts
        of = f", {len(workers)} of {len(stats.workers)} workers" if workers != stats.workers else ""
        style.set_title(panel, stats.name + of, 46 if len(statistics) > 1 else 90)
        panel.set_yticks(range(len(workers)), [f"worker {w}" for w in workers])
        panel.set(xlim=(0, 100), ylim=(len(workers) - 0.45, -0.55))
        panel.grid(visible=False)
    style.phases_legend(figure, {phase for one in statistics for shares in one.shares.values()
                                 for phase in shares})
    return style.save(figure, path)


def draw_staleness(statistics: Sequence[RunStatistics], path: Path) -> Path | None:
    """Draw histograms of the staleness of accepted pushes, a panel a group; None without pushes."""
    groups = {group: stale for group, members in by_group(statistics).items()
              if len(stale := np.concatenate([one.staleness for one in members]))}
    if not groups:
        return None
    sync = {one.group: one.sync for one in statistics}
    figure, panels = style.new_panels(len(groups), 3, 3.4 if len(groups) > 1 else 5.4, 2.2, 0.5,
                                      "staleness (versions)", sharex=True, sharey=True)
    highest = max(stale.max() for stale in groups.values())
    width = -(-(highest + 1) // 40)  # versions of a bin, so that there are at most 40 bins
    edges = np.arange(0, highest + width + 1, width) - 0.5
    for panel, (group, stale) in zip(panels, groups.items(), strict=True):
        panel.hist(stale, edges.tolist(), weights=np.full(len(stale), 100 / len(stale)),
                   rwidth=0.85, color=sync_look(sync[group])[0])
        numbers = f"mean {stale.mean():.2f}, highest {stale.max()}"
        style.set_title(panel, f"{group}: " + numbers.replace(" ", "\N{NO-BREAK SPACE}"), 42)
        panel.grid(axis="x", visible=False)
        panel.locator_params("x", integer=True)
    figure.supylabel("accepted pushes (%)", fontsize=9)
    return style.save(figure, path)
