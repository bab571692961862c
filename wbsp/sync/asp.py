"""ASP: asynchronous parallel (Hogwild, NIPS 2011; DistBelief, NIPS 2012)."""

from wbsp.sync.base import Accept, Action, Commit, Grant, Push, SyncModel, WorkerRule


class ASP(SyncModel):
    """Nobody waits for anybody.

        worker: step; push; wait for the newest version; x = W
        server: accept(p, 1/N), commit, grant the pusher at once

    N is the number of active workers. The staleness of an update has no bound.
    """

    name = "asp"
    rule = WorkerRule(push="every_step", wait="model", adopt="replace")

    def push(self, push: Push, now: float) -> list[Action]:
        return [Accept(push, 1 / len(self.active)), Commit(), Grant(push.worker)]
