"""Decoupled DiLoCo: learners that never wait, merged by a quorum and a grace window.

Source: Douillard et al., "Decoupled DiLoCo for resilient distributed pre-training", arXiv
2604.21428, 2026. Its abstract and descriptions by others were read [abstract], not its text.
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
    window is over; an update's weight is its tokens times its tokens a step; the outer step is
    Nesterov's [abstract], which a run sets by --outer=nesterov. A learner that is too late is in
    the next merge. Here, each [reconstruction]:

    - the quorum K is half of the workers, rounded up, unless it is given;
    - the window is `grace` times the usual seconds between two pushes of the learner that pushes
      most often, because that learner would be the first to train on without the others' updates;
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
        certainty="aims from the abstract; quorum, window and normalization reconstructed; without "
                  "fragments")
    OPTIONS = {
        "tau": Option(8, "steps between two pushes of a worker, at least", low=1),
        "quorum": Option(0, "workers that a merge waits for; 0: half of them", low=0),
        "grace": Option(0.5, "how long it then waits for the others, in times of the fastest's "
                        "seconds between pushes", low=0),
    }

    tau: int
    quorum: int
    grace: float

    def __init__(self, **options):
        super().__init__(**options)
        self.rule = WorkerRule(push="when_idle", wait="never", adopt="rebase", every=self.tau)
        self._in: set[int] = set()  # active workers in this merge
        self._pushes = 0  # in this merge
        self._sum = 0.0  # of their scores
        self._usual: float | None = None  # sum of a merge's scores; None: not known yet
        self._pushed: dict[int, float] = {}  # active worker -> time of its newest push
        self._interval: dict[int, float] = {}  # active worker -> seconds between two, on average

    @property
    def needed(self) -> int:
        """K, the workers of a quorum."""
        n = len(self.active)
        return min(self.quorum or n - n // 2, n)

    def weight_of(self, push: Push) -> float:
        return 1 / len(self.active) if not self._usual else score(push) / self._usual

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        self._in.discard(worker)
        for known in (self._pushed, self._interval):
            known.pop(worker, None)
        return self._merge_if_due(now)

    def push(self, push: Push, now: float) -> list[Action]:
        worker = push.worker
        if worker in self._pushed:
            self._interval[worker] = averaged(self._interval.get(worker),
                                              now - self._pushed[worker])
        self._pushed[worker] = now
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
        window = self.grace * min(self._interval.values(), default=0.0)
        if self.alarm is None and len(self._in) < len(self.active) and window > 0:
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
