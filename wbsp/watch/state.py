"""All numbers of the page, from a run's events and spans; those of a finished run are from its
summary, so that page and summary cannot differ.

Times are seconds since training began, as in all figures. `t` of the totals, as in the summary,
counts from the server's start.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from wbsp.core.stats import ALWAYS, PHASES, Member, Report, count_rejected
from wbsp.runlog.events import ACCEPT, ADOPT, COMMIT, CUT, REJECT, RESENT, EventLog
from wbsp.runlog.straggler import StragglerScore
from wbsp.runlog.summary import summarize
from wbsp.watch.spans import SpanLog

BINS = 200  # of time, at most, for staleness and rejected pushes; 8 pushes in a bin on average
POINTS = 4000  # of a curve
SCORES = 6000  # straggler scores in the chart, and at most 120 of a worker
OWN_BEST = 60_000  # straggler scores for a worker's own best speed, until there is a summary
MEASURED = 4  # pushes of a worker, on average, behind a score
LISTED = 500  # events in the list of joins and losses
# Events that the list leaves out.
_QUIET = {"evaluation", "training", "checkpoint", "duplicate", "tally"}


def members(log: EventLog) -> dict[int, Member]:
    """Return worker -> what the server received from it, and whether it takes part."""
    found: dict[int, Member] = {}
    for _, event in log.others:
        kind = event["kind"]
        if kind == "resume":
            for member in found.values():
                member.leaves(False, "")  # until it reattaches
        if kind not in ("join", "reattach", "leave", "resent"):
            continue
        member = found.setdefault(event["worker"], Member())
        if kind == "resent":
            for reason, pushes in event["rejected"].items():
                count_rejected(member.rejected, reason, pushes)
        elif kind == "leave":
            member.leaves(bool(event.get("finished", False)), "")
        else:
            member.returns(bool(event.get("finished", False)))
    rows = log.rows
    own = rows["code"] <= RESENT
    workers, place = np.unique(rows["worker"][own], return_inverse=True)
    sums = {name: np.bincount(place, rows[name][own], len(workers))
            for name in ("steps", "samples", "seconds", "pushes")}
    for index, worker in enumerate(workers.tolist()):
        found[worker] = replace(
            found.get(worker, Member()), steps=int(sums["steps"][index]),
            samples=int(sums["samples"][index]), pushes=int(sums["pushes"][index]),
            seconds=float(sums["seconds"][index]))
    for (worker, reason), count in _rejected(log).items():
        count_rejected(found[worker].rejected, reason, count)
    for name, sums in (_tally(log) or {"workers": {}})["workers"].items():
        found[int(name)] = replace(
            found.get(int(name), Member()), steps=int(sums["steps"]), samples=int(sums["samples"]),
            pushes=int(sums["pushes"]), seconds=float(sums["seconds"]),
            rejected=dict(sums["rejected"]))
    return found


def _tally(log: EventLog) -> dict[str, Any] | None:
    """Return the newest sums of a run whose pushes are no longer written; None: all are."""
    return next(iter(log.kind("tally")[-1:]), None)


def totals(log: EventLog, spans: SpanLog, there: dict[int, Member]) -> dict[str, Any]:
    """Return the numbers of the run so far, in the form and the words of summary.json.

    Pulls and the seconds of phases are from the workers' spans.

    Args:
        there: the run's `members`.
    """
    stragglers = StragglerScore()
    for then in _then(log, there, _by_measurement(log, OWN_BEST // max(1, len(there)))):
        stragglers.update(then)
    evaluations = log.kind("evaluation")
    versions = log.rows["version"][log.rows["code"] >= COMMIT]
    known = summarize(log.newest, there, _reports(spans),
                      int(versions[-1]) if len(versions) else 0,
                      evaluations[-1]["accuracy"] if evaluations else None, "", stragglers)
    behind = staleness(log)[1]
    known["staleness"] = {"mean": float(behind.mean()) if len(behind) else 0.0,
                          "max": int(behind.max(initial=0)), "pushes": len(behind)}
    if (tally := _tally(log)) is not None:
        known["version"] = max(known["version"], tally["version"])
        whole = tally["staleness"]
        known["staleness"] = {"mean": whole["sum"] / max(1, whole["pushes"]), "max": whole["max"],
                              "pushes": whole["pushes"]}
    known["noise"] = next((event["noise"] for _, event in reversed(log.others)
                           if "noise" in event), None)
    known["workers"] = {str(worker): one for worker, one in known["workers"].items()}
    return known


def valid(summary: dict[str, Any], log: EventLog, there: dict[int, Member]) -> bool:
    """Return whether `summary` is of the run's end: not if the run was resumed after it."""
    resumed = len(log.kind("resume"))
    if resumed and "failures" not in summary:  # written by an older release
        return (summary["total"]["pushes"] == sum(member.pushes for member in there.values())
                and not any(member.active for member in there.values()))
    return bool(resumed <= summary.get("failures", {}).get("resume", 0))


def sites(log: EventLog) -> dict[int, int]:
    """Return worker -> how many workers behind it take part, for each worker that is a site."""
    return {event["worker"]: int(event["workers"]) for event in log.kind("site")}


def above(log: EventLog, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a site exchanges with the server above; None: this is the run of no site."""
    if "upstream" not in settings:
        return None
    rows = log.rows
    adopted = rows["above"][rows["code"] == ADOPT]
    return {"site": str(settings.get("site", "")), "upstream": str(settings["upstream"]),
            "pushes": int((rows["code"] == CUT).sum()), "adopted": len(adopted),
            "version": int(adopted[-1]) if len(adopted) else None}


def staleness(log: EventLog) -> tuple[np.ndarray, np.ndarray]:
    """Return times, float [pushes], and staleness, int [pushes], of accepted pushes."""
    rows = log.rows
    own = rows["code"] == ACCEPT  # copying columns is faster than copying rows
    return rows["t"][own] - log.began, rows["version"][own] - rows["base"][own]


def curves(log: EventLog, there: dict[int, Member]) -> dict[str, Any]:
    """Return what the page draws over time, each curve as a list for each of its columns."""
    began, rows = log.began, log.rows
    end = max(log.newest - began, 1e-9)
    evaluations = _sampled(log.kind("evaluation"))
    training = _sampled(log.kind("training"))
    versions = rows[rows["code"] >= COMMIT]
    made, later = len(versions), log.kind("tally")
    versions = _sampled(versions)
    t, behind = staleness(log)
    bins = min(BINS, max(20, len(t) // 8))
    place = _bins(t, end, bins)
    count = np.bincount(place, minlength=bins)
    highest = np.zeros(bins, int)
    np.maximum.at(highest, place, behind)
    some = count > 0
    centers = (np.arange(bins) + 0.5) * end / bins
    return {
        "evaluations": {
            "t": [max(0.0, e["t"] - began) for e in evaluations],  # W_0 is evaluated before
            **{name: [e[name] for e in evaluations]
               for name in ("version", "steps", "loss", "accuracy")},
            "bits_per_byte": [(e.get("metrics") or {}).get("bits_per_byte") for e in evaluations]},
        "training": {
            "t": [e["t"] - began for e in training],
            **{name: [e[name] for e in training] for name in ("steps", "loss")}},
        "versions": {
            "t": np.round(versions["t"] - began, 6).tolist() + [e["t"] - began for e in later],
            "version": versions["version"].tolist() + [e["version"] for e in later],
            "all": len(versions) == made and not later},
        "staleness": {
            "t": centers[some].tolist(), "max": highest[some].tolist(),
            "mean": (np.bincount(place, behind, bins)[some] / count[some]).tolist()},
        "rejected": _rejected_over_time(log, began, end, centers),
        "scores": scores(log, there),
        "noise": _noise(log),
    }


def _noise(log: EventLog) -> dict[str, Any]:
    """Return the noise scale, in examples, where the server has measured it."""
    told = _sampled([event for _, event in log.others if "noise" in event])
    return {"t": [event["t"] - log.began for event in told],
            "steps": [event["steps"] for event in told],
            "scale": [event["noise"]["scale"] for event in told]}


def scores(log: EventLog, there: dict[int, Member]) -> dict[str, Any]:
    """Return straggler scores of equal spans of time: a row for each worker and comparison.

    None stands where the worker did not take part, or nothing was known of it yet.
    """
    stragglers, t, workers = StragglerScore(), list[float](), sorted(there)
    vs_best, vs_own = ([list[float | None]() for _ in workers] for _ in range(2))
    pushes = int((log.rows["code"] <= RESENT).sum())
    crew = max(1, len(workers))
    number = max(2, min(120, SCORES // crew, pushes // (crew * MEASURED)))
    span = log.newest - log.began
    marks = _by_time(log, number) if span > 0 else []
    for index, then in enumerate(_then(log, there, marks), 1):
        found = stragglers.update(then)
        t.append((index - 0.5) * span / number)
        for row, worker in enumerate(workers):
            score = found.get(worker)
            vs_best[row].append(score and round(score.vs_best, 4))
            vs_own[row].append(score and round(score.vs_own_best, 4))
    return {"t": t, "workers": workers, "vs_best": vs_best, "vs_own_best": vs_own}


def happenings(log: EventLog) -> dict[str, Any]:
    """Return the newest events: joins, losses, reconnections, failures."""
    told = [{"t": event["t"] - log.began, "kind": event["kind"], "worker": event.get("worker"),
             "text": _words(event)} for _, event in log.others if event["kind"] not in _QUIET]
    return {"events": told[-LISTED:], "left_out": max(0, len(told) - LISTED),
            "duplicates": len(log.kind("duplicate"))}


def rejections(rejected_why: dict[str, dict[str, int]]) -> list[dict[str, Any]]:
    """Return each reason's pushes, in total and by worker, the most frequent reason first."""
    total: Counter[str] = Counter()
    for reasons in rejected_why.values():
        total.update(reasons)
    return [{"reason": reason, "pushes": count,
             "workers": {w: reasons[reason] for w, reasons in rejected_why.items()
                         if reasons.get(reason)}} for reason, count in total.most_common()]


def _rejected(log: EventLog) -> Counter[tuple[int, str]]:
    rows = log.rows
    rows = rows[rows["code"] == REJECT]
    keys, counts = np.unique(np.stack([rows["worker"], rows["reason"]]), axis=1,
                             return_counts=True)
    return Counter({(worker, log.reasons[reason] if reason >= 0 else ""): count
                    for worker, reason, count in zip(*keys.tolist(), counts.tolist(),
                                                     strict=True)})


def _rejected_over_time(log: EventLog, began: float, end: float,
                        centers: np.ndarray) -> dict[str, Any]:
    rows = log.rows
    rows = rows[rows["code"] == REJECT]
    place = _bins(rows["t"] - began, end, len(centers))
    return {"t": centers.tolist() if len(rows) else [],
            "pushes": {log.reasons[reason] if reason >= 0 else "":
                       np.bincount(place[rows["reason"] == reason], minlength=len(centers)).tolist()
                       for reason in np.unique(rows["reason"]).tolist()}}


def _by_time(log: EventLog, number: int) -> list[tuple[int, int]]:
    """Return the marks for `_then` at the ends of `number` equal spans of time."""
    edges = np.linspace(log.began, log.newest, number + 1)[1:]
    times = log.rows["t"], np.array([event["t"] for _, event in log.others], float)
    return list(zip(*(np.searchsorted(np.maximum.accumulate(t), edges, "right").tolist()
                      for t in times), strict=True))


def _by_measurement(log: EventLog, most: int) -> list[tuple[int, int]]:
    """Return the marks for `_then` at which the server measures speeds, at most `most` of them.

    They are the evaluations; from the first event with the workers' loss on, only these events. A
    resumed server starts again.
    """
    marks: list[tuple[int, int]] = []
    measures = {"evaluation", "training"}
    for index, (before, event) in enumerate(log.others):
        if event["kind"] == "resume":
            marks = []
            measures = {"evaluation", "training"}
        elif event["kind"] in measures:
            marks.append((before, index))
            if event["kind"] == "training":
                measures = {"training"}
    chosen: list[tuple[int, int]] = _sampled(marks, most)
    return chosen


def _then(log: EventLog, there: dict[int, Member],
          marks: list[tuple[int, int]]) -> Iterator[dict[int, Member]]:
    """Yield at each of the `marks`, (rows before it, others before it), ascending, the members that
    were active or had finished, with their samples and seconds received by then. They are the same
    objects each time."""
    workers, rows = np.array(sorted(there), int), log.rows
    place = np.searchsorted([before for before, _ in marks], np.arange(len(rows)), "right")
    counted = (rows["code"] <= RESENT) & (place < len(marks))
    rows, place = rows[counted], place[counted]
    cell = np.searchsorted(workers, rows["worker"]) * len(marks) + place
    samples, seconds = (np.bincount(cell, rows[name], len(workers) * len(marks))
                        .reshape(len(workers), len(marks)).cumsum(1).T.tolist()
                        for name in ("samples", "seconds"))
    then = {worker: Member() for worker in workers.tolist()}
    here: set[int] = set()
    seen = 0
    for index, (_, others) in enumerate(marks):
        for _, event in log.others[seen:others]:
            if event["kind"] == "resume":
                here.clear()
            elif event["kind"] == "leave" and not event["finished"]:
                here.discard(event["worker"])
            elif event["kind"] in ("join", "reattach"):
                here.add(event["worker"])
        seen = others
        for member, count, busy in zip(then.values(), samples[index], seconds[index], strict=True):
            member.samples, member.seconds = count, busy
        yield {worker: then[worker] for worker in here} if here else then


def _reports(spans: SpanLog) -> dict[int, Report]:
    """Return worker -> its seconds of each phase, its pushes and pulls, from its spans."""
    rows, kinds = spans.rows, len(PHASES)
    lanes = 2 * (1 + max(spans.workers, default=0))
    push, pull = PHASES.index("push"), PHASES.index("pull")
    cell = rows["lane"] * kinds + rows["kind"]
    count = np.bincount(cell, minlength=lanes * kinds).reshape(lanes, kinds)
    seconds = np.bincount(cell, rows["seconds"], lanes * kinds).reshape(lanes, kinds)
    found = {}
    for worker in spans.workers:
        compute, network = 2 * worker, 2 * worker + 1
        found[worker] = Report(
            seconds={phase: spent for phase, spent
                     in zip(PHASES, seconds[compute].tolist(), strict=True)
                     if spent or phase in ALWAYS},
            pushes=int(count[network, push]), push_seconds=float(seconds[network, push]),
            pulls=int(count[network, pull]), pull_seconds=float(seconds[network, pull]))
    return found


def _bins(t: np.ndarray, end: float, bins: int) -> np.ndarray:
    """Return the bin of each time, int [times], of `bins` equal ones from 0 to `end`."""
    place: np.ndarray = np.clip((t / end * bins).astype(int), 0, bins - 1)
    return place


def _sampled(sequence: Any, most: int = POINTS) -> Any:
    """Return at most `most` of a sequence's entries, evenly spaced, with the last one."""
    if len(sequence) <= most:
        return sequence
    chosen = np.linspace(len(sequence) - 1, 0, most).astype(int)[::-1]
    if isinstance(sequence, np.ndarray):
        return sequence[chosen]
    return list(itertools.compress(sequence, np.bincount(chosen, minlength=len(sequence)) > 0))


def _words(event: dict[str, Any]) -> str:
    """Describe an event to the user."""
    match event["kind"]:
        case "join":
            return f"joined at version {event['version']:,}"
        case "start":
            return f"training began with {len(event['workers'])} workers"
        case "leave":
            return event["reason"] if event["finished"] else f"lost: {event['reason']}"
        case "reattach":
            return f"reconnected with version {event['version']:,}" + (
                ", and had finished" if event["finished"] else "")
        case "resent":
            return (f"resent pushes {event['first']:,} to {event['last']:,} "
                    f"({event['steps']:,} steps)")
        case "lost":
            return f"pushes {event['first']:,} to {event['last']:,} are lost"
        case "resume":
            return f"the server resumed from version {event['version']:,}"
        case "took_over":
            return f"the standby took over from version {event['version']:,}"
        case "epoch":
            return f"epoch {event['epoch']:,} of {event['epochs']:,} is trained"
        case "measured":
            found = ", ".join(f"{name} {value:.4g}" for name, value in event["values"].items())
            return f"epoch {event['epoch'] + 1:,}: {found}"
        case "learning_rate":
            return f"epoch {event['epoch'] + 1:,}: learning rate {event['rate']:.4g}"
        case "sick":
            return f"worker {event['worker']} was removed: its pushes were not finite"
        case "silent":
            return f"worker {event['worker']} was silent: the others train its examples"
        case "give_up":
            return f"skipped examples {event['start']:,} to {event['stop'] - 1:,} of the run's work"
        case "site":
            return f"a site with {event['workers']:,} workers"
        case "alone":
            return "the server continues without a standby"
        case "stop" | "refused" | "superseded" | "shard_lost":
            return str(event["reason"])
        case "malformed":
            return f"{event['count']:,} malformed messages: {event['reason']}"
        case "error":
            return str(event["traceback"][-1]).strip()
    return ", ".join(f"{key} {value}" for key, value in event.items()
                     if key not in ("t", "kind", "worker"))[:200]


def epoch(log: EventLog) -> dict[str, int] | None:
    """Return how many epochs of the run's shared data are trained, and of how many; or None."""
    newest = next(iter(log.kind("epoch")[-1:]), None)
    return newest and {"trained": int(newest["epoch"]), "of": int(newest["epochs"])}
