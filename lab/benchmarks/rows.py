"""What travels of a table of which each step moves a few rows: bytes, against those rows.

    python -m lab.benchmarks.rows [--rows=1000000] [--touched=320] [--steps=40] [--json FILE]

Two workers in PyTorch train an embedding by plain SGD, over TCP: each step looks up rows that are
drawn anew. Shown for each model and format: bytes of a push against the rows that its steps have
touched, and bytes of a version against the rows of all pushes in it, a row as float32. A worker's
first version after W_0 may come whole, and is not counted. With momentum in the outer step a
version moves the rows of earlier ones, too: the last column counts the pushes of 25 versions.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from multiprocessing.connection import Connection

from lab.benchmarks.contenders.team import start_team
from scripts.harness import print_table, server, write_json

RUNS = "auto", "auto:--outer=identity", "bsp", "bsp:--wire=int8"
TAIL = 25  # versions in which momentum 0.5, auto's for two workers, moves a row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table")
    parser.add_argument("--width", type=int, default=64, help="floats of a row")
    parser.add_argument("--touched", type=int, default=320, help="rows that a step looks up")
    parser.add_argument("--steps", type=int, default=40, help="of each worker")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds in each step")
    parser.add_argument("--runs", nargs="+", default=RUNS,
                        help="models, each with more flags of its server behind colons")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    try:
        found = {run: measure(run, args) for run in args.runs}
    except (RuntimeError, OSError) as error:
        sys.exit(f"lab.benchmarks.rows: {error}")
    print_table(("", "steps a push", "KB a push", "of its rows", "KB a version", "of its rows",
                 "of those of 25"), [
        (run, f"{one['steps_a_push']:.1f}", f"{one['push'] / 1e3:,.0f}",
         f"{one['push_of_rows']:.2f}", f"{one['version'] / 1e3:,.0f}",
         f"{one['version_of_rows']:.2f}", f"{one['version_of_tail']:.2f}")
        for run, one in found.items()])
    print(f"a table of {args.rows:,} x {args.width}: {4e-3 * args.rows * args.width:,.0f} KB; "
          f"{args.touched} rows a step: {4e-3 * args.touched * args.width:,.0f} KB")
    write_json(args.json, {"rows": found})


def measure(run: str, args: argparse.Namespace) -> dict:
    """Return figures of a run of two workers: means over all transfers of both."""
    sync, *flags = run.split(":")
    with server(sync, 2, *flags) as address, start_team(_trains, [
            (address, worker, args.rows, args.width, args.touched, args.steps, args.pause)
            for worker in range(2)]) as team:
        workers = team.answers(3600)
    pushes = [nbytes for one in workers for nbytes in one["pushes"]]
    versions = [nbytes for one in workers for nbytes in one["versions"][1:]]
    # a row that two steps have touched is rare, and counts twice
    moved = 4 * args.width * args.touched * args.steps * len(workers)
    made = max(len(one["versions"]) for one in workers)
    push = statistics.mean(pushes)
    version = statistics.mean(versions) if versions else math.nan  # too few steps
    return {"steps_a_push": args.steps * len(workers) / len(pushes),
            "push": push, "push_of_rows": push * len(pushes) / moved,
            "version": version, "version_of_rows": version * made / moved,
            "version_of_tail": version * made / moved / min(TAIL, (made + 1) / 2)}


def _trains(pipe: Connection, address: str, worker: int, rows: int, width: int, touched: int,
            steps: int, pause: float) -> None:
    """Train; answer that this has begun, and then with the bytes of each push and version."""
    import torch

    import wbsp

    torch.manual_seed(worker)
    table = torch.nn.Embedding(rows, width, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    found: dict[str, list[int]] = {"pushes": [], "versions": []}
    pipe.send(None)
    with wbsp.Worker(table, address=address, worker_index=worker, transport="tcp",
                     say=lambda text: None) as w:
        member = w._member
        assert member.transport is not None
        transport = member.transport
        at_start = member.begun().report().pulls

        def note() -> None:
            """Note the transfers since the last time, which are one of each at most."""
            report = member.begun().report()
            if report.pulls - at_start > len(found["versions"]):
                found["versions"].append(report.pull_bytes)
            if report.pushes > len(found["pushes"]):
                found["pushes"].append(transport.update_bytes(0))

        for _ in range(steps):
            optimizer.zero_grad()
            loss = 1000 * table(torch.randint(rows, (touched,))).square().mean()
            loss.backward()
            optimizer.step()
            time.sleep(pause)
            note()
            w.step(loss)
    note()
    pipe.send(found)


if __name__ == "__main__":
    main()
