"""Runs with real processes on this machine, and the clusters that they were, for virtual time."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from wbsp.runlog.folder import run_folder
from wbsp.runlog.reader import Run, read_run
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.runs import Plan, simulate
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.world.payload import Payload
from wbsp.sync import MODELS
from wbsp.tensors.codecs import parse

LAUNCHER = Path(__file__).parents[2] / "runcifar10gpu.py"


def finished(base: Path) -> Run | None:
    """Return the newest run in this folder if it came to its end; None: it was interrupted, or
    there is none."""
    with contextlib.suppress(FileNotFoundError):
        run = read_run(run_folder(base, resume=True))
        if run.summary is not None and "interrupted" not in run.summary["reason"]:
            return run
    return None


def twin(run: Run, base: Path, seed: int, title: str, plan: Callable[[], Plan]) -> Run:
    """Return the real `run` in virtual time, in this folder; simulate it unless that was done
    before. `plan` is called only then."""
    done = finished(base)
    if done is not None and done.settings["recorded_in"] == str(run.folder):
        return done
    made = plan()
    made = replace(made, settings={**made.settings, "recorded_in": str(run.folder)})
    progress = Progress()
    progress.begin(f"{title} in virtual time")
    try:
        return simulate(made, MODELS[run.settings["sync"]], run.settings["options"], seed,
                        run_folder(base), progress)
    finally:
        progress.close()


def train(base: Path, server: Sequence[str], workers: Sequence[Sequence[str]],
          cores: bool = False) -> list[int | None]:
    """Run a server and its workers to their end; return the exit codes, the server's first.

    If the server fails, the workers are ended, and one that was at work has None.

    Args:
        base: folder of the run's files and of the processes' output
        server: flags of the server, beside its folder and port
        workers: of each worker, beside its index and the port
        cores: give worker i the core i alone
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    jobs = [("ps", [f"--base_dir={base}", f"--worker_num={len(workers)}", *server]),
            *((f"worker{i}", [f"--worker_index={i}", *flags]) for i, flags in enumerate(workers))]
    with contextlib.ExitStack() as stack:
        processes = []
        for name, flags in jobs:
            log = stack.enter_context(open(base / f"{name}.log", "w"))
            processes.append(subprocess.Popen(
                [sys.executable, "-u", LAUNCHER, f"--job_name={name.rstrip('0123456789')}",
                 f"--port_base={port}", *flags], stdout=log, stderr=log))
            stack.callback(processes[-1].kill)
            if cores and name != "ps":  # before it has threads
                os.sched_setaffinity(processes[-1].pid, {len(processes) - 2})
        codes = [processes[0].wait()]  # it outlives its workers, unless it fails
        return codes + [one.poll() if codes[0] else one.wait() for one in processes[1:]]


def measured(run: Run, model_bytes: int) -> ClusterSpec:
    """Return the cluster of `run`: its workers' steps one by one, pushes and fetches on average.

    A version counts as many bytes as an update in the run's format.

    The duration of a push is the time that the compute thread waits for it, cutting included; for a
    compute thread that never waits, the time on the network. Under `refresh=published` a slow
    worker may never fetch; then nothing limits its fetches here, either.
    """
    own = own_work(run)
    lane = "network" if "push" in own else "compute"
    size = Payload(model_bytes, parse(run.settings["wire"])).update
    groups = []
    for spans in run.spans.values():
        took = {kind: [s["seconds"] for s in spans if (s["lane"], s["kind"]) == (lane, kind)]
                for kind in ("push", "pull")}
        up, down = (size / statistics.fmean(found) if found else math.inf
                    for found in took.values())
        groups.append(Group(trace=tuple(steps(spans, own)), up=up, down=down))
    return ClusterSpec(tuple(groups))


def steps(spans: list[dict], own: set[str]) -> list[float]:
    """Seconds of each step of a worker: data and compute, a sleep before them, and `own` phases.

    A step has ended when a phase of another kind follows its compute phase.
    """
    result: list[float] = []
    computed = ended = True  # the last step of `result`
    for span in spans:
        if span["lane"] != "compute":
            continue
        if span["kind"] in ("compute", "data"):
            if ended:
                result.append(0.0)
                computed = ended = False
            computed |= span["kind"] == "compute"
            result[-1] += span["seconds"]
        else:
            ended = computed
            if span["kind"] in own and result:
                result[-1] += span["seconds"]
    return result if computed else result[:-1]  # data at the run's end


def own_work(run: Run) -> set[str]:
    """Return the phases, beside compute, in which a worker's compute thread works.

    A thread that never waits also works for a push or a fetch.
    """
    model = MODELS[run.settings["sync"]](**run.settings["options"])
    never_waits = model.rule.wait == "never"
    return {"data", "callbacks"} | ({"push", "pull"} if never_waits else set())
