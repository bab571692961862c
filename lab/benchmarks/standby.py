"""What a standby costs: the time of a version that holds the pushes of eight workers.

    python -m lab.benchmarks.standby [--tcp] [--quick] [--json FILE]

Two servers under bsp, one with a standby, whose workers do everything but compute. They are
measured in turn, block by block, and compared within each turn. On a machine with fewer cores than
processes the standby's own work counts, too.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys

from lab.benchmarks.contenders.team import start_team
from lab.benchmarks.contenders.worker import wbsp_worker
from scripts.harness import in_words, print_table, ratios, server, spread, write_json

SIZES = (148_298, 25_500_000)  # floats: the CIFAR-10 CNN, and ResNet50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="floats in the model")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--turns", type=int, default=7, help="blocks of each contender")
    parser.add_argument("--versions", type=int, default=100, help="in a block, at 0.6 MB")
    parser.add_argument("--tcp", action="store_true",
                        help="send the standby its copies, as one on another machine is")
    parser.add_argument("--quick", action="store_true", help="3 short turns")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.turns, args.versions = 3, 30
    try:
        rows = [_compare(size, args.workers, args.turns, args.tcp,
                         max(3, args.versions * SIZES[0] // size)) for size in args.sizes]
    except RuntimeError as error:
        sys.exit(f"lab.benchmarks.standby: {error}")
    print_table(("model MB", "workers", "alone ms", "with standby ms", "with/alone"),
                [(f"{4 * row['floats'] / 1e6:.1f}", str(args.workers),
                  *(f"{row[name]['median']:,.2f}" for name in ("alone", "standby")),
                  in_words(row["standby/alone"])) for row in rows])
    write_json(args.json, {"standby": rows})


def _compare(size: int, workers: int, turns: int, tcp: bool, versions: int) -> dict:
    flags = ["--transport=tcp"] if tcp else []
    with contextlib.ExitStack() as stack:
        teams = {}
        for name in ("alone", "standby"):
            address = stack.enter_context(server(
                "bsp", workers, standby=flags if name == "standby" else None))
            teams[name] = stack.enter_context(start_team(
                wbsp_worker,
                [(address, worker, workers, size) for worker in range(workers)]))
        medians: dict[str, list[float]] = {name: [] for name in teams}
        for turn in range(turns + 1):
            for name, team in teams.items():
                trips = team.block(0, versions)  # all the same number
                if turn:  # the first warms up
                    medians[name].append(1000 * statistics.median(trips))
        for team in teams.values():
            team.finish()
    return {"floats": size, "workers": workers,
            **{name: spread(times) for name, times in medians.items()},
            "standby/alone": ratios(medians["standby"], medians["alone"])}


if __name__ == "__main__":
    main()
