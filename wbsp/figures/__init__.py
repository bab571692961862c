"""Figures and tables from the folders of runs, real or simulated.

Needs matplotlib; importing this package alone does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from wbsp.core.goal import Goal
from wbsp.figures.load import find_runs, gather
from wbsp.figures.trace import write_trace
from wbsp.runlog.reader import Run

__all__ = ["draw", "find_runs"]


def draw(runs: Sequence[Run], out: Path | str, target: float | str | Goal | None = None,
         window: tuple[float, float] | None = None) -> list[Path]:
    """Draw all figures for which the runs have data into the folder `out`; return the files.

    Writes curves.png, time_to_target.png, time_shares.png, staleness.png, figures.md, and for the
    n-th run timeline_{n}_{sync}.png and trace_{n}_{sync}.json. Raises ValueError without runs, or
    for a target or window that fits none; ModuleNotFoundError, in one line, without matplotlib.

    Args:
        target: accuracy 0..1, or a metric and its value as "loss:2.0", for the time-to-target bars;
            without it they are not drawn.
        window: seconds from and to shown in the timelines; by default a dozen steps of the slowest.
    """
    if not runs:
        raise ValueError("no run was given to draw; give at least one")
    if isinstance(target, float | int) and not 0 < target <= 1:
        raise ValueError(f"target={target:g} is not an accuracy; give a part of 1, such as 0.85, "
                         "or another metric, such as loss:2.0")
    goal = Goal.of(target)
    if window is not None and not window[0] < window[1]:
        raise ValueError(f"the window {window[0]:g}:{window[1]:g} ends before it starts; give "
                         "START:END in seconds")
    try:
        from wbsp.figures import bars, curves, table, timeline
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ModuleNotFoundError("figures need matplotlib; install it with: pip install "
                                  "matplotlib", name="matplotlib") from None
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    statistics = gather(runs)
    files = [curves.draw_curves(statistics, out / "curves.png", goal)]
    if goal is not None:
        files.append(bars.draw_time_to_target(statistics, out / "time_to_target.png", goal))
    files += [bars.draw_shares(statistics, out / "time_shares.png"),
              bars.draw_staleness(statistics, out / "staleness.png")]
    names = [f"{number}_{re.sub('[^A-Za-z0-9_-]', '_', stats.sync)}"
             for number, stats in enumerate(statistics, 1)]
    timelines = [timeline.draw_timeline(stats, out / f"timeline_{name}.png", window)
                 for stats, name in zip(statistics, names, strict=True)]
    if window is not None and not any(timelines):
        raise ValueError(f"no worker did anything in the window {window[0]:g}:{window[1]:g} s; the "
                         f"longest run lasted {max(one.duration for one in statistics):.4g} s")
    files += timelines
    files += [write_trace(stats.run, out / f"trace_{name}.json")
              for stats, name in zip(statistics, names, strict=True)]
    files.append(table.write_table(statistics, out / "figures.md", goal))
    return [path for path in files if path]
