"""One push and one pull: wbsp beside TensorFlow's distributed runtime and a copy in memory.

    python -m benchmarks.wire [--quick] [--json FILE]

A real server process and worker processes on this machine. wbsp runs asp, under which every push
is committed and granted at once; its workers do everything that Keras workers do except computing.
It is measured over shared memory, as it is within a machine, and over TCP. All are measured in
turn, block by block, and compared within each turn. With more workers than processor cores the
figures are those of a busy machine. --sizes=138250000 is VGG16, 553 MB; it needs some 7 times as
much memory for each worker, and --no-tensorflow.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Iterable

from benchmarks import contenders
from benchmarks.harness import free_port, in_words, print_table, ratios, server, spread, write_json

TRANSPORTS = {"shared": "auto", "tcp": "tcp"}

SIZES = (148_298, 25_500_000)  # floats: the CIFAR-10 CNN, and ResNet50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="floats in the model")
    parser.add_argument("--workers", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--turns", type=int, default=7, help="blocks of each contender")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block, at least one trip")
    parser.add_argument("--tensorflow", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--quick", action="store_true", help="1 and 2 workers, 3 short turns")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.workers, args.turns, args.seconds = (1, 2), 3, 0.2
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # memory of the host, on all sides
    try:
        figures = measure(args.sizes, args.workers, args.turns, args.seconds, args.tensorflow)
    except RuntimeError as error:
        sys.exit(f"benchmarks.wire: {error}")
    write_json(args.json, {"wire": figures})


def measure(sizes, workers, turns: int, seconds: float, tensorflow: bool = True) -> list[dict]:
    """Measure all combinations of `sizes` and `workers`, print a table, return its rows."""
    address, most = f"localhost:{free_port()}", max(workers)
    teams = {"tensorflow": (contenders.tensorflow_worker, (address,))} if tensorflow else {}
    teams["memcpy"] = contenders.copier, ()
    with contextlib.ExitStack() as stack:
        if tensorflow:
            stack.enter_context(contenders.team(contenders.tensorflow_server, [(address,)]))
        others = {name: stack.enter_context(contenders.team(target, [arguments] * most))
                  for name, (target, arguments) in teams.items()}
        rows = [_compare(size, n, {name: team[:n] for name, team in others.items()}, turns, seconds)
                for size in sizes for n in workers]
    names = [*TRANSPORTS, *teams]
    print_table(
        ("model MB", "workers", *(f"{name} ms" for name in names), *_ratios(teams)),
        [(f"{row['bytes'] / 1e6:.1f}", str(row["workers"]),
          *(f"{row[name]['ms']:,.2f}" for name in names),
          *(in_words(row[ratio]) for ratio in _ratios(teams))) for row in rows])
    print("ms: a push and a pull of one worker, median; ratios of times: median (range) over the "
          "turns,\nbelow 1 the first is faster")
    return rows


def _ratios(others: Iterable[str]) -> list[str]:
    """Whose times are compared."""
    return ["shared/tcp", *(f"{one}/{other}" for other in others for one in TRANSPORTS)]


def _compare(size: int, workers: int, others: dict[str, contenders.Team], turns: int,
             seconds: float) -> dict:
    """The figures of one size of model (floats) and number of workers."""
    with contextlib.ExitStack() as stack:
        teams = {}
        for name, transport in TRANSPORTS.items():
            address = stack.enter_context(server("asp", workers, None, f"--transport={transport}"))
            teams[name] = stack.enter_context(contenders.team(contenders.wbsp_worker, [
                (address, worker, workers, size) for worker in range(workers)]))
        wbsp = dict(teams)
        teams |= others
        medians: dict[str, list[float]] = {name: [] for name in teams}
        for turn in range(turns + 1):
            for name, team in teams.items():
                trips = team.block(size, seconds)
                if turn:  # the first warms up
                    medians[name].append(statistics.median(trips))
        for team in wbsp.values():
            team.finish()
    row = {"floats": size, "bytes": 4 * size, "workers": workers}
    for name, times in medians.items():
        times_ms = spread([1e3 * t for t in times])
        row[name] = {"ms": times_ms["median"], "ms_min": times_ms["min"], "ms_max": times_ms["max"],
                     "mb_per_s": workers * 2 * 4 * size / 1e3 / times_ms["median"]}
    for ratio in _ratios(others):
        above, _, below = ratio.partition("/")
        row[ratio] = ratios(medians[above], medians[below])
    return row


if __name__ == "__main__":
    main()
