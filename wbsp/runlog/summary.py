"""The summary of a finished run: every number once, and a table of these in plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from wbsp.core.stats import Member, Report, sum_phases
from wbsp.runlog.straggler import StragglerScore


def summarize(t: float, members: Mapping[int, Member], reports: Mapping[int, Report], version: int,
              accuracy: float | None, reason: str, stragglers: StragglerScore) -> dict[str, Any]:
    """Return the numbers of a finished run by name, fit for JSON.

    `steps`, `samples`, `pushes` and `rejected` count what the server received; pulls and the booked
    seconds are the workers' own. Shares are parts of a worker's wall time, 0..1. A worker's
    `speed` is the mean over the whole run, compared with the fastest worker (`vs_best`) and with
    the worker's own best speed between two measurements (`vs_own_best`).
    """
    overall = StragglerScore().update(members)
    workers: dict[int, dict[str, Any]] = {}
    for worker, member in sorted(members.items()):
        report = reports.get(worker, Report())
        score = overall.get(worker)
        speed = score.speed if score else 0.0
        workers[worker] = {
            "steps": member.steps, "samples": member.samples, "pushes": member.pushes,
            "pulls": report.pulls, "rejected": sum(member.rejected.values()),
            "rejected_why": dict(member.rejected), "finished": member.finished,
            "compute_seconds": member.seconds, "wall_seconds": report.wall,
            "seconds": dict(report.seconds), "shares": {k: report.share(k) for k in report.seconds},
            "push_seconds": report.push_seconds, "pull_seconds": report.pull_seconds,
            "speed": speed, "vs_best": score.vs_best if score else 0.0,
            "vs_own_best": speed / max(speed, stragglers.best(worker)) if speed else 0.0,
        }
    total: dict[str, Any] = {name: sum(one[name] for one in workers.values()) for name in
                             ("steps", "samples", "pushes", "pulls", "rejected", "wall_seconds")}
    total["seconds"] = sum_phases(one["seconds"] for one in workers.values())
    wall = total["wall_seconds"]
    total["shares"] = {k: seconds / wall if wall else 0.0
                       for k, seconds in total["seconds"].items()}
    return {"t": t, "version": version, "accuracy": accuracy, "reason": reason,
            "total": total, "workers": workers}


def table(sync: str, summary: dict[str, Any]) -> str:
    """Return the summary in plain text: work and time of each worker."""
    total, workers = summary["total"], summary["workers"]
    accuracy = summary["accuracy"]
    known = "" if accuracy is None else f", final accuracy {accuracy:.4f}"
    lines = [f"{sync}: {total['steps']:,} steps in {summary['t']:.1f} s, version "
             f"{summary['version']:,}{known}",
             f"stopped: {summary['reason']}"]
    staleness = summary["staleness"]
    if staleness["pushes"]:
        lines.append(f"staleness of accepted pushes: mean {staleness['mean']:.2f}, "
                     f"max {staleness['max']}")
    if said := goodput(summary):
        lines.append(said)
    if failures := summary.get("failures"):
        lines.append("failures: " + ", ".join(f"{kind} {n:,}" for kind, n in failures.items()))
    if total["rejected"]:
        why = sum((Counter(one["rejected_why"]) for one in workers.values()), Counter())
        lines.append("rejected pushes: " + ", ".join(f"{n:,} {w}" for w, n in why.most_common()))
    lines += ["", f"{'worker':>6} {'steps':>9} {'pushes':>9} {'pulls':>9} {'rejected':>9} "
                  f"{'samples/s':>10} {'of best':>8} {'of own':>8}"]
    for name, one in [*workers.items(), ("all", total)]:
        pace = "" if name == "all" else (f" {one['speed']:10,.1f} {one['vs_best']:8.1%} "
                                         f"{one['vs_own_best']:8.1%}")
        lines.append(f"{name:>6} {one['steps']:9,} {one['pushes']:9,} {one['pulls']:9,} "
                     f"{one['rejected']:9,}{pace}")
    lines += ["", "seconds and their share of the wall time",
              f"{'worker':>6} {'wall':>9}" + "".join(f"{kind:>16}" for kind in total["seconds"])]
    for name, one in [*workers.items(), ("all", total)]:
        cells = "".join(f"{one['seconds'].get(kind, 0.0):9.1f} {one['shares'].get(kind, 0.0):6.1%}"
                        for kind in total["seconds"])
        lines.append(f"{name:>6} {one['wall_seconds']:9.1f}{cells}")
    return "\n".join(lines) + "\n"


def goodput(summary: dict[str, Any]) -> str | None:
    """Return in a sentence how much of its machines a run used, or None where that is not known.

    It is the part of the time in which machines computed, by their speeds, times the part of the
    work that counted: see docs/explanation/noise-scale.md.
    """
    noise = summary.get("noise")
    workers = summary["workers"].values()
    could = sum(one["speed"] * one["wall_seconds"] for one in workers)
    if not (noise and could):
        return None
    busy = min(1.0, summary["total"]["samples"] / could)
    used = busy * noise["efficiency"]
    batch = noise["batch"]
    return (f"goodput: this run used {used:.0%} of what its machines could give; {1 - busy:.0%} "
            f"went to waiting and transfers, {busy - used:.0%} to noise (noise scale about "
            f"{noise['scale']:,.0f} examples; half of a worker's batch of {batch:,.0f} would gain "
            f"{noise['half'] - 1:.0%} at most)")
