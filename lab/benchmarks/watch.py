"""How long a run of a million events takes to be seen: read, served, and drawn by a browser.

    python -m lab.benchmarks.watch [--events N] [--workers N] [--browser PROGRAM] [--json FILE]

Makes the folder of such a run and opens it as a person would: `python -m wbsp.watch`, and then a
headless Chromium, if there is one, at the address that it prints. Seconds of the processor are
counted beside those of the clock: on a machine that does other work, too, only they say something.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil

from scripts.harness import print_table, write_json
from tests.helpers.browser import Browser, find_browser
from wbsp.runlog.files import to_json
from wbsp.runlog.folder import write_settings
from wbsp.runlog.server import ServerLog

WINDOWS = {  # what a person looks at next: name -> JavaScript
    "zoomed to a tenth": "[0.4 * span(), 0.5 * span()]",
    "the newest steps": '"newest"', "the whole run again": '"whole"'}
STEP = 0.05  # seconds of a step of the fastest worker
_ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="of the server")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--browser", default=find_browser(), help="program of a Chromium")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write what the browser shows")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spans = make_run(Path(folder) / "run", args.events, args.workers)
        rows = seen(Path(folder), args.browser, args.picture)
    print(f"{args.events:,} events, {spans:,} spans, {args.workers} workers")
    print_table(("", "clock s", "processor s"), [
        (name, f"{row['clock']:.2f}", f"{row['processor']:.2f}") for name, row in rows.items()])
    write_json(args.json, {"watch": {"events": args.events, "spans": spans, **rows}})


def make_run(folder: Path, events: int, workers: int) -> int:
    """Make the folder of a run under asp of so many events; return the number of its spans.

    Each step is pushed, which makes a version: two events and four spans a step.
    """
    folder.mkdir()
    write_settings(folder, {"sync": "asp", "options": {}, "workers": workers, "clock": "virtual"})
    ServerLog(folder, "asp", tensorboard=False).close()
    draw = np.random.default_rng(0)
    pace = STEP * (1 + np.arange(workers) / workers)  # seconds of a step
    share = (1 / pace) / (1 / pace).sum()
    steps = np.maximum(1, (share * events / 2).astype(int))
    ends = [np.cumsum(pace[worker] * draw.uniform(0.8, 1.2, count))
            for worker, count in enumerate(steps)]
    t, who = np.concatenate(ends), np.repeat(np.arange(workers), steps)
    order = np.argsort(t, kind="stable")
    lines = [to_json({"t": 0.0, "kind": "join", "worker": worker, "version": 0})
             for worker in range(workers)]
    lines.append(to_json({"t": 0.0, "kind": "start", "workers": list(range(workers))}))
    seq, base = [0] * workers, [0] * workers
    for version, (at, worker) in enumerate(zip(t[order].tolist(), who[order].tolist(),
                                               strict=True)):
        lines += [
            to_json({"t": at, "kind": "accept", "worker": worker, "seq": seq[worker],
                     "base": base[worker], "version": version, "steps": 1, "samples": 64,
                     "seconds": 0.7 * pace[worker], "weight": 1.0}),
            to_json({"t": at, "kind": "commit", "version": version + 1, "merged": 1})]
        seq[worker] += 1
        base[worker] = version + 1
        if version % 5000 == 0:
            lines.append(to_json({"t": at, "kind": "evaluation", "version": version,
                                  "steps": version, "loss": 2.3 / (1 + version / 1e5),
                                  "accuracy": 1 - 0.9 / (1 + version / 1e5), "top5": 0.99}))
    (folder / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    for worker in range(workers):
        lines = []
        for end in ends[worker].tolist():
            whole = pace[worker]
            for lane, kind, begin, part in (
                    ("compute", "compute", 1.0, 0.7), ("network", "push", 0.3, 0.1),
                    ("network", "pull", 0.2, 0.2), ("compute", "wait", 0.3, 0.3)):
                lines.append(to_json({"t": end - begin * whole, "seconds": part * 0.8 * whole,
                                      "lane": lane, "kind": kind}))
        (folder / f"events_wk{worker}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return 4 * int(steps.sum())


def seen(folder: Path, program: str | None, picture: Path | None) -> dict[str, dict[str, float]]:
    """Seconds of each thing that a person waits for, and of the processor meanwhile."""
    rows: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        browser = program and stack.enter_context(Browser(program, folder / "browser"))
        watch = Stopwatch(browser.pid if browser else None)
        server = stack.enter_context(subprocess.Popen(
            [sys.executable, "-m", "wbsp.watch", str(folder)], cwd=_ROOT, stdout=subprocess.PIPE,
            text=True))
        stack.callback(server.kill)
        watch.pids.append(server.pid)
        said = server.stdout.readline() if server.stdout else ""
        address = re.search(r"http://\S+", said)
        if address is None:
            sys.exit(f"lab.benchmarks.watch: the page is not served: {said}")
        rows["its address is printed"] = watch.read()
        if not browser:
            print("lab.benchmarks.watch: there is no chromium; name one with --browser")
            urllib.request.urlopen(f"{address[0]}run/0").read()
            rows["its numbers are there"] = watch.read()
            return rows
        browser.open(address[0])
        rows["it is drawn"] = watch.read()
        if picture:
            browser.picture(picture)
        for name, window in WINDOWS.items():
            watch = Stopwatch(*watch.pids)
            browser.evaluate(f"view = {window}, drawLanes()")
            rows[name] = watch.read()
    return rows


class Stopwatch:
    """Seconds since it was made, of the clock and of the processor by processes and those below."""

    def __init__(self, *pids: int | None):
        self.pids = [pid for pid in pids if pid is not None]
        self._clock, self._processor = time.monotonic(), self._used()

    def read(self) -> dict[str, float]:
        return {"clock": time.monotonic() - self._clock,
                "processor": self._used() - self._processor}

    def _used(self) -> float:
        used = 0.0
        for pid in self.pids:
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    used += sum(one.cpu_times()[:2])
        return used


if __name__ == "__main__":
    main()
