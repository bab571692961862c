"""Write files of runs whose every number can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from wbsp.core.goal import Goal
from wbsp.core.stats import Member, Report
from wbsp.runlog.folder import write_settings
from wbsp.runlog.reader import Run, read_run
from wbsp.runlog.server import ServerLog
from wbsp.runlog.worker import WorkerLog
from wbsp.simulate.study.compare import Result

# What the two workers do in a round of 1 s, by (kind, seconds); worker 1 is the slow one.
ROUNDS = {
    "bsp": {0: [("compute", 0.2), ("push", 0.1), ("wait", 0.6), ("pull", 0.1)],
            1: [("data", 0.1), ("compute", 0.7), ("push", 0.1), ("pull", 0.1)]},
    "wbsp": {0: [("compute", 0.2), ("push", 0.1)] * 3 + [("pull", 0.1)],
             1: [("data", 0.1), ("compute", 0.7), ("push", 0.1), ("pull", 0.1)]},
}


def result(label: str, *seconds: float | None) -> Result:
    """Return runs of a model that reached the target of 85 % at `seconds`, or never (None)."""
    settings = {"model": "small", "dataset": "shapes10", "optimizer": None}
    runs = tuple(SimpleNamespace(time_to=lambda _, at=at: at, settings=settings) for at in seconds)
    return Result(label, runs, Goal.of(0.85))  # type: ignore[arg-type]


def write_run(folder: Path, sync: str, seed: int = 0, options: dict | None = None, rounds: int = 20,
              accuracy: Callable[[float], float] = lambda t: min(0.9, 0.1 * t),
              stale: tuple[int, ...] = (0,), ended: bool = True, **settings) -> Run:
    """Write a run in which each worker repeats its ROUNDS; a version is committed in each, and
    evaluated 0.9 s after its begin.

    Args:
        stale: versions by which the pushes are behind, in turn.
    """
    folder.mkdir(parents=True)
    schedule = ROUNDS.get(sync, ROUNDS["wbsp"])
    write_settings(folder, {"sync": sync, "options": options or {}, "workers": len(schedule),
                            "sync_option": json.dumps(options), "folder": str(folder), "seed": seed,
                            "model": "toy", "dataset": "toy", "clock": "virtual",
                            "command": f"toy --sync={sync} | cat", **settings})
    log = ServerLog(folder, sync, tensorboard=False)
    members = {worker: Member(active=True) for worker in schedule}
    reports = {worker: Report() for worker in schedule}
    logs = {worker: WorkerLog(folder, worker, sync) for worker in schedule}
    for worker in schedule:
        log.event(0.0, "join", worker=worker, version=0)
    for version in range(rounds):
        pushes = []
        for worker, kinds in schedule.items():
            t = float(version)
            for kind, seconds in kinds:
                logs[worker].span("compute", kind, t, t + seconds)
                if kind in ("push", "pull"):
                    logs[worker].span("network", kind, t, t + seconds)
                t += seconds
                reports[worker].seconds[kind] += seconds
                if kind == "push":
                    pushes.append((t, worker))
        for t, worker in sorted(pushes):
            member = members[worker]
            member.steps += 1
            behind = min(version, stale[member.pushes % len(stale)])
            log.event(t, "accept", worker=worker, seq=member.pushes, base=version - behind,
                      version=version, steps=1, samples=8, seconds=0.2, weight=0.5)
            member.pushes += 1
        t = version + 0.9
        log.event(t, "commit", version=version + 1, merged=len(pushes))
        log.evaluation(t, version + 1, 2.3 - accuracy(t), accuracy(t), 1.0, members, reports)
    log.event(float(rounds), "stop", reason="all rounds done", version=rounds)
    if ended:
        log.summary(float(rounds), members, reports, rounds, accuracy(rounds), "all rounds done")
    for one in (log, *logs.values()):
        one.close()
    return read_run(folder)


def write_site(folder: Path) -> Run:
    """Write the events of `made_of_site`, and the spans of its worker, which waits for a version.
    """
    folder.mkdir(parents=True)
    write_settings(folder, {"sync": "pcc", "upstream": "top.example:2606", "site": "3"})
    log, worker = ServerLog(folder, "pcc", tensorboard=False), WorkerLog(folder, 0, "pcc")
    for t, kind, fields in made_of_site():
        log.event(t, kind, **fields)
    for kind, start, end in ("compute", 0.0, 2.0), ("wait", 2.0, 3.0):
        worker.span("compute", kind, start, end)
    log.close()
    worker.close()
    return read_run(folder)


def made_of_site() -> list[tuple[float, str, dict]]:
    """Return the events (t, kind, fields) of a site with one worker: two pushes of the worker, two
    pushes to the server above, and a version of the server above between them.
    """
    def pushed(t: float, seq: int, version: int) -> tuple[float, str, dict]:
        return t, "accept", {"worker": 0, "seq": seq, "base": version, "version": version,
                             "steps": 1, "samples": 8, "seconds": 0.5, "weight": 1.0}

    def cut(t: float, seq: int, version: int) -> tuple[float, str, dict]:
        return t, "cut", {"seq": seq, "version": version, "steps": 1, "samples": 8}
    return [(0.0, "join", {"worker": 0, "version": 0}), (0.0, "start", {"workers": [0]}),
            pushed(1.0, 0, 0), (1.0, "commit", {"version": 1, "merged": 1}), cut(1.0, 0, 1),
            pushed(2.0, 1, 1), (2.0, "commit", {"version": 2, "merged": 1}), cut(2.0, 1, 2),
            (3.0, "adopt", {"version": 3, "above": 40})]
