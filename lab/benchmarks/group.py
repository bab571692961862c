"""What shards cost, and what they give: round trips on one machine, and through slow lines.

    python -m lab.benchmarks.group [--quick] [--json FILE]
    python -m lab.benchmarks.group --lines 100 [--json FILE]     # as root

The first compares a push and a pull of one worker with 1, 2 and 4 shards on this machine, block by
block, with all that a worker does but compute. The second gives the server, each shard and each
worker a host of its own, a network namespace whose line carries so many Mbit/s each way, and says
how many MB/s the workers move together. All of these hosts share this machine's cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lab.benchmarks.contenders.team import Team, start_team
from lab.benchmarks.contenders.worker import wbsp_worker
from scripts.harness import (
    ending_well,
    free_port,
    in_words,
    print_table,
    ratios,
    server,
    spread,
    write_json,
)

SIZES = (148_298, 25_500_000)  # floats: the CIFAR-10 CNN, and ResNet50
SHARDS = (1, 2, 4)
LINE_SIZE = 1_500_000  # floats: 6 MB, half a second of a line of 100 Mbit/s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", help="floats in the model")
    parser.add_argument("--shards", type=int, nargs="+", default=SHARDS)
    parser.add_argument("--turns", type=int, default=7, help="blocks of each number of shards")
    parser.add_argument("--seconds", type=float, help="least time of a block")
    parser.add_argument("--lines", type=float, metavar="MBIT", help="rate of each host's line")
    parser.add_argument("--workers", type=int, default=8, choices=(1, 2, 4, 8, 16),
                        help="with --lines; a power of two, so that sums are exact")
    parser.add_argument("--quick", action="store_true", help="3 short turns")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    turns = 3 if args.quick else args.turns
    if args.shards[0] != 1:
        parser.error("the first number of shards must be 1: it is what the others are compared to")
    try:
        if args.lines is None:
            seconds = args.seconds or (0.3 if args.quick else 2.0)
            rows = [_round_trips(size, args.shards, turns, seconds)
                    for size in args.sizes or SIZES]
        else:
            seconds = args.seconds or (5.0 if args.quick else 10.0)
            rows = [_throughput(size, args.shards, turns, seconds, args.lines, args.workers)
                    for size in args.sizes or (LINE_SIZE,)]
    except (OSError, RuntimeError) as error:
        sys.exit(f"lab.benchmarks.group: {error}")
    unit = "ms" if args.lines is None else "MB/s"
    print_table(("model MB", "shards", unit, f"{unit} lowest", "highest", "of one shard's"),
                [(f"{4 * row['floats'] / 1e6:.1f}", str(count),
                  *(f"{row[unit][str(count)][which]:,.2f}" for which in ("median", "min", "max")),
                  in_words(row["ratio"][str(count)])) for row in rows for count in args.shards])
    print(f"load of this machine: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    write_json(args.json, {"group": rows})


def _round_trips(size: int, counts: list[int], turns: int, seconds: float) -> dict:
    """Milliseconds of a push and a pull of one worker."""
    with contextlib.ExitStack() as stack:
        teams = {}
        for count in counts:
            address = stack.enter_context(server("asp", 1, f"--shards={count}", "--transport=tcp"))
            teams[count] = stack.enter_context(start_team(wbsp_worker, [(address, 0, 1, size)]))
        found: dict[int, list[float]] = {count: [] for count in teams}
        for turn in range(turns + 1):
            for count, team in teams.items():
                trips = team.block(seconds)
                if turn:  # the first warms up
                    found[count].append(1000 * statistics.median(trips))
        for team in teams.values():
            team.finish()
    return _row(size, "ms", found)


def _throughput(size: int, counts: list[int], turns: int, seconds: float, mbit: float,
                workers: int) -> dict:
    """MB/s of all workers together, both ways."""
    found: dict[int, list[float]] = {count: [] for count in counts}
    for count in counts:
        with _slow_group(size, count, mbit, workers) as team:
            for turn in range(turns + 1):
                began = time.monotonic()
                trips = team.block(seconds)
                if turn:
                    moved = len(trips) * 2 * 4 * size / 1e6
                    found[count].append(moved / (time.monotonic() - began))
            team.finish()
    return {**_row(size, "MB/s", found), "workers": workers, "mbit": mbit}


@contextlib.contextmanager
def _slow_group(size: int, count: int, mbit: float, workers: int) -> Iterator[Team]:
    """Yield a server, `count` shards and workers, each on a host of its own."""
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "helpers"))
    from hosts import Hosts, why_not  # network namespaces are the tests' own

    if reason := why_not():
        raise RuntimeError(reason)
    shards = [f"s{index}" for index in range(count)] if count > 1 else []
    names = ["server", *shards, *(f"w{index}" for index in range(workers))]
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(Hosts(*names))
        for name in names:
            hosts.limit(name, mbit)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        token = secrets.token_hex(32)
        (folder / "token").write_text(token)
        keyed = f"--token_file={folder / 'token'}"
        ports = [free_port() for _ in shards]
        for name, port in zip(shards, ports, strict=True):
            stack.enter_context(ending_well(
                folder / name, "--shard", f"--host={hosts.address[name]}", f"--port_base={port}",
                keyed, space=hosts.space(name)))
        at = ",".join(f"{hosts.address[name]}:{port}"
                      for name, port in zip(shards, ports, strict=True))
        address = stack.enter_context(server(
            "asp", workers, keyed, f"--shards={at or 1}", host=hosts.address["server"],
            space=hosts.space("server")))
        yield stack.enter_context(start_team(wbsp_worker, [
            (address, index, workers, size, token.encode(), hosts.space(f"w{index}"))
            for index in range(workers)]))


def _row(size: int, unit: str, found: dict[int, list[float]]) -> dict:
    return {"floats": size, unit: {str(count): spread(values) for count, values in found.items()},
            "ratio": {str(count): ratios(values, found[1]) for count, values in found.items()}}


if __name__ == "__main__":
    main()
