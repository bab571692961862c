"""One push and one pull: wbsp beside TensorFlow's distributed runtime and a copy in memory.

    python -m benchmarks.wire [--quick] [--json FILE]

A real server process and worker processes on this machine. wbsp runs asp, under which every push
is committed and granted at once; its workers do everything that Keras workers do except computing.
The three are measured in turn, block by block, and compared within each turn. With more workers
than processor cores the figures are those of a busy machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

from benchmarks import contenders
from benchmarks.harness import free_port, in_words, print_table, ratios, server, spread, write_json

SIZES = (148_298, 25_500_000)  # floats: the CIFAR-10 CNN, and ResNet50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="floats in the model")
    parser.add_argument("--workers", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--turns", type=int, default=7, help="blocks of each contender")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block, at least one trip")
    parser.add_argument("--quick", action="store_true", help="1 and 2 workers, 3 short turns")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.workers, args.turns, args.seconds = (1, 2), 3, 0.2
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # memory of the host, on all sides
    try:
        figures = measure(args.sizes, args.workers, args.turns, args.seconds)
    except RuntimeError as error:
        sys.exit(f"benchmarks.wire: {error}")
    write_json(args.json, {"wire": figures})


def measure(sizes, workers, turns: int, seconds: float) -> list[dict]:
    """Measure all combinations of `sizes` and `workers`, print a table, return its rows."""
    address = f"localhost:{free_port()}"
    most = max(workers)
    with (contenders.team(contenders.tensorflow_server, [(address,)]),
          contenders.team(contenders.tensorflow_worker, [(address,)] * most) as tensorflow,
          contenders.team(contenders.copier, [()] * most) as copiers):
        rows = [_compare(size, n, {"tensorflow": tensorflow[:n], "memcpy": copiers[:n]},
                         turns, seconds)
                for size in sizes for n in workers]
    print_table(
        ("model MB", "workers", "wbsp ms", "MB/s", "TF ms", "MB/s", "memcpy ms", "MB/s",
         "wbsp/TF", "wbsp/memcpy"),
        [(f"{row['bytes'] / 1e6:.1f}", str(row["workers"]),
          *(f"{row[name][unit]:,.{digits}f}" for name in ("wbsp", "tensorflow", "memcpy")
            for unit, digits in (("ms", 2), ("mb_per_s", 0))),
          in_words(row["wbsp/tensorflow"]), in_words(row["wbsp/memcpy"])) for row in rows])
    print("ms: a push and a pull of one worker, median; MB/s: both directions, all workers; "
          "ratios of times:\nmedian (range) over the turns, below 1 wbsp is faster")
    return rows


def _compare(size: int, workers: int, others: dict[str, contenders.Team], turns: int,
             seconds: float) -> dict:
    """The figures of one size of model (floats) and number of workers."""
    with server("asp", workers) as address, contenders.team(
            contenders.wbsp_worker,
            [(address, worker, workers, size) for worker in range(workers)]) as wbsp:
        teams = {"wbsp": wbsp, **others}
        medians = {name: [] for name in teams}
        for turn in range(turns + 1):
            for name, team in teams.items():
                trips = team.block(size, seconds)
                if turn:  # the first warms up
                    medians[name].append(statistics.median(trips))
        wbsp.finish()
    row = {"floats": size, "bytes": 4 * size, "workers": workers}
    for name, times in medians.items():
        times_ms = spread([1e3 * t for t in times])
        row[name] = {"ms": times_ms["median"], "ms_min": times_ms["min"], "ms_max": times_ms["max"],
                     "mb_per_s": workers * 2 * 4 * size / 1e3 / times_ms["median"]}
    for name in others:
        row[f"wbsp/{name}"] = ratios(medians["wbsp"], medians[name])
    return row


if __name__ == "__main__":
    main()
