"""K-sync: synchronous SGD that does not wait for the last b workers (Chen et al. 2016)."""

from wbsp.sync.base import (
    About,
    Accept,
    Action,
    Grant,
    Option,
    Push,
    Reject,
    SyncModel,
    WorkerRule,
)

LATE = "late: its round was over"


class KSync(SyncModel):
    """BSP with `b` backup workers: the first K = N - b pushes make the version.

        worker: step; push; wait for the newest version; x = W
        server: p computed from an older version than the newest? reject p, grant the pusher
                accept(p, 1/K); K = max(1, N - b) workers have pushed in this round?
                commit, grant the workers that pushed

    Every version is the mean of updates computed from the version before it: no update is stale,
    and the work of the b slowest is lost. b = 0 is BSP.

    Sources: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD",
    arXiv 1604.00981, 2016 (N workers with b backups, late gradients dropped) [paper]; Dutta, Joshi,
    Ghosh, Dube, Nagpurkar, "Slow and stale gradients can win the race", AISTATS 2018, arXiv
    1803.01113 (K-sync SGD) [paper]. Both take the mean over the K updates that came in time.
    In Dutta's K-sync the server stops late workers in the middle of their step; here, as in Chen et
    al., they end the step [paper].
    """

    name = "ksync"
    about = About(
        bound="no update is stale; the b slowest of a round are rejected",
        waits="fast workers, for the (N - b)-th",
        traffic="a push and a fetch a step, b of N in vain",
        source="Chen et al. 2016; Dutta et al., AISTATS 2018",
        certainty="exact")
    rule = WorkerRule(push="every_step", wait="model", adopt="replace")
    OPTIONS = {"b": Option(1, "backup workers: how many a round does not wait for", low=0)}

    b: int

    def __init__(self, **options: object):
        super().__init__(**options)
        self._pushed: set[int] = set()  # active workers that wait for this round's version

    @property
    def needed(self) -> int:
        """K, the workers of a version."""
        return max(1, len(self.active) - self.b)

    def weight_of(self, push: Push) -> float:
        return 1 / self.needed

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        self._pushed.discard(worker)
        return self._commit_if_complete()

    def push(self, push: Push, now: float) -> list[Action]:
        if self.lag(push):
            return [Reject(push, LATE), Grant(push.worker)]
        self._pushed.add(push.worker)
        return [Accept(push, self.weight_of(push)), *self._commit_if_complete()]

    def on_commit(self) -> None:
        """Handle the end of a round; a hook for models that change K."""

    def _commit_if_complete(self) -> list[Action]:
        if len(self._pushed) < self.needed:
            return []
        grants = [Grant(worker) for worker in sorted(self._pushed)]
        self._pushed.clear()
        self.on_commit()
        return [self.next_version(), *grants]
