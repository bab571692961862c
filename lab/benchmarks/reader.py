"""What it costs a server that its versions are read: the time of a push and a pull of one worker.

    python -m lab.benchmarks.reader [--quick] [--json FILE]

Two servers under asp, whose workers do everything but compute; the versions of one are read by
`wbsp.versions` all the time. They are measured in turn, block by block, and compared within each
turn: by the clock, and by the seconds of the processor that the server's own process takes. On a
machine that does other work, too, or has fewer cores than there are processes, only the latter say
something.
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

import psutil

from lab.benchmarks.contenders.team import start_team
from lab.benchmarks.contenders.worker import wbsp_worker
from scripts.harness import in_words, print_table, ratios, server, spread, write_json

SIZES = (5, 148_298)  # floats: nearly nothing but the server's own time, and the CIFAR-10 CNN
WHAT = "clock", "processor"
_SAVES = ["--check_period=1"]  # where versions are read
_ROOT = Path(__file__).parents[2]


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
        sys.exit(f"lab.benchmarks.reader: {error}")
    print_table(("model MB", "ms of the", "alone", "read", "read/alone"),
                [(f"{4 * row['floats'] / 1e6:.1f}", what,
                  *(f"{row[what][name]['median']:,.3f}" for name in ("alone", "read")),
                  in_words(row[what]["ratio"])) for row in rows for what in WHAT])
    print(f"load of this machine: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    write_json(args.json, {"reader": rows})


def _compare(size: int, turns: int, seconds: float) -> dict:
    """Milliseconds of a round trip, by each of WHAT."""
    with contextlib.ExitStack() as stack:
        teams, processes = {}, {}
        for name in ("alone", "read"):
            address = stack.enter_context(server("asp", 1, *_SAVES if name == "read" else []))
            if name == "read":
                stack.enter_context(_reading(address))
            teams[name] = stack.enter_context(start_team(wbsp_worker, [(address, 0, 1, size)]))
            processes[name] = _listener(address)
        found: dict[str, dict[str, list[float]]] = {what: {"alone": [], "read": []}
                                                    for what in WHAT}
        for turn in range(turns + 1):
            for name in teams if turn % 2 else reversed(teams):
                before = _used(processes[name])
                trips = teams[name].block(seconds)
                used = _used(processes[name]) - before
                if turn:  # the first warms up
                    found["clock"][name].append(1000 * statistics.median(trips))
                    found["processor"][name].append(1000 * used / len(trips))
        for team in teams.values():
            team.finish()
    return {"floats": size, **{what: {
        **{name: spread(values) for name, values in both.items()},
        "ratio": ratios(both["read"], both["alone"])} for what, both in found.items()}}


def _used(process: psutil.Process) -> float:
    """Seconds of the processor so far."""
    return sum(process.cpu_times()[:2])


def _listener(address: str) -> psutil.Process:
    """Return the server's process."""
    port = f"--port_base={address.rpartition(':')[2]}"
    return next(one for one in psutil.process_iter(["cmdline"])
                if port in (one.info["cmdline"] or ()))


@contextlib.contextmanager
def _reading(address: str) -> Iterator[None]:
    """Yield a process that reads one version after the other."""
    code = f"import wbsp\nfor version in wbsp.versions({address!r}): print('read', flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=_ROOT, text=True,
                          stdout=subprocess.PIPE) as reader:
        try:
            yield
        finally:
            reader.terminate()
        if "read" not in reader.communicate()[0]:
            raise RuntimeError("no version was read")


if __name__ == "__main__":
    main()
