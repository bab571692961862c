"""ADSP: commits at equal counts, searched for online (Hu, Wang, Wu, AAAI 2020)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from wbsp.sync.base import (
    About,
    Accept,
    Action,
    Commit,
    Direct,
    Grant,
    Option,
    Push,
    SyncModel,
    WorkerRule,
)

RISE = 1.3  # the loss that begins a new search, relative to a period before
HUGE = 1e100  # a loss from here on is that of a diverged training; sums of smaller are finite
GOAL = 0.5  # the loss whose time a reward predicts, relative to the search's first


def interval(period: float, commits: int, overhead: float) -> float:
    """Return the seconds from a commit to the next Direct: at least a hundredth of the period."""
    return max(period / commits - overhead, period / 100)


def reward(times: list[float], losses: list[float], goal: float) -> float:
    """Return 1 / (seconds until the loss reaches `goal`), by the fitted curve 1 / (a^2 t + b) + c.

    With t* the time at which the fitted curve meets `goal` this is the published
    a^2 / (1 / (goal - c) - b) = 1 / t* [paper]. The fit keeps c at 0 or below: a curve that ends
    above the goal never reaches it, and the published code then prefers the slower descent [ours].
    Losses that do not fall or are below the goal already, and curves that cannot be fitted, score
    -inf.

    Args:
        times: seconds, ascending; three or more.
        losses: one for each time.
        goal: a loss above 0.
    """
    lowest = -math.inf
    if not (1e-6 * losses[0] < losses[-1] < losses[0] and goal < losses[0]
            and times[0] < times[-1]):
        return lowest
    from scipy.optimize import least_squares  # an import of half a second, for ADSP alone

    span, height = times[-1] - times[0], losses[0]
    x = [(time - times[0]) / span for time in times]
    y = [loss / height for loss in losses]

    def misfit(curve: Sequence[float]) -> list[float]:
        slope, b, c = curve
        return [1 / (slope * t + b) + c - loss for t, loss in zip(x, y, strict=True)]

    fit = least_squares(misfit, (1 / y[-1] - 1, 1.0, 0.0),
                        bounds=((0, 1e-3, -1), (math.inf, math.inf, 0)))
    slope, b, c = map(float, fit.x)
    if not fit.success or slope <= 0:
        return lowest
    reached = times[0] + span * (1 / (goal / height - c) - b) / slope
    return 1 / reached if 0 < reached < math.inf else lowest


class Search:
    """Search for the commits of a period: C, then C + 1, ... while the reward improves.

        a period with C; a period with C + 1; better? C += 1 and continue; else stay with C
        the loss has risen by 30 % from one period's end to the next? search again, from C

    C never falls, and the model is not rolled back after a worse trial [code].
    """

    def __init__(self) -> None:
        self.rate = 1  # C
        self.running = True
        self._best: float | None = None  # reward of C; None: to be measured
        self._points: list[tuple[float, float | None]] = []  # of this period: (time, loss)
        self._origin: tuple[float, float] | None = None  # the search's first point

    @property
    def commits(self) -> int:
        """Commits of a worker in the present period."""
        return self.rate + (self.running and self._best is not None)

    def observe(self, now: float, loss: float | None) -> None:
        """Note the loss in the middle of a period, where known."""
        self._points.append((now, loss))

    def end(self, now: float, loss: float | None) -> None:
        """End a period and begin the next, at this loss."""
        points, self._points = [*self._points, (now, loss)], [(now, loss)]
        known = [(time, loss) for time, loss in points if loss is not None]
        if len(known) < len(points):
            return
        if not self.running:
            if known[-1][1] > RISE * known[0][1]:
                self.running, self._best, self._origin = True, None, None
        elif len(known) > 2:
            self._judge(known)

    def _judge(self, points: list[tuple[float, float]]) -> None:
        if self._origin is None:
            self._origin = points[0]
        begin, first = self._origin
        value = reward([time - begin for time, _ in points], [loss for _, loss in points],
                       GOAL * first)
        if self._best is None:
            self._best = value
        elif value > self._best:
            self.rate, self._best = self.rate + 1, value
        else:
            self.running = False


@dataclass
class Pace:
    """One worker's commits: how many this period needs, and when the next is due."""

    count: int  # commits so far; a worker that joins starts with those due by then
    share: int  # commits in this period
    last: float  # time of its last commit, or of its join
    overhead: float = 0.0  # O: from its last Direct to the arrival of its push
    due: float = math.inf  # when to direct it next
    directed: float | None = None  # time of a Direct that its push has not followed yet

    def commits(self, now: float) -> None:
        """Count its push, which commits."""
        if self.directed is not None:
            self.overhead, self.directed = now - self.directed, None
        self.count += 1
        self.last = now

    def begins(self, target: int) -> None:
        """Begin a period at whose end its count is `target`."""
        self.share = max(1, target - self.count - (self.directed is not None))

    def plan(self, period: float) -> float:
        """Return when to direct it next."""
        self.due = self.last + interval(period, self.share, self.overhead)
        return self.due

    def is_directed(self, now: float) -> None:
        """Note a Direct."""
        self.directed = now


class ADSP(SyncModel):
    """No worker waits; the server directs pushes so that all commit equally often.

        worker: steps without end; directed to cut? at the step's end: push; fetch the newest
                version
        server: accept(p, 1/N), commit, grant the pusher at once
                direct i to cut, period / dC_i - O_i after its last commit
                at a period's end:  target += C,  dC_i = max(1, target - c_i)
                C by `Search`, from the losses at begin, middle and end of a period

    c_i are the commits of worker i, one in flight included; O_i is the time from its last Direct to
    the arrival of its push. So a slow worker pushes few steps at a time and a fast one many, and
    after every period the workers' commit counts differ by one at most. A worker that joins starts
    with the commits due by then, and catches up none.

    Differs from ASP in that the server decides on a push, and from local SGD in that the steps
    between two pushes differ and no worker waits.

    Source: Hu, Wang, Wu, "Distributed machine learning through heterogeneous edge systems", AAAI
    2020, arXiv 1911.06949 [paper], and its code [code]. Ours: the server directs, where there the
    worker times itself, so that O_i takes in the rest of a step besides the transfer; a Direct
    comes a hundredth of the period after a commit or later (there: 10 s); the loss is the mean of
    the workers' newest training losses (there: of the global model on test data; here it is first
    known after a period, and without losses C stays 1); see `reward` for its guards.
    """

    name = "adsp"
    about = About(
        bound="equal commit counts at each period's end, within one",
        waits="no worker, except for its own push and fetch",
        traffic="a push and a fetch a commit; C commits a worker and period",
        source="Hu, Wang, Wu, AAAI 2020",
        certainty="search and intervals exact; server directs in place of worker's timer, "
                  "training losses and the fit's bounds: ours")
    rule = WorkerRule(push="directed", wait="model", adopt="replace")
    OPTIONS = {"period": Option(60.0, "seconds in which all workers commit equally often",
                                low=0.001)}

    period: float

    def __init__(self, **options: object):
        super().__init__(**options)
        if importlib.util.find_spec("scipy") is None:
            raise ValueError("adsp fits losses with SciPy, which is not installed: "
                             "pip install scipy")
        self.search = Search()
        self.pace: dict[int, Pace] = {}
        self.target = 0  # commits of each worker by the end of this period
        self._half = self._end = 0.0  # seconds, of this period; the half is infinite once past
        self._loss: dict[int, float] = {}  # worker -> its newest training loss
        self._due: list[tuple[float, int]] = []  # heap of (due, worker); outdated ones are skipped

    def join(self, worker: int, now: float) -> list[Action]:
        actions = super().join(worker, now)
        if len(self.active) == 1:
            self._begin_period(now)
        commits, left = self.search.commits, (self._end - now) / self.period
        self.pace[worker] = Pace(self.target - round(commits * left), commits, now)
        self._plan(worker)
        self._set_alarm()
        return actions

    def leave(self, worker: int, now: float) -> list[Action]:
        del self.pace[worker]
        self._loss.pop(worker, None)
        actions = super().leave(worker, now)
        self._set_alarm()
        return actions

    def push(self, push: Push, now: float) -> list[Action]:
        self.pace[push.worker].commits(now)
        if push.loss is not None and abs(push.loss) < HUGE:
            self._loss[push.worker] = push.loss
        self._plan(push.worker)
        self._set_alarm()
        return [Accept(push, self.weight_of(push)), Commit(), Grant(push.worker)]

    def tick(self, now: float) -> list[Action]:
        actions = self._direct(now)
        if now >= self._half:
            self.search.observe(now, self._mean_loss())
            self._half = math.inf
        if now >= self._end:
            self.search.end(now, self._mean_loss())
            self._begin_period(now)
            actions += self._direct(now)
        self._set_alarm()
        return actions

    def _begin_period(self, now: float) -> None:
        self._half, self._end = now + self.period / 2, now + self.period
        self.target += self.search.commits
        for worker, pace in self.pace.items():
            pace.begins(self.target)
            if pace.directed is None:
                self._plan(worker)

    def _plan(self, worker: int) -> None:
        heappush(self._due, (self.pace[worker].plan(self.period), worker))

    def _outdated(self, due: float, worker: int) -> bool:
        pace = self.pace.get(worker)
        return pace is None or pace.directed is not None or pace.due != due

    def _direct(self, now: float) -> list[Action]:
        """Direct the workers that are due."""
        actions: list[Action] = []
        while self._due and self._due[0][0] <= now:
            due, worker = heappop(self._due)
            if not self._outdated(due, worker):
                self.pace[worker].is_directed(now)
                actions.append(Direct(worker, cut=True))
        return actions

    def _set_alarm(self) -> None:
        while self._due and self._outdated(*self._due[0]):
            heappop(self._due)
        due = self._due[0][0] if self._due else math.inf
        self.alarm = min(due, self._half, self._end) if self.active else None

    def _mean_loss(self) -> float | None:
        return math.fsum(self._loss.values()) / len(self._loss) if self._loss else None
