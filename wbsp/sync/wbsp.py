"""WBSP: worker-busy synchronous parallel, and its optimized form.

Source: Yang, Hu, Liu, Jin, Yeung, You, "WBSP: Addressing stragglers in distributed machine
learning with worker-busy synchronous parallel", Parallel Computing 121 (2024) 103092,
doi 10.1016/j.parco.2024.103092. Read: its abstract [abstract] and the official code [code], not the
full text.
"""

from typing import Literal

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
from wbsp.sync.late import JustInTime
from wbsp.sync.meter import SlowestMeter
from wbsp.sync.round import Round
from wbsp.sync.shares import shares_by


class WBSP(SyncModel):
    """Fast workers compute and push on; the slowest worker's push makes the next version.

        worker: step; push; wait for the acknowledgement only
                granted meanwhile? fetch the newest version, x = W
        server: accept(p, 1/N)
                every active worker has pushed since the last commit? commit; grant all

    Differs from BSP only in the message that a worker waits for, and hence in how many pushes of a
    fast worker a version holds. "Every active worker has pushed" is the abstract's "the slowest
    uploads" for constant speeds, and stays right when speeds change or the slowest leaves
    [derived]. A push that was computed before a commit and arrives after it counts in the next
    round [derived from the code].

    trigger=slowest names the slowest explicitly, by a moving average of its seconds a step: the
    version is committed at that worker's push [abstract; the measure is ours].
    commit=every_push is the official code's behaviour: every push is applied to the global model at
    once and only the grants wait for the slowest [code].

    weight=work weighs a push by its worker's share in the samples of the former rounds in place of
    1/N [ours]: see `WorkShares`. A version is W + a mean of the workers' pushes since W. With
    weight=equal the mean is over the workers: of two, one that made 26 of 27 steps gets back half
    of its progress and repeats the other half. With weight=work the mean is over the steps. (It is
    the mean of their live models only if all pushes were computed from W, which does not hold for a
    fast worker's first push of a round.) By work a version moves up to N times as far along the
    fastest worker's path, and so needs learning rates up to N times smaller than under
    weight=equal. Where the data of workers differ, it favours the data of the fast ones.

    weight=time is for such data: the weight of a push grows with its worker's seconds for a step,
    so that all workers move the model equally fast: see `TimeShares`.
    """

    name = "wbsp"
    about = About(
        bound="every version holds a push of every worker",
        waits="no worker, except for its own push and a granted fetch",
        traffic="a push a step, N fetches a version",
        source="Yang et al., Parallel Computing 2024",
        certainty="from the abstract and the official code; slowest known by its push: derived")
    rule = WorkerRule(push="every_step", wait="ack", adopt="replace")
    OPTIONS = {
        "commit": Option("slowest", "when a version is made", choices=("slowest", "every_push")),
        "trigger": Option("all_pushed", "how the slowest worker's upload is known",
                          choices=("all_pushed", "slowest")),
        "weight": Option("equal", "of a push: 1/N, or its worker's share in the work or the time",
                         choices=("equal", "work", "time")),
    }

    commit: str
    trigger: str
    weight: str

    def __init__(self, **options: object):
        super().__init__(**options)
        self.round = Round(self.active)
        self.meter = SlowestMeter()
        self.shares = shares_by(self.weight)

    def weight_of(self, push: Push) -> float:
        return self.shares.of(push.worker) if self.shares else super().weight_of(push)

    def join(self, worker: int, now: float) -> list[Action]:
        self.round.join(worker)
        self.meter.join(worker)
        if self.shares:
            self.shares.join(worker, now)
        return super().join(worker, now)

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        self.round.leave(worker)
        self.meter.leave(worker)
        if self.shares:
            self.shares.leave(worker)
        return self._end_round(now) if self.round.complete else []

    def push(self, push: Push, now: float) -> list[Action]:
        self.round.push(push.worker)
        if self.shares:
            self.shares.count(push, now)
        actions: list[Action] = [Accept(push, self.weight_of(push))]
        if self.commit == "every_push":
            actions.append(Commit())
        if self.trigger == "all_pushed":
            due = self.round.complete
        else:
            self.meter.update(push.worker, push.seconds / push.steps)
            due = push.worker == self.meter.slowest
        return actions + self._end_round(now) if due else actions

    def _end_round(self, now: float) -> list[Action]:
        self.round.restart()
        if self.shares:
            self.shares.end_round()
        grants = map(Grant, sorted(self.active))
        return [*grants] if self.commit == "every_push" else [Commit(), *grants]


class OptimizedWBSP(WBSP):
    """WBSP with communication and computation in parallel (in the official code: pcc).

        compute thread, at each step's end:
            a version has arrived? x = W + (x - anchor); anchor = W
            sender idle? cut and push; else continue, and the next cut carries all steps since
        communication thread: send the cut; on a grant fetch the version
        server: as WBSP

    Nothing ever blocks the compute thread. The slowest worker's interval is max(compute, push +
    pull) instead of compute + push + pull [derived]. The official code loses a step that runs
    during a fetch, or applies it torn; the rebase keeps it [ours]. adopt=replace loses it, whole
    [code], so that what the rebase gains can be measured.

    With `late` a fast worker pushes once a round, timed so that its push arrives shortly before the
    slowest's [ours], because only the sum of its pushes of a round counts. See `JustInTime`. It
    needs trigger=all_pushed, under which a round waits for workers that rest.
    """

    name = "pcc"
    about = About(
        bound="every version holds a push of every worker",
        waits="no worker, ever",
        traffic="at most a push a step, N fetches a version",
        source="Yang et al., Parallel Computing 2024 (optimized WBSP)",
        certainty="from the abstract and the official code; rebase in place of a lost step: "
                  "ours")
    rule = WorkerRule(push="when_idle", wait="never", adopt="rebase")
    OPTIONS = WBSP.OPTIONS | {
        "late": Option(False, "a worker pushes once a round, just in time for the version"),
        "adopt": Option("rebase", "steps made while a version is fetched stay on top of it, or are "
                        "lost, as in the official code", choices=("rebase", "replace"))}

    late: bool
    adopt: Literal["rebase", "replace"] = "rebase"

    def __init__(self, **options: object):
        super().__init__(**options)
        if self.late and self.trigger != "all_pushed":
            raise ValueError(f"{self.name}: option late=true needs trigger=all_pushed, not "
                             f"trigger={self.trigger}")
        self.rule = WorkerRule(push="when_idle", wait="never", adopt=self.adopt)
        self.times = JustInTime() if self.late else None

    def join(self, worker: int, now: float) -> list[Action]:
        if self.times:
            self.times.join(worker, now)
        return super().join(worker, now)

    def leave(self, worker: int, now: float) -> list[Action]:
        if self.times:
            self.times.leave(worker)
        return super().leave(worker, now) + self._release(now)

    def push(self, push: Push, now: float) -> list[Action]:
        if self.times is None:
            return super().push(push, now)
        rest = self.times.arrived(push.worker, push.samples, now)
        ordered: list[Action] = [Direct(push.worker, cut=False)] if rest else []
        return ordered + super().push(push, now) + self._release(now)

    def tick(self, now: float) -> list[Action]:
        return self._release(now)

    def _end_round(self, now: float) -> list[Action]:
        if self.times is not None:
            self.times.end_round(now)
        return super()._end_round(now)

    def _release(self, now: float) -> list[Action]:
        """Direct the resting workers that are due to push; set the alarm for the others."""
        if self.times is None:
            return []
        released: list[Action] = [Direct(worker, cut=True) for worker in self.times.due(now)]
        self.alarm = self.times.next_due
        return released
