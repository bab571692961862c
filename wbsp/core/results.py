"""The results of a run's versions, from any evaluator, and their consequences for the run.

A process that evaluates, a worker that validates an epoch and the launcher's evaluator report
metrics of a version. Only the first report of a version counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from wbsp.core.goal import Goal
from wbsp.limits import Count, Finite, Sum


@dataclass(frozen=True)
class Best:
    """The best evaluated version so far, by a metric.

    Attributes:
        worse: evaluations since then, none of them better.
    """

    metric: str
    value: Finite
    version: Count
    worse: Sum = 0


class Result(NamedTuple):
    """The metrics of a version, which is of `t` seconds of the run."""

    version: int
    metrics: Mapping[str, float]
    t: float = 0.0


@dataclass(frozen=True)
class Goals:
    """What results decide.

    Attributes:
        target: ends the run; None: nothing does.
        best: ranks the versions; None: nothing does.
        patience: evaluations in a row without a better version that end the run; None: none do.
        accuracy: the accuracy, 0..1, that ends the run.
    """

    target: Goal | None = None
    best: Goal | None = None
    patience: int | None = None
    accuracy: float = math.inf

    @property
    def named(self) -> dict[str, Goal]:
        """The metrics by flag, those of `target` and `best` only once."""
        named = {} if self.target is None else {"target": self.target}
        if self.best is not None and self.best is not self.target:
            named["best"] = self.best
        return named


class Results:
    """The results of one run.

    Attributes:
        newest: of the newest evaluated version; None: none was evaluated.
        best: of the best version by the goals; None: none was evaluated by that metric.
    """

    def __init__(self, goals: Goals):
        self.goals = goals
        self.newest: Result | None = None
        self._last: Result | None = None  # to be reported
        self.best: Best | None = None
        self._versions: set[int] = set()  # evaluated ones
        self._named = not goals.named  # the metrics of the goals were compared with a report

    def resume(self, kept: Best | None, saved: Best | None) -> bool:
        """Continue a run; return whether the best version so far is not among its files.

        Args:
            kept: of the best version among its files, or None.
            saved: as in the state that the run resumes from.
        """
        kept, saved = (self._ranked(one) for one in (kept, saved))
        same = kept is not None and saved is not None and kept.version == saved.version
        self.best = saved if same else kept or saved
        return kept is None and saved is not None

    def has(self, version: int) -> bool:
        """Return whether this version was evaluated."""
        return version in self._versions

    def take(self, t: float, version: int, metrics: Mapping[str, float]) -> bool:
        """Note the metrics of a version of `t` seconds; return whether it is the best so far."""
        self._versions.add(version)
        self._last = Result(version, metrics, t)
        if self.newest is None or version >= self.newest.version:
            self.newest = self._last
        goal = self.goals.best
        value = None if goal is None else goal.value(metrics)
        if goal is None or value is None:
            return False
        if self.best is None or goal.better(value, self.best.value):
            self.best = Best(goal.metric, value, version)
            return True
        self.best = replace(self.best, worse=self.best.worse + 1)
        return False

    def of(self, version: int, metric: str) -> float | None:
        """Return a metric of this version, if it was evaluated last, else None."""
        newest = self.newest
        return newest.metrics.get(metric) if newest and newest.version == version else None

    def lacking(self, metrics: Mapping[str, float]) -> dict[str, Goal]:
        """Return, once, which goals' metrics the first evaluation lacks, by flag."""
        if self._named or not metrics:
            return {}
        self._named = True
        return {flag: goal for flag, goal in self.goals.named.items()
                if goal.value(metrics) is None}

    @property
    def reason(self) -> str | None:
        """Why the last result ends the run, or that from before it was resumed; None: it does not.
        """
        target, most, best, last = self.goals.target, self.goals.patience, self.best, self._last
        if last is None and best is not None:
            last = Result(best.version, {best.metric: best.value})
        if last is None:
            return None
        if target is not None and target.reached(last.metrics):
            return (f"target {target.metric} {target.target:g} reached (version "
                    f"{last.version:,}: {target.value(last.metrics):.4g})")
        if last.metrics.get("accuracy", -math.inf) >= self.goals.accuracy:
            return (f"target accuracy {self.goals.accuracy:g} reached at {last.t:.1f} s (version "
                    f"{last.version}: {last.metrics['accuracy']:.4f})")
        if most is not None and best is not None and best.worse >= most:
            return (f"{best.worse} evaluations in a row were no better than version "
                    f"{best.version:,} ({best.metric} {best.value:.4g})")
        return None

    def _ranked(self, one: Best | None) -> Best | None:
        """Return this version by the name of the goal's metric; None: it is of another metric."""
        goal = self.goals.best
        if one is None or goal is None or not goal.ranks_by(one.metric):
            return None
        return replace(one, metric=goal.metric)
