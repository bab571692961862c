"""Results of a comparison of models: a table, or a ranking that gives the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from wbsp.core.goal import Goal
from wbsp.core.stats import PHASES, Phase
from wbsp.figures.table import markdown
from wbsp.runlog.reader import Run

BITS = Goal("bits_per_byte", False)  # of text
NOTHING = 0.01  # a smaller difference does not justify another shard


@dataclass(frozen=True)
class Result:
    """The finished runs of one model with its options, which differ by the seed. Means are over the
    seeds.
    """

    label: str
    runs: tuple[Run, ...]
    target: Goal | None = None

    @cached_property
    def times(self) -> list[float]:
        """Seconds to the target, of the runs that reached it.

        Without one: to the end, of the runs that have trained all epochs of shared data.
        """
        if self.target is None:
            return [_summary(run)["t"] for run in self.runs if _all_epochs(run)]
        times = (run.time_to(self.target) for run in self.runs)
        return [t for t in times if t is not None]

    @property
    def goal(self) -> str:
        """What `times` are seconds to; empty if the runs have no goal."""
        if self.target is not None:
            return f"to {self.target.text}"
        data = self.runs[0].settings.get("shared_data")
        return f"for {_epochs(data['epochs'])}" if data else ""

    @property
    def reached(self) -> bool:
        """True when every run reached the target."""
        return len(self.times) == len(self.runs)

    @property
    def metric(self) -> Goal:
        """The metric of the target, else the usual one."""
        return self.target or Goal.usual(self.runs[0].settings)

    @property
    def best(self) -> float:
        """Value of the metric in the best evaluated version; NaN without evaluations."""
        return self.best_of(self.metric)

    def best_of(self, metric: Goal) -> float:
        """Return the value of a metric in the best evaluated version; NaN without evaluations."""
        bests = [metric.best(run.metric(metric)) for run in self.runs]
        return fmean(math.nan if best is None else best for best in bests)

    @property
    def end(self) -> float:
        """Seconds that a run took."""
        return self.total("t")

    @property
    def seconds(self) -> float:
        """Seconds to the target, or to the end where a run did not reach it."""
        return fmean(self.times) if self.reached else self.end

    @cached_property
    def batches(self) -> float:
        """Mini-batches of all workers, up to the target or else the end; a part of one counts by
        its examples."""
        return self.mean(self._batches)

    @property
    def rate(self) -> float:
        """Mini-batches/s of all workers, up to the target or else the end."""
        return self.batches / self.seconds if self.seconds else 0.0

    def total(self, key: str) -> float:
        """`key` of the summaries, or of the totals in these."""
        return self.mean(lambda run: {**_summary(run)["total"], **_summary(run)}[key])

    def share(self, phase: Phase) -> float:
        """Return the part of the workers' time spent in `phase`, 0..1."""
        return self.mean(lambda run: _summary(run)["total"]["shares"].get(phase, 0.0))

    def staleness(self, key: str) -> float:
        """Return the staleness of the accepted pushes, in versions; `key` is "mean" or "max"."""
        return self.mean(lambda run: _summary(run)["staleness"][key])

    @property
    def traffic(self) -> float:
        """Bytes of all updates and versions on the wire."""
        return self.mean(_traffic)

    @property
    def lines(self) -> float | None:
        """Bytes on the lines of sites to the outside; None: the cluster has no sites."""
        return self.mean(lambda run: _traffic_of(run)["lines"]) if self._sites else None

    @property
    def _sites(self) -> bool:
        return "sites" in self.runs[0].settings

    def mean(self, of: Callable[[Run], float]) -> float:
        """Return the mean of `of`(run) over the runs."""
        return fmean(map(of, self.runs))

    def faster(self, other: Result) -> bool:
        """Return whether the slowest run was faster than the fastest of `other`.

        Both have reached the target.
        """
        return max(self.times) < min(other.times)

    def _reached(self, value: float) -> bool:
        return self.target is not None and self.target.reached({self.target.metric: value})

    def _batches(self, run: Run) -> float:
        samples, seen = 0, iter(run.metric(self.metric))
        for event in run.events:
            if event["kind"] in ("accept", "reject"):
                samples += event["samples"]
            elif event["kind"] == "evaluation" and self._reached(next(seen)):
                break
        return float(samples / run.settings["batch_size"])


def table(compared: Sequence[Result]) -> str:
    """Return a Markdown table with one row a model."""
    goal, metric = compared[0].target is not None, compared[0].metric
    trained = not math.isnan(compared[0].best)
    bits = metric.metric != BITS.metric and not math.isnan(compared[0].best_of(BITS))
    head = ["model", *([f"seconds {compared[0].goal}"] if goal else []), "seconds",
            *([f"best {metric.metric}"] if trained else []), *(["bits a byte"] if bits else []),
            "versions", "mini-batches",
            "compute %", "wait %", "staleness", "traffic", *_lines_head(compared)]
    rows = [[one.label, *([_spread(one)] if goal else []), f"{one.end:,.1f}",
             *([f"{one.best:.4f}"] if trained else []),
             *([f"{one.best_of(BITS):.4f}"] if bits else []), f"{one.total('version'):,.0f}",
             f"{one.mean(_all_batches):,.0f}", f"{100 * one.share('compute'):.1f}",
             f"{100 * one.share('wait'):.1f}", f"{one.staleness('mean'):.2f}",
             in_bytes(one.traffic), *_lines_of(one, compared)] for one in compared]
    return markdown(head, rows)


def ranking(compared: Sequence[Result]) -> str:
    """Return a Markdown table of the models, and a line for each that explains its time.

    The models that reached the target come first, from fastest to slowest. Without a target, the
    order is that of mini-batches/s.

    A model's place is one more than the number of models that were faster beyond the seeds, so that
    the ranges of models of one place overlap.
    """
    trained, goal = not math.isnan(compared[0].best), compared[0].goal
    sign = -1 if compared[0].metric.most else 1
    ranked = sorted(compared, key=lambda one: (
        not one.reached, one.seconds if one.reached else sign * one.best if trained
        else -one.rate))
    reached = [one for one in ranked if one.reached]
    fewest = min((one.batches for one in reached), default=math.nan)
    places = {one.label: 1 + sum(other.faster(one) for other in reached) for one in reached}
    rows = [[str(places.get(one.label, "-")), one.label,
             _spread(one) if goal else f"{one.rate:,.1f}", in_bytes(one.traffic),
             *_lines_of(one, compared), f"{100 * one.share('compute'):.1f}"] for one in ranked]
    head = ["", "model", f"seconds {goal}" if goal else "mini-batches/s", "traffic",
            *_lines_head(compared), "compute %"]
    lines = [markdown(head, rows), ""]
    seeds = len(ranked[0].runs)
    if not trained:
        lines += ["No network was trained, so the progress per mini-batch is not known"
                  + (": places are by time alone." if goal else ", and models have no places."), ""]
    elif seeds == 1:
        lines += ["One seed: small differences may be chance; --seeds=3 shows how far the seeds "
                  "differ.", ""]
    elif len(set(places.values())) < len(places):
        lines += ["Models of one place: no difference beyond the seeds.", ""]
    for index, one in enumerate(ranked):
        equals = [other.label for other in ranked[:index]
                  if seeds > 1 and one.reached and not other.faster(one)]
        lines.append(f"- {one.label}: {why(one, fewest)}" + (
            f"; no difference beyond the seeds from {', '.join(equals)}" if equals else ""))
    return "\n".join(lines)


def without_verdict(compared: Sequence[Result]) -> str:
    """Return a line in place of the verdict, where no network was trained and no data end."""
    most = max(compared, key=lambda one: one.rate)
    return (f"no verdict: --model=timing trains no network, so what a mini-batch adds is not "
            f"known; {most.label} makes most of them, {most.rate:,.1f} a second")


def shards(compared: Mapping[str, Mapping[int, Result]]) -> str:
    """Return a line for each model on its best number of shards: the fewest that no other beats.

    The criterion is the time to the target, or mini-batches/s if no model reached it.

    Args:
        compared: model -> number of shards -> result.
    """
    lines, fewest = [], {}
    for label, results in compared.items():
        count = fewest[label] = min(
            count for count, one in results.items()
            if not any(_beats(other, one) for other in results.values()))
        others = ", ".join(f"{other}: {_measure(one)}" for other, one in results.items()
                           if other != count)
        enough = "; more gain nothing" if count < max(results) else ""
        lines.append(f"- {label}: best with {_shards(count)}, {_measure(results[count])} "
                     f"({others}){enough}")
    reached = {label: compared[label][count] for label, count in fewest.items()
               if compared[label][count].reached}
    if reached:
        best = min(reached, key=lambda label: reached[label].seconds)
        lines += ["", f"Best: {best} with {_shards(fewest[best])}, {_measure(reached[best])}."]
    return "\n".join(lines)


def sites(compared: Sequence[Result]) -> str:
    """Return a line on the best model of one star, and the best with servers at sites; empty if one
    of the two kinds is missing."""
    kinds: dict[bool, list[Result]] = {True: [], False: []}
    for one in compared:
        kinds["within" in one.runs[0].settings].append(one)
    if not kinds[True] or not kinds[False]:
        return ""

    def order(one: Result) -> tuple[bool, float]:
        return not one.reached, one.seconds if one.reached else -one.rate
    apart, star = (min(kinds[kind], key=order) for kind in (True, False))
    said = (f"Servers at the sites: best {apart.label} (within / between), {_measure(apart)}, "
            f"{in_bytes(apart.lines or 0.0)} on the lines. One star: best {star.label}, "
            f"{_measure(star)}, {in_bytes(star.lines or 0.0)}.")
    if apart.reached != star.reached:
        return said
    better = _beats(apart, star)
    if not better and not _beats(star, apart):
        return f"{said} These runs show no difference."
    ratio = star.seconds / apart.seconds if apart.reached else apart.rate / max(star.rate, 1e-9)
    return (f"{said} The sites are {ratio:.1f} times as fast." if better else
            f"{said} The star is {1 / max(ratio, 1e-9):.1f} times as fast.")


def why(one: Result, fewest: float) -> str:
    """Explain a model's time: its workers' speed, and its mini-batches to the target.

    Args:
        one: the model's result.
        fewest: mini-batches to the target of the model that needed fewest.
    """
    idle = max((phase for phase in PHASES if phase != "compute"), key=one.share)
    lost = {"push": "push", "pull": "fetch", "wait": "wait for others", "data": "read data"}[idle]
    pace = (f"{one.rate:,.1f} mini-batches/s; workers compute {one.share('compute'):.0%} of their "
            "time")
    if one.share(idle) > 0.005:
        pace += f" and {lost} {one.share(idle):.0%}"
    if one.reached:
        ratio = one.batches / fewest if fewest else 1
        need = f"needed {one.batches:,.0f} mini-batches, " + (
            "the fewest of all" if ratio == 1 else f"{ratio:.2f} times the fewest")
    elif math.isnan(one.best):
        need = f"{one.batches:,.0f} mini-batches"
    else:
        need = f"best {one.metric.metric} {one.best:.4f} in {one.batches:,.0f} mini-batches"
    merged = one.total("pushes") / one.total("version") if one.total("version") else 0.0
    return (f"{pace}; {need}, with {merged:.1f} pushes a version and updates "
            f"{one.staleness('mean'):.1f} versions old (at most {one.staleness('max'):.0f})")


def in_bytes(size: float) -> str:
    """Format a number of bytes in a suitable unit."""
    unit = max(0, min(4, int(math.log10(size) // 3))) if size >= 1 else 0
    return f"{size / 1000**unit:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"


def _lines_head(compared: Sequence[Result]) -> list[str]:
    """Return the head of the column of sites' lines; none where no cluster has sites."""
    return ["on the lines"] if any(one.lines is not None for one in compared) else []


def _lines_of(one: Result, compared: Sequence[Result]) -> list[str]:
    return [in_bytes(one.lines or 0.0)] * len(_lines_head(compared))


def _summary(run: Run) -> dict[str, Any]:
    if run.summary is None:
        raise ValueError(f"{run.folder} holds no summary.json: the run has not ended")
    return run.summary


def _traffic(run: Run) -> float:
    if "wire" in run.settings or "sites" in run.settings:
        # Versions differ in size, or travel twice.
        found = _traffic_of(run)
        return float(found["pushed"] + found["fetched"])
    total = _summary(run)["total"]
    return float(run.settings["model_bytes"] * (total["pushes"] + total["pulls"]))


def _traffic_of(run: Run) -> dict[str, Any]:
    return next(event for event in reversed(run.events) if event["kind"] == "traffic")


def _all_epochs(run: Run) -> bool:
    data = run.settings.get("shared_data")
    return data is not None and any(
        event["kind"] == "epoch" and event["epoch"] == data["epochs"] for event in run.events)


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' if count > 1 else ''}"


def _all_batches(run: Run) -> float:
    return float(_summary(run)["total"]["samples"] / run.settings["batch_size"])


def _beats(one: Result, other: Result) -> bool:
    """Return whether `one` is better than `other` beyond the seeds, and by more than `NOTHING`."""
    if one.reached and other.reached:
        return one.faster(other) and one.seconds < (1 - NOTHING) * other.seconds
    if one.reached or other.reached:
        return one.reached
    return one.rate * (1 - NOTHING) > other.rate


def _measure(one: Result) -> str:
    if one.reached:
        return f"{one.seconds:.1f} s {one.goal}"
    return f"{one.rate:,.1f} mini-batches/s"


def _shards(count: int) -> str:
    return f"{count} shard{'s' if count > 1 else ''}"


def _spread(one: Result) -> str:
    if not one.times:
        return "not reached"
    text = f"{fmean(one.times):.1f}"
    if len(one.times) > 1:
        text += f" ({min(one.times):.1f} to {max(one.times):.1f})"
    return text if one.reached else f"{text}, {len(one.times)} of {len(one.runs)} runs"
