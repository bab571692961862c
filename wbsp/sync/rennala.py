"""Rennala SGD: a version is the mean of S gradients of the version before, from any workers.

Source: Tyurin, Richtarik, "Optimal time complexities of parallel stochastic optimization methods
under a fixed computation model", NeurIPS 2023, arXiv 2305.12387 (Rennala SGD: the method for
workers that share their data). Its abstract was read [abstract], the method is from the code of
later work by the same authors [code], and from memory [memory].
"""

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

STALE = "stale: of an older version"


class Rennala(SyncModel):
    """The server gathers S updates of its newest version, then makes the next one.

        worker: step; push; wait for the newest version (perhaps the one that it has); x = W
        server: p of an older version than the newest? reject p, grant the pusher
                accept(p, 1/S); S accepted? commit
                grant the pusher

    A fast worker contributes several of the S, all computed from W itself: it returns to W between
    them, without a fetch (adopt="return") [derived]. No update is stale; the steps that run when a
    version is made are lost. The time to a stationary point is optimal, up to constants, among all
    methods that request one gradient after the other from each worker, for workers that share their
    data [abstract]. Transfers cost nothing in that analysis, and here each step is pushed.

    Differs from KSync in that a worker may give many updates to one version, and that none waits
    for the end of the round.
    """

    name = "rennala"
    about = About(
        bound="no update is stale; those of older versions are rejected",
        waits="no worker, except for its own push and a fetch of a newer version",
        traffic="a push a step, N fetches a version",
        source="Tyurin, Richtarik, NeurIPS 2023",
        certainty="rule from the authors' later code; going back without a fetch: derived; "
                  "default of s: ours")
    rule = WorkerRule(push="every_step", wait="model", adopt="return")
    OPTIONS = {"s": Option(0, "updates in a version; 0: as many as workers", low=0)}

    s: int

    def __init__(self, **options: object):
        super().__init__(**options)
        self._have = 0  # accepted since the last commit

    @property
    def needed(self) -> int:
        """S, the updates of a version."""
        return self.s or len(self.active)

    def weight_of(self, push: Push) -> float:
        return 1 / self.needed

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        return self._commit_if_complete()

    def push(self, push: Push, now: float) -> list[Action]:
        if self.lag(push):
            return [Reject(push, STALE), Grant(push.worker)]
        self._have += 1
        return [Accept(push, self.weight_of(push)), *self._commit_if_complete(),
                Grant(push.worker)]

    def _commit_if_complete(self) -> list[Action]:
        if not self._have or self._have < self.needed:
            return []
        self._have = 0
        return [self.next_version()]
