"""Shares of workers in a step of all, as weights of their updates: by work, or by time."""

from __future__ import annotations

from wbsp.sync.base import Push


class Shares:
    """The share of each active worker, in proportion to its measurement.

    A worker without a measurement has 1/N, and the others share the rest; so has one that measures
    0, because its next push, with weight 0, would be lost. The shares of the active workers sum to
    one, and are exactly 1/N where all measurements are equal.
    """

    def __init__(self) -> None:
        self._known: dict[int, float | None] = {}  # active worker -> measurement; None: not yet
        self._share: dict[int, float] | None = None  # None: computed at the next `of`

    def join(self, worker: int, now: float) -> None:
        self._learn(worker, None)

    def leave(self, worker: int) -> None:
        del self._known[worker]
        self._share = None

    def count(self, push: Push, now: float) -> None:
        """Note a push that is about to be accepted."""

    def end_round(self) -> None:
        """Note that a version of all workers was made."""

    def of(self, worker: int) -> float:
        """Return the share of an active worker, 0..1."""
        if self._share is None:
            self._share = self._shares()
        return self._share[worker]

    def _learn(self, worker: int, value: float | None) -> None:
        self._known[worker] = value
        self._share = None

    def _shares(self) -> dict[int, float]:
        known = {worker: n for worker, n in self._known.items() if n}
        total, everyone = sum(known.values()), len(self._known)
        shares = dict.fromkeys(self._known, 1 / everyone)
        if len(set(known.values())) > 1:
            part = len(known) / everyone  # of the whole, for those that are known
            shares |= {worker: part * n / total for worker, n in known.items()}
        return shares


class WorkShares(Shares):
    """Each active worker's share in the samples of a round, smoothed over the rounds [ours].

    n = newest * (samples of the newest round) + (1 - newest) * (n before), or the samples alone in
    a worker's first whole round with any; share = n / (sum of n over all active workers).

    An active worker that pushes nothing in a round (trigger=slowest allows that) counts with zero
    samples: its share falls, and rises again with its next pushes. A worker that rejoins starts
    without a measurement. Shares change at the end of a round and when a worker joins or leaves, so
    that all pushes of a worker in one round have equal weights.
    """

    def __init__(self, newest: float = 0.7):
        """Start without measurements.

        Args:
            newest: weight of the newest round in the average, 0..1.
        """
        super().__init__()
        self._newest = newest
        # samples in this round, of the workers that are active since its first push
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
            average = new if not old else self._newest * new + (1 - self._newest) * old
            self._learn(worker, average)
        self._counted, self._begun = dict.fromkeys(self._known, 0), False


class TimeShares(Shares):
    """Each active worker's share in the seconds that all take for a step each.

    c = seconds from the worker's push before to this one / steps in it, as a moving average with
    weight `newest` for the newest; share = c / (sum of c over all active workers). Waiting counts.
    share / c is the rate at which a worker moves the model; it is equal for all workers, however
    often they push.

    Sources: Mahran, Maranjyan, Richtarik, "Rescaled asynchronous SGD: optimal distributed
    optimization under data and system heterogeneity", arXiv 2605.13434, 2026: step sizes in
    proportion to the workers' times, so that all have the same rate in the sum [abstract]; and
    Malenia SGD (Tyurin, Richtarik, NeurIPS 2023): a version is the mean over the workers of each
    one's mean gradient [memory], here by earlier counts, because a weight is final when its update
    is accepted. That the shares sum to one, so that equal workers weigh 1/N, and the average are
    [ours].
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
    """Return the shares for an option `weight`, "work" or "time"; None for "equal": all 1/N."""
    return {"work": WorkShares, "time": TimeShares}[weight]() if weight != "equal" else None
