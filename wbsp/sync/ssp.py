"""SSP: stale synchronous parallel (Ho et al., NIPS 2013)."""

from collections import Counter

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

    A clock counts pushes. A worker that joins starts at the lowest clock, so that it delays no
    other worker [ours]; the weight 1/N is ours, too.

    refresh=published is the rule of the published runners, whose "bsp", "ssp" and "asp" are this
    with s = 1, 40 and 1000: a worker continues with its own model until it is s steps beyond the
    lowest clock that came with its newest model [ADSP's code; that WBSP's runners share it is
    inferred].

        worker: step; push; wait for the acknowledgement, and for a version if directed to; x = W
        server: accept(p, 1/N), commit; clock_p += 1
                clock_p - told_p >= s? hold p until clock_p - min clock < s;
                                       then grant p, told_p = min clock

    The slowest worker fetches, too, because it knows only the clock that came with its model. The
    first version of a worker that joins carries the lowest clock of that moment [ours; there all
    begin at 0].
    """

    name = "ssp"
    about = About(
        bound="lead of a worker over the slowest at most s steps",
        waits="a worker at the bound, for the slowest",
        traffic="a push and a fetch a step (published: a fetch every s steps beyond the granted "
                "lowest clock)",
        source="Ho et al., NIPS 2013",
        certainty="exact but for the weight 1/N, ours; published: ADSP's code, WBSP's inferred")
    rule = WorkerRule(push="every_step", wait="model", adopt="replace")
    OPTIONS = {
        "s": Option(40, "how many steps a worker may be ahead of the slowest", low=0),
        "refresh": Option("push", "a model after every push, or by the published runners' rule",
                          choices=("push", "published")),
    }

    s: int
    refresh: str

    def __init__(self, **options: object):
        super().__init__(**options)
        if self.refresh == "published":
            if not self.s:
                raise ValueError(f"{self.name}: option s=0 is below 1; with refresh=published "
                                 "no worker would ever be granted a newer model")
            self.rule = WorkerRule(push="every_step", wait="ack", adopt="replace")
        self.clock: dict[int, int] = {}
        self.told: dict[int, int] = {}  # active worker -> the lowest clock at its newest grant
        self._at: Counter[int] = Counter()  # clock -> active workers there; keeps min O(1)
        self._held: dict[int, list[int]] = {}  # clock -> workers held there
        self._min = 0

    def join(self, worker: int, now: float) -> list[Action]:
        self.clock[worker] = self.told[worker] = self._min
        self._at[self._min] += 1
        return super().join(worker, now)

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        clock = self.clock.pop(worker)
        del self.told[worker]
        self._at[clock] -= 1
        held = self._held.get(clock, [])
        if worker in held:
            held.remove(worker)
        return self._release()

    def push(self, push: Push, now: float) -> list[Action]:
        worker = push.worker
        self._advance(worker, now)
        actions = [Accept(push, self.weight_of(push)), Commit(), *self._release()]
        if self._keeps_its_own(worker):
            return actions
        if self._may_continue(worker):
            return [*actions, self._grant(worker)]
        self._held.setdefault(self.clock[worker], []).append(worker)
        return actions if self.refresh == "push" else [*actions, Direct(worker, hold=True)]

    def _advance(self, worker: int, now: float) -> None:
        """Count the push on the worker's clock."""
        clock = self.clock[worker] = self.clock[worker] + 1
        self._at[clock - 1] -= 1
        self._at[clock] += 1

    def _may_continue(self, worker: int) -> bool:
        """Return whether the worker, which has just pushed, is within its bound."""
        return self.clock[worker] - self._min <= self._lead

    @property
    def _lead(self) -> int:
        """Return how many steps ahead of the slowest a worker may be to receive a grant."""
        return self.s - (self.refresh == "published")

    def _keeps_its_own(self, worker: int) -> bool:
        """Return whether the worker, which has just pushed, continues without a newer model."""
        return self.refresh == "published" and self.clock[worker] - self.told[worker] < self.s

    def _grant(self, worker: int) -> Grant:
        self.told[worker] = self._min
        return Grant(worker)

    def _release(self) -> list[Action]:
        """Advance the lowest clock and grant the workers that it held back."""
        freed: list[int] = []
        while self.active and not self._at[self._min]:
            del self._at[self._min]
            self._min += 1
            freed += self._held.pop(self._min + self._lead, [])
        return [self._grant(worker) for worker in freed]
