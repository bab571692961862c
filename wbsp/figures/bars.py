"""Bars: time to a target accuracy, where each worker's time went, and how stale updates were."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wbsp.figures import style
from wbsp.figures.colors import PHASE_COLORS, sync_look
from wbsp.figures.load import MOST_WORKERS, RunStatistics, by_group


@dataclass(frozen=True)
class Reached:
    """The time to the target accuracy of a group of runs that differ by the seed."""

    group: str
    sync: str
    times: list[float]  # seconds, of the runs that reached it
    runs: int
    waited: float  # seconds that the longest of its runs took
    best: float | None  # highest accuracy of all its evaluations, 0..1; None without any
    rival: str | None = None  # the fastest group of another model
    ratio: float | None = None  # own mean / the rival's mean

    @property
    def complete(self) -> bool:
        """True when every run reached the target; only then are means compared."""
        return len(self.times) == self.runs

    @property
    def mean(self) -> float:
        """Seconds; NaN when no run reached it."""
        return float(np.mean(self.times)) if self.times else np.nan


def times_to(statistics: Sequence[RunStatistics], target: float) -> list[Reached]:
    """The groups from the fastest to the slowest, then the groups that did not always reach
    `target`.

    The rival is the fastest group of another model. WBSP and its optimized form (pcc) count as one
    model, unless nothing else reached it.
    """
    plain = []
    for group, members in by_group(statistics).items():
        times = [t for one in members if (t := one.run.time_to(target)) is not None]
        known = [float(a) for one in members for a in one.run.evaluations.accuracy
                 if np.isfinite(a)]
        plain.append(Reached(group, members[0].sync, times, len(members),
                             max(one.duration for one in members), max(known, default=None)))
    plain.sort(key=lambda r: (not r.complete, not r.times,
                              r.mean if r.times else -(r.best or 0)))
    return [_with_rival(reached, plain) for reached in plain]


def _with_rival(own: Reached, all_groups: list[Reached]) -> Reached:
    family = {"pcc": "wbsp"}
    fair = [r for r in all_groups if r.complete and r.group != own.group]
    others = [r for r in fair if family.get(r.sync, r.sync) != family.get(own.sync, own.sync)]
    rivals = others or fair
    if not rivals or not own.complete:
        return own
    rival = min(rivals, key=lambda r: r.mean)
    return replace(own, rival=rival.group, ratio=own.mean / rival.mean)


def draw_time_to_target(statistics: Sequence[RunStatistics], path: Path,
                        target: float) -> Path | None:
    """Draw a bar for each group: the mean over the seeds, a dot for each seed, and the ratio to the
    fastest rival.

    A group in which no run reached the target gets a hatched bar as long as its longest run.
    Returns None if no run was ever evaluated.
    """
    groups = times_to(statistics, target)
    if all(reached.best is None for reached in groups):
        return None
    ends = [max(reached.times, default=reached.waited) for reached in groups]
    divisor, unit = style.time_unit(max(ends))
    texts = [_describe(reached, unit, divisor) for reached in groups]
    width = 7.0  # inches of the bars and of the texts beside them
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
    axes.set(xlabel=f"time to {100 * target:g} % accuracy ({unit})", ylim=(len(groups) - 0.4, -0.6),
             xlim=(0, max(room) / divisor))
    style.set_title(axes, f"Time to {100 * target:g} % accuracy: the mean, and a dot a run")
    axes.grid(axis="y", visible=False)
    return style.save(figure, path)


def _describe(reached: Reached, unit: str, divisor: float) -> str:
    if not reached.times:
        best = "no evaluation" if reached.best is None else f"best {100 * reached.best:.1f} %"
        return f"not reached in {reached.waited / divisor:.3g} {unit} ({best})"
    text = f"{reached.mean / divisor:.3g} {unit}"
    if not reached.complete:
        return (f"{text} in {len(reached.times)} of {reached.runs} runs; "
                f"the others not in {reached.waited / divisor:.3g} {unit}")
    if reached.rival is None:
        return text
    return f"{text} = {reached.ratio:.2f} × {textwrap.shorten(reached.rival, 40)}"


def draw_shares(statistics: Sequence[RunStatistics], path: Path) -> Path | None:
    """Draw compute, push, pull, wait, data and so on as parts of each worker's time, a panel a run.

    A run of many workers shows 12 of them. Returns None if no worker has booked any time.
    """
    statistics = [one for one in statistics if one.shares]
    if not statistics:
        return None
    shown = [[w for w in one.pick_workers(MOST_WORKERS) if w in one.shares]
             for one in statistics]
    columns = min(len(statistics), 1 if len(statistics) == 1 else 2 if len(statistics) <= 4 else 3)
    rows = -(-len(statistics) // columns)
    height = max(map(len, shown)) * 0.27 + 0.62
    figure, axes = style.new_figure(rows, columns, 4.2 * columns + (4 if columns == 1 else 0),
                                    rows * height + 0.8, sharex=True)
    for panel, stats, workers in zip(axes.flat, statistics, shown, strict=False):
        start = np.zeros(len(workers))
        for phase, color in PHASE_COLORS.items():
            parts = np.array([100 * stats.shares[w].get(phase, 0.0) for w in workers])
            bars = panel.barh(range(len(workers)), parts, 0.74, left=start, color=color)
            panel.bar_label(bars, [f"{p:.0f}" if p >= 5 else "" for p in parts], fontsize=8,
                            label_type="center")
            start += parts
        of = f", {len(workers)} of {len(stats.workers)} workers" if workers != stats.workers else ""
        style.set_title(panel, stats.name + of, 46 if columns > 1 else 90)
        panel.set_yticks(range(len(workers)), [f"worker {w}" for w in workers])
        panel.set(xlim=(0, 100), ylim=(len(workers) - 0.45, -0.55))
        panel.grid(visible=False)
    style.trim(axes, len(statistics), "share of the worker's time (%)")
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
    columns = min(len(groups), 3)
    rows = -(-len(groups) // columns)
    figure, axes = style.new_figure(rows, columns, 3.4 * columns + (2 if columns == 1 else 0),
                                    2.2 * rows + 0.5, sharex=True, sharey=True)
    highest = max(stale.max() for stale in groups.values())
    width = -(-(highest + 1) // 40)  # versions a bin, so that at most 40 bins are drawn
    edges = np.arange(0, highest + width + 1, width) - 0.5
    for panel, (group, stale) in zip(axes.flat, groups.items(), strict=False):
        panel.hist(stale, edges, weights=np.full(len(stale), 100 / len(stale)), rwidth=0.85,
                   color=sync_look(sync[group])[0])
        numbers = f"mean {stale.mean():.2f}, highest {stale.max()}"
        style.set_title(panel, f"{group}: " + numbers.replace(" ", "\N{NO-BREAK SPACE}"), 42)
        panel.grid(axis="x", visible=False)
        panel.xaxis.get_major_locator().set_params(integer=True)
    style.trim(axes, len(groups), "staleness (versions)")
    figure.supylabel("accepted pushes (%)", fontsize=9)
    return style.save(figure, path)
