"""Shares of workers in a step of all, as weights of their updates: by work, or by time."""

from __future__ import annotations

from wbsp.sync.base import Push


class Shares:
    """The share of each active worker, in proportion to what is known of it.

    A worker of which nothing is known yet has 1/N, and the others share the rest. The shares of the
    active workers sum to one, and are exactly 1/N where all are equal.
    """

    def __init__(self) -> None:
        self._known: dict[int, float | None] = {}  # active worker -> as above; None: not yet
        self._share: dict[int, float] | None = None  # None: to be computed when asked for

    def join(self, worker: int, now: float) -> None:
        self._learn(worker, None)

    def leave(self, worker: int) -> None:
        del self._known[worker]
        self._share = None

    def count(self, push: Push, now: float) -> None:
        """A push has arrived, which is about to be accepted."""

    def end_round(self) -> None:
        """A version of all workers was made."""

    def of(self, worker: int) -> float:
        """The share of an active worker, 0..1."""
        if self._share is None:
            self._share = self._shares()
        return self._share[worker]

    def _learn(self, worker: int, value: float | None) -> None:
        self._known[worker] = value
        self._share = None

    def _shares(self) -> dict[int, float]:
        known = {worker: n for worker, n in self._known.items() if n is not None}
        total, everyone = sum(known.values()), len(self._known)
        shares = dict.fromkeys(self._known, 1 / everyone)
        if total and len(set(known.values())) > 1:
            part = len(known) / everyone  # of the whole, for those that are known
            shares |= {worker: part * n / total for worker, n in known.items()}
        return shares


class WorkShares(Shares):
    """Each active worker's share in the samples of a round, smoothed over the rounds [ours].

    n = newest * (samples of the newest round) + (1 - newest) * (n before), or the samples alone in
    a worker's first whole round; share = n / (sum of n over all active workers).

    A worker that is here and pushes nothing in a round (trigger=slowest allows that) has made no
    work in it: its share falls, and rises again with its next pushes. One that rejoins starts
    again. Shares change at the end of a round and when a worker joins or leaves, so that all pushes
    of one round weigh alike.
    """

    def __init__(self, newest: float = 0.7):
        """`newest`: weight of the newest round in the average, 0..1."""
        super().__init__()
        self._newest = newest
        # samples in this round, of the workers that are here since its first push
        self._counted: dict[int, int] = {}
        self._begun = False  # a push was accepted in this round

    def join(self, worker: int, now: float) -> None:
        super().join(worker, now)
        if not self._begun:
            self._counted[worker] = 0

    def leave(self, worker: int) -> None:
        super().leave(worker)
        self._counted.pop(worker, None)

    def count(self, push: Push, now: float) -> None:
        self._begun = True
        if push.worker in self._counted:
            self._counted[push.worker] += push.samples

    def end_round(self) -> None:
        for worker, new in self._counted.items():
            old = self._known[worker]
            average = new if old is None else self._newest * new + (1 - self._newest) * old
            self._learn(worker, average)
        self._counted, self._begun = dict.fromkeys(self._known, 0), False


class TimeShares(Shares):
    """Each active worker's share in the seconds that all take for a step each.

    c = seconds from the worker's push before to this one / steps in it, as an average, `newest` of
    it the newest; share = c / (sum of c over all active workers). Waiting counts: share / c is how
    fast a worker moves the model, and that is the same for all, however often they push.

    Sources: Mahran, Maranjyan, Richtarik, "Rescaled asynchronous SGD: optimal distributed
    optimization under data and system heterogeneity", arXiv 2605.13434, 2026: step sizes in
    proportion to the workers' times, so that all have the same rate in the sum [abstract]; and
    Malenia SGD (Tyurin, Richtarik, NeurIPS 2023): a version is the mean over the workers of each
    one's mean gradient [memory], here by the counts of before, since a weight is final when its
    update is accepted. That the shares sum to one, so that equal workers weigh 1/N, and the average
    are [ours].
    """

    def __init__(self, newest: float = 0.3):
        super().__init__()
        self._newest = newest
        self._since: dict[int, float] = {}  # active worker -> its newest push, or its join

    def join(self, worker: int, now: float) -> None:
        super().join(worker, now)
        self._since[worker] = now

    def leave(self, worker: int) -> None:
        super().leave(worker)
        del self._since[worker]

    def count(self, push: Push, now: float) -> None:
        new = (now - self._since[push.worker]) / push.steps
        old = self._known[push.worker]
        self._learn(push.worker, new if old is None else old + self._newest * (new - old))
        self._since[push.worker] = now


def shares_by(weight: str) -> Shares | None:
    """For an option `weight`: "work" or "time"; None for "equal", all having 1/N."""
    return {"work": WorkShares, "time": TimeShares}[weight]() if weight != "equal" else None
