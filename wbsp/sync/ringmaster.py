"""Ringmaster ASGD: asynchronous SGD that rejects updates that are too stale.

Sources: Maranjyan, Tyurin, Richtarik, "Ringmaster ASGD: The first asynchronous SGD with optimal
time complexity", ICML 2025, arXiv 2501.16168 [abstract, code]; R = floor(sqrt(k)) is from the code
of "Ringmaster LMO", arXiv 2605.18174 [code].
"""

from math import isqrt

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

STALE = "stale: its lag is R or more"


class Ringmaster(SyncModel):
    """ASP with a threshold R on the lag of an update.

        worker: step; push; wait for the newest version; x = W
        server: lag = versions made since the one that p was computed from
                lag < R? accept(p, w), commit; else reject p
                grant the pusher

    r is R, fixed [abstract]; with r=0, R = max(1, floor(sqrt(k))), k the number of versions so far,
    to which a learning rate that falls with 1 / sqrt(k) belongs [code], which a run sets. R = 1 is
    the SGD of one worker, the one that is first at each version.

    w is 1, each update a whole step of SGD [code]; with weight=mean it is 1/N, as under ASP, so
    that one learning rate suits both [ours]. The paper's variant that stops a worker's step as soon
    as it is too late is left out: a worker here ends its step.

    Differs from SaPS, which bounds the lag as well, in R, in the weight, and in that no worker is
    directed to push early.
    """

    name = "ringmaster"
    about = About(
        bound="lag of an accepted update below R",
        waits="no worker, except for its own push and fetch",
        traffic="a push and a fetch a step",
        source="Maranjyan, Tyurin, Richtarik, ICML 2025",
        certainty="rule from the abstract and the authors' code; weight=mean: ours; without stops")
    rule = WorkerRule(push="every_step", wait="model", adopt="replace")
    OPTIONS = {
        "r": Option(0, "lag from which an update is ignored; 0: the root of the versions so far",
                    low=0),
        "weight": Option("full", "of an update: 1, or 1/N", choices=("full", "mean")),
    }

    r: int
    weight: str

    def weight_of(self, push: Push) -> float:
        return 1.0 if self.weight == "full" else super().weight_of(push)

    def push(self, push: Push, now: float) -> list[Action]:
        lag = self.lag(push)
        if lag >= (self.r or max(1, isqrt(self.version))):
            return [Reject(push, STALE), Grant(push.worker)]
        return [Accept(push, self.weight_of(push)), self.next_version(), Grant(push.worker)]
