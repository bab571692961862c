"""Shares of workers in the work of a round, as weights of their updates."""

from __future__ import annotations


class WorkShares:
    """Each active worker's share in the samples of a round, smoothed over the rounds [ours].

    n = newest * (samples of the newest round) + (1 - newest) * (n before), or the samples alone in
    a worker's first whole round; share = n / (sum of n over all active workers). A worker that has
    not been here for a whole round has 1/N, and the others share the rest. The shares of the active
    workers sum to one, and are exactly 1/N where all are equal.

    A worker that is here and pushes nothing in a round (trigger=slowest allows that) has made no
    work in it: its share falls, and rises again with its next pushes. One that comes back begins
    anew. Shares change at the end of a round and when a worker joins or leaves, so that all pushes
    of one round weigh alike.
    """

    def __init__(self, newest: float = 0.7):
        """`newest`: weight of the newest round in the average, 0..1."""
        self._newest = newest
        self._samples: dict[int, float | None] = {}  # worker -> n; None: not known yet
        # samples in this round, of the workers that are here since its first push
        self._counted: dict[int, int] = {}
        self._begun = False  # a push was accepted in this round
        self._share: dict[int, float] | None = None  # None: to be computed when asked for

    def join(self, worker: int) -> None:
        self._samples[worker] = None
        if not self._begun:
            self._counted[worker] = 0
        self._share = None

    def leave(self, worker: int) -> None:
        del self._samples[worker]
        self._counted.pop(worker, None)
        self._share = None

    def count(self, worker: int, samples: int) -> None:
        """A push of `samples` was accepted."""
        self._begun = True
        if worker in self._counted:
            self._counted[worker] += samples

    def end_round(self) -> None:
        """A version was made."""
        for worker, new in self._counted.items():
            old = self._samples[worker]
            average = new if old is None else self._newest * new + (1 - self._newest) * old
            self._samples[worker] = average
        self._counted, self._begun = dict.fromkeys(self._samples, 0), False
        self._share = None

    def of(self, worker: int) -> float:
        """The share of an active worker, 0..1."""
        if self._share is None:
            self._share = self._shares()
        return self._share[worker]

    def _shares(self) -> dict[int, float]:
        known = {worker: n for worker, n in self._samples.items() if n is not None}
        total, everyone = sum(known.values()), len(self._samples)
        shares = dict.fromkeys(self._samples, 1 / everyone)
        if total and len(set(known.values())) > 1:
            part = len(known) / everyone  # of the whole, for those that are known
            shares |= {worker: part * n / total for worker, n in known.items()}
        return shares
