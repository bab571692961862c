"""Decoupled DiLoCo: learners that never wait, merged by a quorum and a grace window.

Source: Douillard et al., "Decoupled DiLoCo for resilient distributed pre-training", arXiv
2604.21428, 2026. Its abstract was read [abstract], and a public re-implementation with its notes
[code]; not its text.
"""

from wbsp.sync.base import About, Accept, Action, Grant, Option, Push, SyncModel, WorkerRule
from wbsp.sync.meter import averaged


class DecoupledDiLoCo(SyncModel):
    """A version merges the learners that have pushed, soon after a quorum of them has.

        worker: at least tau steps; network idle? push, continue
                a version has arrived? x = W + (x - anchor); anchor = W
        server: accept(p, score(p) / S); K workers are in this merge: the grace window begins
                all active workers are in it, or the window is over? commit, grant all

    Learners never wait; the server merges when a minimum quorum has pushed and an adaptive grace
    window is over; an update's weight is its tokens times its tokens a step [abstract, code]; the
    outer step is Nesterov's [abstract], which a run sets by --outer=nesterov. A learner that is too
    late is in the next merge. The window is as long as the overlap hides [code]:

        window = grace * slack,  slack = overlap * xi_step - (xi_quorum + xi_sync)

    xi_step are the seconds of a step, xi_quorum those from a merge's first push to its quorum, and
    xi_sync those of the transfers, all smoothed. Here, each [reconstruction]:

    - the quorum K is half of the workers, rounded up, unless it is given;
    - the overlap is tau steps, those of the fastest learner: until then it has nothing to push, so
      a version that arrives meanwhile is late for none;
    - no model sees xi_sync. It is left to `grace`, whose default is a half. Where the fastest
      learner's transfers last longer than tau steps, there is no window;
    - score(p) is samples^2 / steps. A weight is final when its update is accepted, before the merge
      is complete, so S is the sum of the scores of a merge as the last ones had it, smoothed, and
      in the first merge as if all N weighed alike;
    - progress that is not pushed yet stays on top of a new version, as under optimized WBSP [ours].

    Left out are fragments (each merge is of the whole model) and the averaging of directions and
    lengths apart. Differs from optimized WBSP in the quorum, and in that a fast learner is weighed
    by its work.
    """

    name = "decoupled"
    about = About(
        bound="none; a version holds pushes of a quorum",
        waits="no worker, ever",
        traffic="at most a push for tau steps, N fetches a version",
        source="Douillard et al. 2026 (Decoupled DiLoCo)",
        certainty="aims from the abstract, window from others' code but for transfers; quorum and "
                  "normalization reconstructed; without fragments")
    OPTIONS = {
        "tau": Option(8, "steps between two pushes of a worker, at least", low=1),
        "quorum": Option(0, "workers that a merge waits for; 0: half of them", low=0),
        "grace": Option(0.5, "how long it then waits for the others, as a part of what tau steps "
                        "of the fastest leave", low=0),
    }

    tau: int
    quorum: int
    grace: float

    def __init__(self, **options: object):
        super().__init__(**options)
        self.rule = WorkerRule(push="when_idle", wait="never", adopt="rebase", every=self.tau)
        self._in: set[int] = set()  # active workers in this merge
        self._pushes = 0  # in this merge
        self._sum = 0.0  # of their scores
        self._usual: float | None = None  # sum of a merge's scores; None: not known yet
        self._step: dict[int, float] = {}  # active worker -> seconds of a step, on average
        self._steps: dict[int, float] = {}  # active worker -> steps of a push, on average
        self._begun = 0.0  # when the first push of this merge came
        self._quorum: float | None = None  # seconds from there to the quorum, on average

    @property
    def needed(self) -> int:
        """K, the workers of a quorum."""
        n = len(self.active)
        return min(self.quorum or n - n // 2, n)

    @property
    def slack(self) -> float:
        """The seconds for which the steps of the fastest learner hide a merge; 0: they do not."""
        if not self._step:
            return 0.0
        fastest = min(self._step, key=self._step.__getitem__)
        if self._steps[fastest] >= self.tau + 0.5:
            return 0.0
        return max(0.0, self.tau * self._step[fastest] - (self._quorum or 0.0))

    def weight_of(self, push: Push) -> float:
        return 1 / len(self.active) if not self._usual else score(push) / self._usual

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        self._in.discard(worker)
        for known in (self._step, self._steps):
            known.pop(worker, None)
        return self._merge_if_due(now)

    def push(self, push: Push, now: float) -> list[Action]:
        worker = push.worker
        self._step[worker] = averaged(self._step.get(worker), push.seconds / push.steps)
        self._steps[worker] = averaged(self._steps.get(worker), push.steps)
        if not self._pushes:
            self._begun = now
        self._in.add(worker)
        self._pushes += 1
        self._sum += score(push)
        return [Accept(push, self.weight_of(push)), *self._merge_if_due(now)]

    def tick(self, now: float) -> list[Action]:
        self.alarm = None
        quorum = self._pushes and len(self._in) >= self.needed  # it may have left
        return self._merge(now) if quorum else []

    def _merge_if_due(self, now: float) -> list[Action]:
        if not self._pushes or len(self._in) < self.needed:
            return []
        if self.alarm is None:
            self._quorum = averaged(self._quorum, now - self._begun)
            window = self.grace * self.slack
            if len(self._in) < len(self.active) and window > 0:
                self.alarm = now + window
        due = self.alarm is None or now >= self.alarm or len(self._in) == len(self.active)
        return self._merge(now) if due else []

    def _merge(self, now: float) -> list[Action]:
        self._usual = averaged(self._usual, self._sum)
        self._in.clear()
        self._pushes, self._sum, self.alarm = 0, 0.0, None
        return [self.next_version(), *map(Grant, sorted(self.active))]


def score(push: Push) -> float:
    """Return the samples times the samples of a step."""
    return push.samples * push.samples / push.steps
