"""SSP: stale synchronous parallel (Ho et al., NIPS 2013)."""

from collections import Counter
from typing import Literal

from wbsp.sync.base import (
    About,
    Accept,
    Action,
    Commit,
    Direct,
    Grant,
    Option,
    Push,
    SyncModel,
    WorkerRule,
)


class SSP(SyncModel):
    """ASP in which no worker may start a step more than `s` steps ahead of the slowest.

        worker: step; push; wait for the newest version; x = W
        server: accept(p, 1/N), commit; clock_p += 1
                grant p as soon as clock_p - min clock <= s

    A clock counts pushes. A worker that joins starts at the lowest clock, so that it holds nobody
    back. With `lazy` a worker keeps its own model and fetches only when the bound has stopped it:
    the refresh of the published runners, whose "asp" is this with s = 1000 [derived from ADSP's
    code].
    """

    name = "ssp"
    about = About(
        bound="lead of a worker over the slowest at most s steps",
        waits="a worker at the bound, for the slowest",
        traffic="a push and a fetch a step (lazy: a fetch where the bound stops it)",
        source="Ho et al., NIPS 2013",
        certainty="exact; lazy derived from published code")
    OPTIONS = {
        "s": Option(40, "how many steps a worker may be ahead of the slowest", low=0),
        "lazy": Option(False, "fetch only when the bound stops the worker"),
    }

    s: int
    lazy: bool

    def __init__(self, **options):
        super().__init__(**options)
        wait: Literal["model", "ack"] = "ack" if self.lazy else "model"
        self.rule = WorkerRule(push="every_step", wait=wait, adopt="replace")
        self.clock: dict[int, int] = {}
        self._at: Counter[int] = Counter()  # clock -> active workers there; keeps min O(1)
        self._held: dict[int, list[int]] = {}  # clock -> workers held there
        self._min = 0

    def join(self, worker: int, now: float) -> list[Action]:
        self.clock[worker] = self._min
        self._at[self._min] += 1
        return super().join(worker, now)

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        clock = self.clock.pop(worker)
        self._at[clock] -= 1
        held = self._held.get(clock, [])
        if worker in held:
            held.remove(worker)
        return self._release()

    def push(self, push: Push, now: float) -> list[Action]:
        worker = push.worker
        self._advance(worker, now)
        actions = [Accept(push, self.weight_of(push)), Commit(), *self._release()]
        if not self._may_go_on(worker):
            self._held.setdefault(self.clock[worker], []).append(worker)
            if self.lazy:
                actions.append(Direct(worker, hold=True))
        elif not self.lazy:
            actions.append(Grant(worker))
        return actions

    def _advance(self, worker: int, now: float) -> None:
        """Count the push on the worker's clock."""
        clock = self.clock[worker] = self.clock[worker] + 1
        self._at[clock - 1] -= 1
        self._at[clock] += 1

    def _may_go_on(self, worker: int) -> bool:
        """True unless the worker, which has just pushed, is beyond its bound."""
        return self.clock[worker] - self._min <= self.s

    def _release(self) -> list[Action]:
        """Advance the lowest clock and grant the workers that it held back."""
        freed: list[int] = []
        while self.active and not self._at[self._min]:
            del self._at[self._min]
            self._min += 1
            freed += self._held.pop(self._min + self.s, [])
        return [Grant(worker) for worker in freed]
