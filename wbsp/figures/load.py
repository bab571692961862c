"""Statistics of runs, computed once, so that the figures and the table agree.

Runs that differ only by the seed (and by settings that only name a run) form one group: one curve
with a band, one bar with a point for each seed. A group's name consists of its synchronization
model and of the settings that distinguish the group from the others.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np

from wbsp.core.goal import Goal
from wbsp.core.stats import Phase, sum_phases
from wbsp.limits import Count, Worker, one_line, text_of
from wbsp.runlog.files import shown, undamaged
from wbsp.runlog.reader import Event, Run, read_run

MOST_WORKERS = 12  # shown of one run; more are not legible

# Events that make a version, and what a figure calls them; a site also adopts versions from above.
VERSIONS = {"commit": "version committed", "adopt": "version adopted from above"}

# Settings that name a run and have no effect on it; "sync_option" repeats "options" as text.
_NAMES = frozenset({
    "id", "series", "seed", "command", "folder", "sync_option", "secret", "epoch", "ended", "port",
    "standby", "beside", "elected", "upstream", "date", "host", "release", "python", "versions"})


class _OfWorker(Event):
    """The fields that are read of events; below, those of a summary."""

    worker: Worker


class _Pushed(_OfWorker):
    steps: Count


class _Steps(TypedDict):
    steps: Count


class _Accepted(_Pushed):
    version: Count
    base: Count


class _Committed(Event):
    version: Count


class _Tallied(Event):
    version: Count
    workers: dict[Worker, _Steps]


class _Evaluated(_Committed):
    steps: Count
    loss: float | None
    accuracy: float | None
    top5: float | None


class _Totals(TypedDict):
    seconds: dict[Phase, float]


class _Summary(TypedDict):
    workers: dict[Worker, _Totals]


_EVENTS = {"join": _OfWorker, "accept": _Accepted, "reject": _Pushed, "resent": _Pushed,
           "commit": _Committed, "adopt": _Committed, "evaluation": _Evaluated,
           "tally": _Tallied}


@dataclass
class RunStatistics:
    """Statistics of one run. Times in seconds since the run's start; shares 0..1."""

    run: Run
    group: str = ""  # name shared by the runs that differ only by the seed
    name: str = ""  # unique name

    @cached_property
    def sync(self) -> str:
        return str(self.run.settings.get("sync", "unknown"))

    @property
    def seed(self) -> int | None:
        return self.run.settings.get("seed")

    @cached_property
    def versions(self) -> np.ndarray:
        """Times at which versions were made, those that a site adopted from above included; float
        [versions]."""
        return np.array([e["t"] for e in self.run.events if e["kind"] in VERSIONS], float)

    @property
    def version_number(self) -> int:
        """Number of versions that were made."""
        return max(len(self.versions), self._tally["version"] if self._tally else 0)

    @cached_property
    def _tally(self) -> dict[str, Any] | None:
        """The newest sums, where a long run's pushes and versions are no longer written."""
        return next((e for e in reversed(self.run.events) if e["kind"] == "tally"), None)

    @cached_property
    def staleness(self) -> np.ndarray:
        """Versions between each accepted push's base and its acceptance, int [pushes]."""
        accepted = (e for e in self.run.events if e["kind"] == "accept")
        return np.array([e["version"] - e["base"] for e in accepted], int)

    @cached_property
    def steps(self) -> dict[int, int]:
        """Worker -> steps whose updates reached the server, rejected ones included."""
        if "within" in self.run.settings:  # the events are those of sites
            known = (self.run.summary or {"workers": {}})["workers"]
            return {worker: known.get(str(worker), {}).get("steps", 0) for worker in self.workers}
        steps: Counter[int] = Counter()
        for event in self.run.events:
            if event["kind"] in ("accept", "reject", "resent"):
                steps[event["worker"]] += event["steps"]
        if self._tally is not None:
            steps |= {int(worker): sums["steps"]
                      for worker, sums in self._tally["workers"].items()}
        return {worker: steps[worker] for worker in self.workers}

    @cached_property
    def workers(self) -> list[int]:
        """Indices of all workers that took part, ascending."""
        joined = {e["worker"] for e in self.run.events if e["kind"] == "join"}
        return sorted(joined | set(self.run.spans))

    @cached_property
    def seconds(self) -> dict[int, dict[str, float]]:
        """Worker -> seconds of its compute thread in each of PHASES, from the run's summary.

        Without a summary, as after a kill, the spans of the compute lane are summed. The network
        lane runs in parallel and takes no time from the compute thread.
        """
        summary = self.run.summary or {"workers": {}}
        booked = {int(worker): one["seconds"] for worker, one in summary["workers"].items()}
        for worker, spans in self.run.spans.items():
            if not any(booked.get(worker, {}).values()):
                booked[worker] = sum_phases(
                    {span["kind"]: span["seconds"]} for span in spans if span["lane"] == "compute")
        return {worker: booked[worker] for worker in sorted(booked) if any(booked[worker].values())}

    @cached_property
    def shares(self) -> dict[int, dict[str, float]]:
        """Worker -> share of each of PHASES in its recorded time; only workers with some."""
        return {worker: {phase: s / sum(seconds.values()) for phase, s in seconds.items()}
                for worker, seconds in self.seconds.items()}

    @cached_property
    def total_shares(self) -> dict[str, float]:
        """Share of each phase in the recorded time of all workers; NaN without any."""
        seconds = sum_phases(self.seconds.values())
        total = sum(seconds.values())
        return {phase: s / total if total else np.nan for phase, s in seconds.items()}

    @property
    def last_accuracy(self) -> float:
        """Accuracy of the newest evaluated version, 0..1; NaN without evaluations."""
        accuracy = self.run.evaluations.accuracy
        return float(accuracy[-1]) if len(accuracy) else np.nan

    @cached_property
    def duration(self) -> float:
        """Time of the run's last event."""
        return max((e["t"] for e in self.run.events), default=0.0)

    def pick_workers(self, most: int) -> list[int]:
        """Return at most `most` workers, ascending: those with the fewest and with the most steps,
        and others evenly between."""
        if len(self.workers) <= most:
            return self.workers
        ranked = sorted(self.workers, key=lambda worker: (self.steps[worker], worker))
        return sorted(ranked[i] for i in np.linspace(0, len(ranked) - 1, most).round().astype(int))


def find_runs(folders: Iterable[Path | str], left_out: Callable[[str], None] | None = None
              ) -> list[Run]:
    """Return the runs in `folders` and below, each once, in the order of their paths.

    Raises FileNotFoundError for a folder that does not exist or holds no run, and ValueError and
    OSError, in one line, for a run that cannot be read.

    Args:
        left_out: takes a line on each run whose settings cannot be read, while there are others;
            None: such a run is an error.
    """
    bad: list[OSError | ValueError] = []
    found: dict[Path, Run] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise FileNotFoundError(f"folder {folder} does not exist; give a run's folder or one "
                                    "that holds runs")
        runs = sorted(path.parent for path in folder.rglob("run.json"))
        if not runs:
            raise FileNotFoundError(f"{folder} holds no run: no run.json in it or below it; give "
                                    "a folder that a run was written to")
        for path in runs:
            if path.resolve() in found:
                continue
            try:
                found[path.resolve()] = read_run(path)
            except (OSError, ValueError) as error:
                bad.append(error)
    _leave_out(bad, left_out, bool(found))
    return list(found.values())


def readable(runs: Iterable[Run], left_out: Callable[[str], None]) -> list[Run]:
    """Return the runs whose files can be read; `left_out` as for `find_runs`. Raises as `gather`.
    """
    found: list[Run] = []
    bad: list[OSError | ValueError] = []
    for run in runs:
        try:
            _check(run)
        except (OSError, ValueError) as error:
            bad.append(error)
        else:
            found.append(run)
    _leave_out(bad, left_out, bool(found))
    return found


def _leave_out(bad: Sequence[OSError | ValueError], left_out: Callable[[str], None] | None,
               others: bool) -> None:
    """Report runs that cannot be read; raise the first error if there are no others."""
    if bad and (left_out is None or not others):
        raise bad[0]
    for error in bad:
        if left_out is not None:
            left_out(f"left out: {one_line(str(error), 2000)}")


def gather(runs: Sequence[Run]) -> list[RunStatistics]:
    """Return the statistics of each run, with group and name. Raises ValueError, in one line, for
    files that wbsp did not write."""
    for run in runs:
        _check(run)
    return named(runs)


def named(runs: Sequence[Run]) -> list[RunStatistics]:
    """See `gather`; reads only the settings for now."""
    statistics = [RunStatistics(run) for run in runs]
    settings, groups = [_flatten(one.run.settings) for one in statistics], []
    for stats, own in zip(statistics, settings, strict=True):
        named = []
        for key, value in own.items():
            option = key.startswith("options.")
            rivals = [other for one, other in zip(statistics, settings, strict=True)
                      if not option or one.sync == stats.sync]
            if key != "sync" and any(other.get(key) != value for other in rivals):
                named.append(f"{key.rpartition('.')[2]}={value}")
        groups.append(" ".join([stats.sync, *named]))
    sizes, seen, found = Counter(groups), Counter[str](), []
    for stats, group in zip(statistics, groups, strict=True):
        seen[group] += 1
        seed = "" if stats.seed is None else f" (seed {stats.seed})"
        found.append(replace(stats, group=group, name=group if sizes[group] == 1
                             else f"{group} #{seen[group]}{seed}"))
    return found


def _check(run: Run) -> None:
    for event in run.events:
        if (shape := _EVENTS.get(event["kind"])) is not None:
            _shaped(event, shape, run.folder / "events.jsonl")
    if run.summary is not None:
        _shaped(run.summary, _Summary, run.folder / "summary.json")


def _shaped(content: Any, shape: Any, path: Path) -> None:
    with undamaged(shown(path)):
        msgspec.convert(content, shape, str_keys=True, dec_hook=text_of)


def by_group(statistics: Sequence[RunStatistics]) -> dict[str, list[RunStatistics]]:
    """Return group -> its runs, in order of first appearance."""
    groups = defaultdict(list)
    for stats in statistics:
        groups[stats.group].append(stats)
    return dict(groups)


@dataclass
class Reached:
    """The time to the target of a group of runs that differ by the seed."""

    group: str
    sync: str
    times: list[float]  # seconds, of the runs that reached it
    runs: int
    waited: float  # duration of the longest of its runs, in seconds
    best: float | None  # value of the target's metric of all its evaluations; None without any
    rival: str | None = None  # the fastest group of another model
    ratio: float | None = None  # own mean / the rival's mean

    @property
    def complete(self) -> bool:
        """Whether every run reached the target; only then are means compared."""
        return len(self.times) == self.runs

    @property
    def mean(self) -> float:
        """Mean time in seconds; NaN if no run reached the target."""
        return float(np.mean(self.times)) if self.times else np.nan


def times_to(statistics: Sequence[RunStatistics], target: Goal) -> list[Reached]:
    """Return the groups from the fastest to the slowest, then those that did not always reach
    `target`.

    The rival is the fastest group of another model. WBSP and its optimized form (pcc) count as one
    model, unless no other model reached the target.
    """
    groups = []
    for group, members in by_group(statistics).items():
        times = [t for one in members if (t := one.run.time_to(target)) is not None]
        best = target.best(float(value) for one in members for value in one.run.metric(target))
        groups.append(Reached(group, members[0].sync, times, len(members),
                              max(one.duration for one in members), best))
    sign = -1 if target.most else 1
    groups.sort(key=lambda r: (not r.complete, not r.times,
                               r.mean if r.times else sign * (r.best or 0)))
    complete = [reached for reached in groups if reached.complete]
    for own in complete:
        others = [r for r in complete if _family(r.sync) != _family(own.sync)]
        if rivals := others or [r for r in complete if r is not own]:  # the fastest comes first
            own.rival, own.ratio = rivals[0].group, own.mean / rivals[0].mean
    return groups


def _family(sync: str) -> str:
    return "wbsp" if sync == "pcc" else sync


def _flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten settings, except those that only name the run: dotted keys, values as text."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif prefix or key not in _NAMES:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat
