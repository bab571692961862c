"""ASP: asynchronous parallel (Hogwild, NIPS 2011; DistBelief, NIPS 2012)."""

from wbsp.sync.base import About, Accept, Action, Commit, Grant, Push, SyncModel, WorkerRule


class ASP(SyncModel):
    """Nobody waits for anybody.

        worker: step; push; wait for the newest version; x = W
        server: accept(p, 1/N), commit, grant the pusher at once

    N is the number of active workers. The staleness of an update has no bound.
    """

    name = "asp"
    about = About(
        bound="none",
        waits="nobody, but for the own push and fetch",
        traffic="a push and a fetch a step",
        source="Hogwild (Recht et al. 2011), DistBelief (Dean et al. 2012)",
        certainty="exact")
    rule = WorkerRule(push="every_step", wait="model", adopt="replace")

    def push(self, push: Push, now: float) -> list[Action]:
        return [Accept(push, self.weight(push)), Commit(), Grant(push.worker)]
