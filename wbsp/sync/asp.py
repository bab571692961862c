"""ASP: asynchronous parallel (Hogwild, NIPS 2011; DistBelief, NIPS 2012)."""

from wbsp.sync.base import (
    About,
    Accept,
    Action,
    Commit,
    Grant,
    Option,
    Push,
    SyncModel,
    WorkerRule,
)


class ASP(SyncModel):
    """Nobody waits for anybody.

        worker: step; push; wait for the newest version; x = W
        server: accept(p, 1/N), commit, grant the pusher at once

    N is the number of active workers. The staleness of an update has no bound.

    With `overlap` communication and computation run in parallel, as under optimized WBSP, of which
    this is the asynchronous counterpart [ours]:

        worker, at each step's end: a version has come in? x = W + (x - anchor); anchor = W
                                    network idle? cut and push; else go on
        server: as above
    """

    name = "asp"
    about = About(
        bound="none",
        waits="nobody, but for the own push and fetch",
        traffic="a push and a fetch a step",
        source="Hogwild (Recht et al. 2011), DistBelief (Dean et al. 2012)",
        certainty="exact; overlap: ours")
    OPTIONS = {"overlap": Option(False, "push when the network is idle, never wait, rebase")}

    rule = WorkerRule(push="every_step", wait="model", adopt="replace")

    overlap: bool

    def __init__(self, **options):
        super().__init__(**options)
        if self.overlap:
            self.rule = WorkerRule(push="when_idle", wait="never", adopt="rebase")

    def push(self, push: Push, now: float) -> list[Action]:
        return [Accept(push, self.weight_of(push)), Commit(), Grant(push.worker)]
