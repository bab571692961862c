"""What it costs a server to be watched: the time of a push and a pull of one worker.

    python -m benchmarks.watched [--quick] [--json FILE]

Two servers under asp, whose workers do everything but compute; the run of one is followed by
`python -m wbsp.watch HOST:PORT` all the time. They are measured in turn, block by block, and
compared within each turn. On a machine with fewer cores than processes, what the watching process
and the one that hands out the files do counts, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import contenders
from benchmarks.harness import in_words, print_table, ratios, server, spread, write_json

SIZES = (5, 148_298)  # floats: nearly nothing but the server's own time, and the CIFAR-10 CNN
_ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="floats in the model")
    parser.add_argument("--turns", type=int, default=9, help="blocks of each server")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block")
    parser.add_argument("--quick", action="store_true", help="3 short turns")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.turns, args.seconds = 3, 0.3
    try:
        rows = [_compare(size, args.turns, args.seconds) for size in args.sizes]
    except RuntimeError as error:
        sys.exit(f"benchmarks.watched: {error}")
    print_table(("model MB", "alone ms", "watched ms", "watched/alone"),
                [(f"{4 * row['floats'] / 1e6:.1f}",
                  *(f"{row[name]['median']:,.3f}" for name in ("alone", "watched")),
                  in_words(row["watched/alone"])) for row in rows])
    print(f"load of this machine: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    write_json(args.json, {"watched": rows})


def _compare(size: int, turns: int, seconds: float) -> dict:
    with contextlib.ExitStack() as stack:
        teams = {}
        for name in ("alone", "watched"):
            address = stack.enter_context(server("asp", 1))
            if name == "watched":
                stack.enter_context(_watching(address))
            teams[name] = stack.enter_context(contenders.team(
                contenders.wbsp_worker, [(address, 0, 1, size)]))
        medians: dict[str, list[float]] = {name: [] for name in teams}
        for turn in range(turns + 1):
            for name in teams if turn % 2 else reversed(teams):
                trips = teams[name].block(size, seconds)
                if turn:  # the first warms up
                    medians[name].append(1000 * statistics.median(trips))
        for team in teams.values():
            team.finish()
    return {"floats": size, **{name: spread(times) for name, times in medians.items()},
            "watched/alone": ratios(medians["watched"], medians["alone"])}


@contextlib.contextmanager
def _watching(address: str) -> Iterator[None]:
    """A page that follows the run; it has copied what there is when the block begins."""
    with subprocess.Popen([sys.executable, "-m", "wbsp.watch", address], cwd=_ROOT, text=True,
                          stdout=subprocess.PIPE) as page:
        try:
            if page.stdout is None or "http" not in page.stdout.readline():
                raise RuntimeError("the run is not watched")
            yield
            if page.poll() is not None:
                raise RuntimeError("the page has ended while it was measured")
        finally:
            page.terminate()


if __name__ == "__main__":
    main()
