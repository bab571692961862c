"""What it costs to choose a barrier: the three ZipLines beside the published C++ figures.

    python -m lab.benchmarks.zipline [--quick] [--json FILE] [--figure FILE]

Workers of random phase, each with an interval of its own between 0.5 and 2 s. CPU time of one core
for one choice, the merging of the rows included; entries of Z that were looked at and moved, by
point. The published figures come from the authors' machine and data.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

from scripts.harness import spread, write_json
from wbsp.sync.zipline import zipline, zipline_opt, zipline_opt_bs

PUBLISHED_MS = {("zipline", 1000, 15): 253, ("zipline", 1000, 150): 2380,
                ("zipline_opt_bs", 1000, 15): 77}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--r", type=int, nargs="+", default=[15, 150], help="ends of each worker")
    parser.add_argument("--repeats", type=int, default=5, help="of each choice")
    parser.add_argument("--quick", action="store_true", help="10 and 100 workers, 2 repeats")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    parser.add_argument("--figure", metavar="FILE", type=Path,
                        help="draw the times over the workers; needs matplotlib")
    args = parser.parse_args()
    if args.quick:
        args.workers, args.repeats = [10, 100], 2
    rows = measure(args.workers, args.r, args.repeats)
    write_json(args.json, {"zipline": rows})
    if args.figure is not None:
        draw(rows, args.figure)


def measure(workers: list[int], looks: list[int], repeats: int) -> list[dict]:
    """Measure every size with every variant, print a table, return its rows."""
    print("| workers | R | algorithm | ms, median (range) | looked at | moved | C++, published ms |"
          "\n|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for n in workers:
        for r in looks:
            ends = predicted(n, r)
            for solve in (zipline, zipline_opt, zipline_opt_bs):
                row = _time(solve, ends, repeats)
                rows.append(row)
                ms, points = row["ms"], row["points"]
                print(f"| {n:,} | {r} | {row['algorithm']} | "
                      f"{ms['median']:,.2f} ({ms['min']:,.2f}-{ms['max']:,.2f}) | "
                      f"{row['compared'] / points:,.1f} | {row['moved'] / points:,.1f} | "
                      f"{row['published_ms'] or ''} |", flush=True)
    return rows


def predicted(n: int, r: int) -> list[list[float]]:
    """Return the next `r` ends of `n` workers: the same at every call."""
    rng, rows = random.Random(0), []
    for _ in range(n):
        interval = rng.uniform(0.5, 2.0)
        first = rng.uniform(0.0, interval)
        rows.append([first + i * interval for i in range(r)])
    return rows


def _time(solve: Callable, ends: list[list[float]], repeats: int) -> dict:
    n, r = len(ends), len(ends[0])
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        counts = solve(ends).counts
        times.append(1e3 * (time.process_time() - begin))
    return {"algorithm": solve.__name__, "workers": n, "r": r, "ms": spread(times),
            **counts._asdict(), "published_ms": PUBLISHED_MS.get((solve.__name__, n, r))}


def draw(rows: list[dict], path: Path) -> None:
    """Times over the workers, both logarithmic, and the published ones as crosses."""
    from wbsp.figures.colors import BLUE, GREEN, VERMILLION
    from wbsp.figures.style import legend_below, new_figure, save, set_title

    looks = sorted({row["r"] for row in rows})
    figure, ((*panels,),) = new_figure(1, len(looks), 4.6 * len(looks), 3.6, sharey=True)
    for panel, r in zip(panels, looks, strict=True):
        for solve, color in ((zipline, VERMILLION), (zipline_opt, GREEN), (zipline_opt_bs, BLUE)):
            own = [row for row in rows if (row["r"], row["algorithm"]) == (r, solve.__name__)]
            x, ms = [row["workers"] for row in own], [row["ms"] for row in own]
            panel.plot(x, [one["median"] for one in ms], color=color, marker="o", markersize=4,
                       label=solve.__name__)
            panel.fill_between(x, [one["min"] for one in ms], [one["max"] for one in ms],
                               color=color, alpha=0.2, linewidth=0)
            published = [(row["workers"], row["published_ms"]) for row in own
                         if row["published_ms"]]
            if published:
                panel.plot(*zip(*published, strict=True), color=color, marker="x", markersize=8,
                           linestyle="none", label=f"{solve.__name__}, C++ as published")
        panel.set(xscale="log", yscale="log", xlabel="workers")
        set_title(panel, f"R = {r}")
    panels[0].set_ylabel("milliseconds of a choice")
    named = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    legend_below(figure, list(named.values()), list(named))
    save(figure, path)


if __name__ == "__main__":
    main()
