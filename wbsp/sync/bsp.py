"""BSP: bulk synchronous parallel (Valiant, CACM 33(8), 1990; synchronous replicas)."""

from wbsp.sync.base import About, Accept, Action, Grant, Push, SyncModel, WorkerRule
from wbsp.sync.round import Barrier


class BSP(SyncModel):
    """Every worker waits for all the others.

        worker: step; push; wait for the next version; x = W
        server: accept(p, 1/N); all active workers have pushed: commit, grant all

    N is the number of active workers when the push is accepted, plus the workers that had pushed
    for this round under an earlier server and have left. With N workers this is SGD on the union of
    their batches.
    """

    name = "bsp"
    about = About(
        bound="no update is stale",
        waits="fast workers, for the slowest at every step",
        traffic="N pushes and N fetches a version of N steps",
        source="Valiant 1990",
        certainty="exact")
    rule = WorkerRule(push="every_step", wait="model", adopt="replace")

    def __init__(self, **options: object):
        super().__init__(**options)
        self.round = Barrier(self.active)

    def weight_of(self, push: Push) -> float:
        return 1 / (len(self.active) + len(self.round.absent))

    def join(self, worker: int, now: float) -> list[Action]:
        self.round.join(worker)
        return super().join(worker, now)

    def rejoin(self, worker: int, ahead: int, now: float) -> list[Action]:
        actions = self.join(worker, now)
        if not ahead:
            return actions
        self.round.lead(worker, ahead)  # the end of that round grants it
        return [action for action in actions if action != Grant(worker)]

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        self.round.leave(worker)
        return self._commit_if_complete(now)

    def push(self, push: Push, now: float) -> list[Action]:
        self.round.push(push.worker)
        return [Accept(push, self.weight_of(push)), *self._commit_if_complete(now)]

    def on_commit(self, now: float) -> None:
        """Handle the end of a round; a hook for subclasses."""

    def _commit_if_complete(self, now: float) -> list[Action]:
        if not self.round.complete:
            return []
        self.round.restart()
        self.on_commit(now)
        return [self.next_version(), *map(Grant, sorted(self.round.missing))]
