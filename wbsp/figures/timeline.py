"""The timeline of a run: a Gantt chart for print.

Each worker has two lanes, for its compute thread and its network, which show how far the two
overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from wbsp.figures.colors import PHASE_COLORS
from wbsp.figures.load import MOST_WORKERS, VERSIONS, RunStatistics
from wbsp.figures.style import new_figure, phases_legend, save, set_title

_STEPS = 12  # of the slowest worker in the default window
_WARM_UP = 3  # steps of the slowest worker that are skipped, if there are enough
_LANES = {"compute": (0.0, 0.5), "network": (0.52, 0.24)}  # offset and height in a worker's row
_DASHES = {"commit": (0, (3, 2)), "adopt": (0, (1, 2))}  # of the lines at versions


def default_window(stats: RunStatistics) -> tuple[float, float] | None:
    """Return the seconds (from, to) of about 12 steps of the slowest worker after a warm-up; None
    without compute spans. The slowest worker has the longest median step."""
    steps = {worker: [s for s in spans if s["lane"] == "compute" and s["kind"] == "compute"]
             for worker, spans in stats.run.spans.items()}
    steps = {worker: spans for worker, spans in steps.items() if spans}
    if not steps:
        return None
    slowest = max(steps.values(), key=lambda spans: median(s["seconds"] for s in spans))
    first = max(0, min(_WARM_UP, len(slowest) - _STEPS))
    last = min(first + _STEPS, len(slowest)) - 1
    return slowest[first]["t"], slowest[last]["t"] + slowest[last]["seconds"]


def draw_timeline(stats: RunStatistics, path: Path,
                  window: tuple[float, float] | None = None) -> Path | None:
    """Draw a Gantt chart of `window` (seconds from, to); return None for a run without spans in it.

    Of many workers, it shows 12. Dashed lines are commits of versions, and dotted ones those that a
    site adopted from above.
    """
    window = window or default_window(stats)
    if window is None or not any((seen := _seen(stats, window)).values()):
        return None
    of = f" ({len(seen)} of {len(stats.workers)} workers)" if [*seen] != stats.workers else ""
    return draw_timelines([stats], [stats.name + of], path, window)


def draw_timelines(runs: Sequence[RunStatistics], titles: Sequence[str], path: Path,
                   window: tuple[float, float]) -> Path:
    """Draw Gantt charts of several runs, one below the other, over one `window` (seconds)."""
    seen = [_seen(stats, window) for stats in runs]
    figure, panels = new_figure(len(runs), 1, 11, 1.0 + sum(0.6 + 0.5 * len(s) for s in seen),
                                sharex=True)
    for axes, stats, spans, title in zip(panels[:, 0], runs, seen, titles, strict=True):
        _draw(axes, stats, spans, window)
        set_title(axes, title, 110, pad=16)
        axes.label_outer()
    lines = {line.get_label(): line for axes in panels[:, 0] for line in reversed(axes.lines)}
    phases_legend(figure, set().union(*map(_kinds, seen)),
                  *(lines[label] for label in VERSIONS.values() if label in lines))
    return save(figure, path)


def _seen(stats: RunStatistics, window: tuple[float, float]) -> dict[int, list[dict[str, Any]]]:
    """Return worker -> its spans that overlap `window`; of at most 12 workers."""
    start, end = window
    return {w: [s for s in stats.run.spans[w] if s["t"] < end and s["t"] + s["seconds"] > start]
            for w in stats.pick_workers(MOST_WORKERS) if w in stats.run.spans}


def _kinds(seen: dict[int, list[dict[str, Any]]]) -> set[str]:
    """Return the phases of these spans."""
    return {span["kind"] for spans in seen.values() for span in spans}


def _draw(axes: Axes, stats: RunStatistics, seen: dict[int, list[dict[str, Any]]],
          window: tuple[float, float]) -> None:
    """Draw two lanes for each worker of `seen`, and a dashed or dotted line for each version."""
    start, end = window
    workers = [*seen]
    # White edges tell one step from the next, but would hide spans of a pixel or two.
    edge = 0.5 if max(map(len, seen.values())) < 150 else 0.0
    for row, worker in enumerate(workers):
        for lane, (offset, height) in _LANES.items():
            spans = [s for s in seen[worker] if s["lane"] == lane]
            axes.broken_barh([(s["t"], s["seconds"]) for s in spans], (row + offset, height),
                             facecolors=[PHASE_COLORS[s["kind"]] for s in spans],
                             edgecolor="white", linewidth=edge)
    versions = {e["version"]: (e["t"], e["kind"]) for e in stats.run.events
                if e["kind"] in VERSIONS and start <= e["t"] <= end}
    named = -np.inf  # time of the last version with room for its number
    for version, (t, kind) in versions.items():
        axes.axvline(t, color="black", linestyle=_DASHES[kind], label=VERSIONS[kind],
                     linewidth=0.8 if len(versions) <= 40 else 0.3)
        if t - named >= 0.045 * (end - start):
            axes.annotate(f"v{version}", (t, 1), (0, 2), xycoords=("data", "axes fraction"),
                          textcoords="offset points", ha="center", fontsize=7.5)
            named = t
    rows = np.arange(len(workers))[:, None] + [offset + h / 2 for offset, h in _LANES.values()]
    axes.set_yticks(rows.ravel(), [text for w in workers
                                   for text in (f"worker {w}  compute", "network")], fontsize=7.5)
    axes.set(xlim=(start, end), ylim=(len(workers) - 0.12, -0.12), xlabel="time since start (s)")
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
