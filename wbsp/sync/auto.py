"""The default model: no worker waits, and slow workers do not delay versions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wbsp.sync.base import About, Accept, Action, Commit, Grant, Option, Push, SyncModel, WorkerRule
from wbsp.sync.batch import Batches
from wbsp.sync.meter import averaged

MOMENTUM = 0.95  # of the outer step
OUTLAST = 10  # times N / sqrt(k): versions that it lasts at least, if workers have momentum
MOST = 8  # times the mean update that the model moves; more was not measured


class Auto(SyncModel):
    """No worker waits; a version is made when all but much slower workers have pushed [ours].

        worker: a version W has arrived? at the step's end: push x - anchor; x = W + (x - anchor)
        server: accept(p, 1/N)
                all workers have pushed since the last commit, but for slow ones? commit; grant all

    A worker pushes and fetches once a version and computes meanwhile, so it makes as many steps
    between two pushes as its transfers last: no number of local steps has to be chosen. WBSP waits
    with each version for its slowest worker; here a slow worker pushes when it can, into the next
    version, and delays no version. A worker is slow if it trains fewer than 1 / `slow` of the
    examples/s of the typical worker: the one at which the workers, from the fastest on, reach half
    of all examples/s. It is also slow if the others would have waited `slow` times the usual
    seconds of a version for its next push.

    The outer step is quasi-hyperbolic momentum (Ma and Yarats 2019). With rate N the model moves by
    the sum of all updates over time, as if one machine had computed all steps, and a lone worker
    trains as without a server. With nu = 1 - 1/N the mean update counts at once, and
    only once: in directions in which the workers reach their goal between two versions that is the
    mean of their models, although updates are a version old. The other N - 1 times come as
    momentum, over 20 versions, which average the gradients' noise. If the workers' optimizer has
    momentum, too, it is outlasted: over 10 N / sqrt(k) versions where an update has k steps.
    Nesterov's momentum with the same sum amplifies that noise five times as much, and diverges
    with momentum on the workers (docs/explanation/outer-step.md). N are the workers that have
    pushed into the version.

    Where the workers share the run's data, each trains smaller batches than the user's, so that all
    together average about as many examples as one machine does, and the run has as many steps: see
    `wbsp.sync.batch.wanted`. The worker's learning rate goes with its batch.
    """

    name = "auto"
    about = About(
        bound="an update is computed from one of the two newest versions, except a slow worker's",
        waits="no worker, ever",
        traffic="at most N pushes and N fetches a version, in int8",
        source="ours",
        certainty="ours; the parts are NBSync's exchange and QHM's momentum")
    rule = WorkerRule(push="on_adopt", wait="never", adopt="rebase")
    OPTIONS = {"slow": Option(4.0, "a worker this many times slower, or later, than most does not "
                              "delay versions", low=1),
               "batch": Option("split", "of workers that share their data: a part of the script's, "
                               "by their number and times, or the script's own",
                               choices=("split", "keep"))}
    outer = "qhm"
    wire = "int8"

    slow: float
    batch: str

    def __init__(self, **options: object):
        super().__init__(**options)
        self.rule = replace(self.rule, sizes=self.batch == "split")
        self._batches = Batches()
        self._width = 1.0  # the sum of all speeds, in those of the fastest
        self._since: dict[int, float] = {}  # active worker -> when it joined, or pushed last
        self._speed: dict[int, float] = {}  # the same -> examples/s, once it has pushed
        self._late: set[int] = set()  # left out of a version, and no push since
        self._missing: set[int] = set()  # whose pushes the next version needs
        self._begun = 0.0  # when the newest version was made
        self._pushed = False  # some worker has, since then
        self._usual_seconds: float | None = None  # between two versions

    @classmethod
    def outer_options(cls, workers: int) -> Mapping[str, Any]:
        rate = min(MOST, workers)
        return {"rate": float(rate), "momentum": MOMENTUM, "nu": 1 - 1 / rate,
                "outlast": float(OUTLAST * rate)}

    def join(self, worker: int, now: float) -> list[Action]:
        if not self.active:
            self._begun = now
        self._since[worker] = now
        self._missing.add(worker)
        return super().join(worker, now)

    def leave(self, worker: int, now: float) -> list[Action]:
        super().leave(worker, now)
        del self._since[worker]
        self._speed.pop(worker, None)
        self._late.discard(worker)
        self._missing.discard(worker)
        self._batches.leave(worker)
        return self._commit_if_due(now)

    def push(self, push: Push, now: float) -> list[Action]:
        worker = push.worker
        speed = push.samples / max(now - self._since[worker], 1e-9)
        self._since[worker] = now
        self._speed[worker] = averaged(self._speed.get(worker), speed)
        self._late.discard(worker)
        self._missing.discard(worker)
        self._pushed = True
        too_late = self._too_late()
        self.alarm = None if too_late is None else max(now, too_late)
        return [Accept(push, self.weight_of(push)), *self._batches.pushed(push, self._width),
                *self._commit_if_due(now)]

    def tick(self, now: float) -> list[Action]:
        too_late = self._too_late()
        if too_late is None or now < too_late:  # it joined meanwhile
            self.alarm = too_late
            return []
        self._late |= self._missing
        return self._commit(now)

    def _commit_if_due(self, now: float) -> list[Action]:
        return self._commit(now) if self._pushed and not self._missing else []

    def _commit(self, now: float) -> list[Action]:
        self._usual_seconds = averaged(self._usual_seconds, now - self._begun)
        self._begun, self._pushed, self.alarm = now, False, None
        self._width = sum(self._speed.values()) / (max(self._speed.values(), default=0.0) or 1.0)
        least = self._typical_speed() / self.slow
        self._missing = {worker for worker in self.active - self._late
                         if self._speed.get(worker, least) >= least}
        return [Commit(), *map(Grant, sorted(self.active))]

    def _too_late(self) -> float | None:
        """Return when the next version is made without those that are missing; None: never."""
        return (None if self._usual_seconds is None
                else self._begun + self.slow * self._usual_seconds)

    def _typical_speed(self) -> float:
        """Return the speed of the worker at which half of all is reached, fastest first."""
        left = sum(self._speed.values()) / 2
        for speed in sorted(self._speed.values(), reverse=True):
            left -= speed
            if left <= 0:
                return speed
        return 0.0
