"""ElasticBSP: a barrier at a time when all workers are predicted to arrive almost together.

Source: Zhao, Papagelis, An, Chen, Liu, Hu, "Elastic bulk synchronous parallel model for distributed
deep learning", ICDM 2019, arXiv 2001.01347.
"""

from wbsp.sync.base import About, Accept, Action, Commit, Grant, Option, Push, SyncModel, WorkerRule
from wbsp.sync.zipline import Choice, zipline_opt_bs


class ElasticBSP(SyncModel):
    """BSP in which workers make different numbers of steps between two barriers.

        worker: step; push; wait for the newest version; x = W
        server, superstep by superstep:
            monitor: accept(p, 1/N), commit, grant the pusher,                         [paper]
                     until every active worker has pushed twice since the barrier      [paper]
            predict: interval_p = last push - the one before                           [paper]
                     end_p,i = last push + i interval_p, i = 1..r                      [paper]
                     an overdue row starts now                                         [ours]
                     ZipLine picks one end per worker; its index is the worker's quota [paper]
            run:     quota_p -= 1; accept(p, 1/N)
                     quota_p > 0: commit, grant the pusher; else hold it               [paper]
                     all held: commit, grant all, monitor again                        [paper]

    Differs from BSP, where every quota is 1, in the prediction: if intervals stay as they were, the
    worker that arrives first waits d, the least that one end per worker allows. A quota counts
    pushes, so that a wrong prediction costs waiting but excludes no worker from the barrier [ours].
    N is the number of active workers when the push is accepted [ours]. A worker that joins while
    the quotas run waits for the barrier, without delaying it [ours].
    """

    name = "elasticbsp"
    about = About(
        bound="lead at most r steps within a superstep; equal models at its barrier",
        waits="at the barrier, for the time that ZipLine found least",
        traffic="a push and a fetch a step",
        source="Zhao et al., ICDM 2019",
        certainty="exact; quota by count, an overdue row starts now: ours")
    rule = WorkerRule(push="every_step", wait="model", adopt="replace")
    OPTIONS = {"r": Option(15, "how many steps of each worker are predicted", low=1)}

    r: int

    def __init__(self, **options: object):
        super().__init__(**options)
        self.choice: Choice | None = None  # ZipLine's newest, for the workers in ascending order
        self.quota: dict[int, int] = {}  # worker -> pushes to go, never 0; empty while monitoring
        self._last: dict[int, float] = {}  # of the pushes since the barrier
        self._interval: dict[int, float] = {}  # between the last two

    def join(self, worker: int, now: float) -> list[Action]:
        grant = super().join(worker, now)
        return [] if self.quota else grant

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        self._last.pop(worker, None)
        self._interval.pop(worker, None)
        if self.quota:
            return self._arrive(worker)
        self._predict_if_due(now)
        return []

    def push(self, push: Push, now: float) -> list[Action]:
        worker = push.worker
        accept = Accept(push, self.weight_of(push))
        if self.quota:
            if self.quota.get(worker, 1) == 1:
                return [accept, *self._arrive(worker)]
            self.quota[worker] -= 1
        else:
            if worker in self._last:
                self._interval[worker] = now - self._last[worker]
            self._last[worker] = now
            self._predict_if_due(now)
        return [accept, Commit(), Grant(worker)]

    def _predict_if_due(self, now: float) -> None:
        """Set the quotas, once every active worker has pushed twice."""
        if not self.active or len(self._interval) < len(self.active):
            return
        workers = sorted(self.active)
        rows = []
        for worker in workers:
            interval = self._interval[worker]
            first = max(self._last[worker] + interval, now)
            rows.append([first + i * interval for i in range(self.r)])
        self.choice = zipline_opt_bs(rows)
        self.quota = dict(zip(workers, self.choice.indices, strict=True))

    def _arrive(self, worker: int) -> list[Action]:
        """Handle a worker that is at the barrier or has left; the last one opens the barrier."""
        self.quota.pop(worker, None)
        if self.quota:
            return []
        self._last.clear()
        self._interval.clear()
        return [Commit(), *map(Grant, sorted(self.active))]
