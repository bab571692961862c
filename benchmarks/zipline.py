"""What it costs to choose a barrier: the three ZipLines beside the published C++ figures.

    python -m benchmarks.zipline [--quick] [--json FILE]

Workers of random phase, each with an interval of its own between 0.5 and 2 s. CPU time of one core
for one choice, the merging of the rows included; entries of Z that were looked at and moved, by
point. The published figures come from the authors' machine and data.
"""

from __future__ import annotations

import argparse
import random
import time

from benchmarks.harness import spread, write_json
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
    args = parser.parse_args()
    if args.quick:
        args.workers, args.repeats = [10, 100], 2
    write_json(args.json, {"zipline": measure(args.workers, args.r, args.repeats)})


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
    """The next `r` ends of `n` workers: the same at every call."""
    rng, rows = random.Random(0), []
    for _ in range(n):
        interval = rng.uniform(0.5, 2.0)
        first = rng.uniform(0.0, interval)
        rows.append([first + i * interval for i in range(r)])
    return rows


def _time(solve, ends: list[list[float]], repeats: int) -> dict:
    n, r = len(ends), len(ends[0])
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        counts = solve(ends).counts
        times.append(1e3 * (time.process_time() - begin))
    return {"algorithm": solve.__name__, "workers": n, "r": r, "ms": spread(times),
            **counts._asdict(), "published_ms": PUBLISHED_MS.get((solve.__name__, n, r))}


if __name__ == "__main__":
    main()
