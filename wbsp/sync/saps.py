"""SaPS: the straggler-aware parameter server.

Source: Yu, Zhu, Chen, Cheng, Hu, Li, "Accelerating distributed training in heterogeneous clusters
via a straggler-aware parameter server", IEEE HPCC 2019. Only its abstract is open; the mechanisms
below are a reconstruction.
"""

from collections import OrderedDict

from wbsp.sync.base import (
    About,
    Accept,
    Action,
    Commit,
    Direct,
    Grant,
    Option,
    Push,
    Reject,
    SyncModel,
    WorkerRule,
)


class SaPS(SyncModel):
    """ASP that rejects updates that are too old, and directs stragglers to push before that.

        worker: x = W_v; train the mini-batch in M micro-batches, a step each
                directed to push? end after this one
                push x - W_v; wait for the newest version; x = W
        server: lag = V - v of the push
                lag <= s N: accept(p, scale(lag) / (N M)), commit; else reject
                grant the pusher at once
                after a commit: V - v_j >= h N for a worker j: direct it to push, once a grant

    The paper's aims are known: asynchronous, never waiting for stragglers, which show in the
    version of their parameters; a coordinator bounds the staleness without waiting [paper]. The
    rule is [ours]; without bounds it is ASP. In ASP the natural lag is N - 1, and
    f (N - 1) for a worker f times slower [derived]; therefore s and h are given in multiples of N.
    policy=reject, which has only the bound and M = 1, would accept no push of a worker with
    f (N - 1) > s N; policy=preempt accepts it if (a micro-batch and its messages) * version rate is
    at most (s - h) N [derived].

    The M micro-batches are steps one after another, and the sum of m of them is m times a step on
    the mini-batch to first order: 1 / M makes a whole mini-batch weigh like one step, and a part
    like its fraction [ours].
    """

    name = "saps"
    about = About(
        bound="lag of an accepted push at most s N versions",
        waits="no worker, except for its own push and fetch",
        traffic="a push and a fetch a mini-batch or part of one",
        source="Yu et al., IEEE HPCC 2019",
        certainty="aims from the abstract; mechanisms reconstructed")
    OPTIONS = {
        "s": Option(4.0, "largest lag of an accepted push, in multiples of the workers; inf: any",
                    low=0),
        "h": Option(2.0, "lag at which a worker is directed to push, in multiples of the "
                    "workers", low=0),
        "policy": Option("preempt", "reject old updates only, or direct stragglers to push, too",
                         choices=("preempt", "reject")),
        "scale": Option("constant", "weight of a lagging push: 1, or 1 / (1 + lag)",
                        choices=("constant", "inverse")),
        "micro_batches": Option(4, "parts of a mini-batch at whose ends a worker may push "
                                "(with policy=preempt)", low=1),
    }

    s: float
    h: float
    policy: str
    scale: str
    micro_batches: int

    def __init__(self, **options: object):
        super().__init__(**options)
        preempt = self.policy == "preempt"
        if preempt and not self.h < self.s:
            raise ValueError(f"saps: option h={self.h:g} is not below s={self.s:g}; lower h, or "
                             "use policy=reject")
        self._parts = self.micro_batches if preempt else 1
        self._late = self.h if preempt else float("inf")
        self.rule = WorkerRule(push="every_step", wait="model", adopt="replace",
                               every=self._parts, micro_batches=self._parts)
        self.version = 0  # commits
        self._start = 0  # version of the store before them; above 0 in a resumed run
        # Worker that was not directed since its grant -> the granted version, oldest first.
        self._granted: OrderedDict[int, int] = OrderedDict()

    def join(self, worker: int, now: float) -> list[Action]:
        self._granted[worker] = self.version
        return super().join(worker, now)

    def leave(self, worker: int, now: float) -> list[Action]:
        self._granted.pop(worker, None)
        return super().leave(worker, now)

    def push(self, push: Push, now: float) -> list[Action]:
        n = len(self.active)
        self._start = max(self._start, push.base_version - self.version)
        lag = self._start + self.version - push.base_version
        self._granted.pop(push.worker, None)
        if lag > self.s * n:
            actions: list[Action] = [Reject(push, "stale")]
        else:
            self.version += 1
            shrink = 1 + lag if self.scale == "inverse" else 1
            actions = [Accept(push, 1 / (n * self._parts * shrink)), Commit(), *self._preempt(n)]
        self._granted[push.worker] = self.version
        return [*actions, Grant(push.worker)]

    def _preempt(self, n: int) -> list[Action]:
        """Direct the workers with an old version to push."""
        orders: list[Action] = []
        held = self._granted
        while held and self.version - next(iter(held.values())) >= self._late * n:
            worker, _ = held.popitem(last=False)
            orders.append(Direct(worker, cut=True))
        return orders
