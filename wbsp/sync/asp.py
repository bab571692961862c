"""ASP: asynchronous parallel (Hogwild, NIPS 2011; DistBelief, NIPS 2012)."""

from wbsp.sync.base import About, Action, Option, Push, WorkerRule
from wbsp.sync.shares import shares_by
from wbsp.sync.ssp import SSP


class ASP(SSP):
    """No worker waits for another: SSP without a bound.

        worker: step; push; wait for the newest version; x = W
        server: accept(p, 1/N), commit, grant the pusher at once

    N is the number of active workers; the weight 1/N is ours. The staleness of an update has no
    bound.

    With refresh=published this is what the published runners call "asp": SSP by their rule with
    s = 1000, in which a worker trains up to a thousand steps without a newer model, and fast ones
    wait after all [ADSP's code; that WBSP's runners share it is inferred].

    With `overlap` communication and computation run in parallel, as in DistBelief's own client
    (Downpour SGD: Dean et al., appendix, algorithm 1.1), which fetches and pushes asynchronously
    and makes local steps meanwhile [paper, from a transcript of the appendix]. Progress that is not
    pushed yet stays on top of a version that arrives, as under optimized WBSP [ours]:

        worker, at each step's end: a version has arrived? x = W + (x - anchor); anchor = W
                                    network idle? cut and push; else continue
        server: as above

    weight=time weighs a push by the seconds that its worker takes for a step in place of 1/N, so
    that the data of fast workers do not count more: Rescaled ASGD, see `TimeShares`.
    """

    name = "asp"
    about = About(
        bound="none (published: lead of at most 1000 steps)",
        waits="no worker, except for its own push and fetch (published: a worker at the bound)",
        traffic="a push and a fetch a step (published: a fetch every 1000 steps beyond the "
                "granted lowest clock)",
        source="Hogwild (Recht et al. 2011), DistBelief (Dean et al. 2012; overlap: its client, "
               "Downpour)",
        certainty="exact but for the weight 1/N and, with overlap, the rebase: ours; weight=time "
                  "from an abstract; published: ADSP's code, WBSP's inferred")
    OPTIONS = {
        "overlap": Option(False, "push when the network is idle, never wait, rebase"),
        "refresh": SSP.OPTIONS["refresh"],
        "weight": Option("equal", "of a push: 1/N, or its worker's share in the time",
                         choices=("equal", "time")),
    }

    s = 1000  # counts only where refresh=published
    overlap: bool
    weight: str

    def __init__(self, **options: object):
        super().__init__(**options)
        if self.overlap and self.refresh == "published":
            raise ValueError("asp: overlap=true fetches after every push, refresh=published does "
                             "not; give one of them")
        if self.overlap:
            self.rule = WorkerRule(push="when_idle", wait="never", adopt="rebase")
        self.shares = shares_by(self.weight)

    def weight_of(self, push: Push) -> float:
        return self.shares.of(push.worker) if self.shares else super().weight_of(push)

    def join(self, worker: int, now: float) -> list[Action]:
        if self.shares:
            self.shares.join(worker, now)
        return super().join(worker, now)

    def leave(self, worker: int, now: float) -> list[Action]:
        if self.shares:
            self.shares.leave(worker)
        return super().leave(worker, now)

    def push(self, push: Push, now: float) -> list[Action]:
        if self.shares:
            self.shares.count(push, now)
        return super().push(push, now)

    def _may_continue(self, worker: int) -> bool:
        return self.refresh == "push" or super()._may_continue(worker)
