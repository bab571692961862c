"""A thousand workers on one server: what is lost, how long a push waits, how much memory it is.

    python -m lab.benchmarks.scale [--quick] [--json FILE]
    python -m lab.benchmarks.scale --sites 10 [--quick] [--json FILE]

Workers under `asp overlap=true` push at a steady pace, all together `--rate` times a second, and
fetch each version that their push makes; they are members without a model, each with connections of
its own, in a few processes (`lab/benchmarks/contenders/crowd.py`). A push waits from the moment in
which all of it has arrived until the server decides on it, which its log tells; with shards, all of
them must have said before that they have theirs. Where the host of a virtual machine has other
work, that is waited for, too, so its share is told.

With `--sites`, each worker has the server of a site, which decides on its pushes. The servers of
the sites push to one server above, each push after a checkpoint of its site. All of them run here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from lab.benchmarks.contenders.crowd import Arrived, crowd, run_zero
from lab.benchmarks.contenders.team import start_team
from scripts.harness import print_table, server, write_json

_END = 120.0  # seconds that a server may take to end its run

SIZE = 148_298  # floats: the CIFAR-10 CNN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2, help="that the workers live in")
    parser.add_argument("--size", type=int, default=SIZE, help="floats in the model")
    parser.add_argument("--rate", type=float, default=40.0, help="pushes a second of all workers")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--shards", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--sites", type=int, default=0, metavar="N",
                        help="put N servers of sites between the workers and the server")
    parser.add_argument("--quick", action="store_true", help="40 workers for 5 seconds")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.workers, args.seconds = 40, 5.0
    rows = []
    if args.sites < 0 or args.sites > args.workers:
        parser.error(f"--sites={args.sites} is not 0 to {args.workers}, the number of workers")
    try:
        for shards in args.shards if not args.sites else (1,):
            rows.append(_run(args, shards))
    except (OSError, RuntimeError) as error:
        sys.exit(f"lab.benchmarks.scale: {error}")
    print_table(("shards", "sites", "workers", "pushes", "lost", "pushes/s", "of sites/s",
                 "wait ms median", "99 %", "longest", "below 5 ms", "memory MB", "stolen"),
                [(str(row["shards"]), str(row["sites"]), f"{row['workers']:,}",
                  f"{row['pushes']:,}", str(row["lost"]), f"{row['pushes_per_second']:.1f}",
                  f"{row['of_sites_per_second']:.1f}",
                  *(f"{row['wait_ms'][name]:.2f}" for name in ("median", "99 %", "longest")),
                  f"{row['below_5_ms']:.1%}", f"{row['memory_mb']:,.0f}", f"{row['stolen']:.1%}")
                 for row in rows])
    print(f"load of this machine: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    write_json(args.json, {"scale": rows})


def _run(args: argparse.Namespace, shards: int) -> dict:
    """One run with so many shards, or with sites."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def start(name: str, workers: int, *flags: str) -> str:
            return stack.enter_context(server(
                "asp", workers, "--sync_option=overlap=true", f"--log_root={folder}",
                f"--base_dir={name}", *flags))

        top = start("top", args.sites or args.workers, f"--shards={shards}")
        servers = {top: "top"}  # address of each server of workers -> the name of its run
        if args.sites:
            parts = np.array_split(np.arange(args.workers), args.sites)
            servers = {start(f"site{site}", len(part), f"--upstream={top}", f"--site={site}"):
                       f"site{site}" for site, part in enumerate(parts)}
        each = [len(part) for part in np.array_split(np.arange(args.workers), len(servers))]
        places = [(address, worker) for address, number in zip(servers, each, strict=True)
                  for worker in range(number)]
        zero = {address: run_zero(address) for address in servers}
        share = -(-len(places) // args.processes)
        team = stack.enter_context(start_team(crowd, [
            (places[first:first + share], args.size, args.workers / args.rate, args.seconds)
            for first in range(0, len(places), share)]))
        team.answers()  # all have W_0
        team.go()
        before = psutil.cpu_times()
        time.sleep(args.seconds)
        after = psutil.cpu_times()
        memory = [_memory(address) for address in {top: "", **servers}]
        pushes: list[Arrived] = [push for part in team.answers() for push in part]
        end = time.monotonic() + _END
        while len(list(folder.rglob("summary.json"))) < len({top, *servers}):
            if time.monotonic() > end:
                raise RuntimeError(f"not all servers have ended within {_END:g} s")
            time.sleep(0.1)  # the last events are in the log when the server has ended the run
        accepted = {address: _accepted(folder, name) for address, name in servers.items()}
        above = len(_accepted(folder, "top")) if args.sites else 0
    decided = [(push, accepted[push.address][push.worker, push.seq]) for push in pushes
               if (push.worker, push.seq) in accepted[push.address]]
    waits = [1000 * (t + zero[push.address] - push.at) for push, t in decided]
    return {"shards": shards, "sites": args.sites, "workers": args.workers, "pushes": len(pushes),
            "lost": len(pushes) - len(decided), "pushes_per_second": len(pushes) / args.seconds,
            "of_sites_per_second": above / args.seconds,
            "memory_mb": sum(memory), "top_mb": memory[0],
            "stolen": _stolen(before, after),
            "below_5_ms": float(np.mean(np.array(waits) < 5)),
            "wait_ms": {"median": statistics.median(waits), "longest": max(waits),
                        "99 %": float(np.percentile(waits, 99))}}


def _stolen(before: Any, after: Any) -> float:
    """Part of the time, of all cores, in which the host of this virtual machine had other work."""
    return (getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)) / (
        sum(after) - sum(before))


def _accepted(folder: Path, name: str) -> dict[tuple[int, int], float]:
    """(worker, seq) of each push that was accepted in this run -> when, in seconds of the run."""
    with open(next((folder / name).rglob("events.jsonl"))) as file:
        found = [((event["worker"], event["seq"]), event["t"]) for event in map(json.loads, file)
                 if event["kind"] == "accept"]
    if len(found) != len(dict(found)):
        raise RuntimeError("a push was accepted twice")
    return dict(found)


def _memory(address: str) -> float:
    """MB that the server and its shards have in memory."""
    flag = f"--port_base={address.rpartition(':')[2]}"
    (server_,) = [one for one in psutil.process_iter(["cmdline"])
                  if flag in (one.info["cmdline"] or [])]
    return sum(one.memory_info().rss for one in (server_, *server_.children())) / 1e6


if __name__ == "__main__":
    main()
