"""m-synchronous SGD: K-sync that chooses how many workers to wait for.

Source: Begunov, Tyurin, "Do we need asynchronous SGD? On the near-optimality of synchronous
methods", arXiv 2602.03802, 2026 [abstract]. The rule for m follows the bound of Tyurin and
Richtarik [derived].
"""

from collections.abc import Sequence

from wbsp.sync.base import About, Action, Grant, Option, Push
from wbsp.sync.ksync import KSync
from wbsp.sync.meter import averaged


class MSync(KSync):
    """The first m workers of a round make the version; the others' updates are dropped.

        worker: step; push; wait for the newest version; x = W
        server: p computed from an older version than the newest? reject p, grant the pusher
                accept(p, 1/m); m workers have pushed in this round?
                commit, grant the workers that pushed; choose m for the next round

    The paper takes m as given [abstract]. Here it is the one with the least T(m) (1 + S / m), T(m)
    the m-th smallest time of a worker from its grant to its push, S the noise sigma^2 / eps in
    units of a worker's batch [derived]: a round of m lasts T(m), and 1 + S / m rounds are needed
    per unit of progress. For S >> N that is the highest throughput m / T(m), for S = 0 the fastest
    worker alone. Times are moving averages with weight 0.3 for the newest [ours]; until each active
    worker has one, a round waits for all [ours].

    Differs from KSync in that m takes the place of N - b, and follows the workers.
    """

    name = "msync"
    about = About(
        bound="no update is stale; those after the m-th of a round are rejected",
        waits="fast workers, for the m-th",
        traffic="a push and a fetch a step, N - m of N in vain",
        source="Begunov, Tyurin 2026",
        certainty="rule from the abstract; choice of m: derived")
    OPTIONS = {"s": Option(0.0, "noise of a worker's gradient, sigma^2 / eps; 0: N",
                           low=0)}

    b = 0
    s: float

    def __init__(self, **options: object):
        super().__init__(**options)
        self._m: int | None = None  # of this round; None: all workers
        self._since: dict[int, float] = {}  # worker -> time of its newest grant
        self._seconds: dict[int, float] = {}  # worker -> from a grant to its push, on average

    @property
    def needed(self) -> int:
        n = len(self.active)
        return max(1, n if self._m is None else min(self._m, n))

    def join(self, worker: int, now: float) -> list[Action]:
        return self._note(super().join(worker, now), now)

    def leave(self, worker: int, now: float) -> list[Action]:
        for known in (self._since, self._seconds):
            known.pop(worker, None)
        return self._note(super().leave(worker, now), now)

    def push(self, push: Push, now: float) -> list[Action]:
        worker = push.worker
        if (since := self._since.pop(worker, None)) is not None:
            self._seconds[worker] = averaged(self._seconds.get(worker), now - since)
        return self._note(super().push(push, now), now)

    def on_commit(self) -> None:
        known = len(self._seconds) == len(self.active)
        self._m = fastest(sorted(self._seconds.values()), self.s) if known else None

    def _note(self, actions: list[Action], now: float) -> list[Action]:
        self._since.update((action.worker, now) for action in actions if isinstance(action, Grant))
        return actions


def fastest(seconds: Sequence[float], noise: float) -> int:
    """Return the m that minimizes T(m) (1 + S / m); of equal ones the largest: it has least noise.

    Args:
        seconds: T(1) <= T(2) <= ... of all workers.
        noise: S; 0 means the number of workers.
    """
    s = noise or len(seconds)
    return min(range(len(seconds), 0, -1), key=lambda m: seconds[m - 1] * (1 + s / m), default=1)
