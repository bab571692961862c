"""ESync: local steps until the slowest worker arrives (Li et al., IEEE TSC 2022)."""

from wbsp.sync.base import About, Action, Direct, Option, WorkerRule
from wbsp.sync.bsp import BSP
from wbsp.sync.meter import SlowestMeter


class ESync(BSP):
    """BSP in which a fast worker fills its waiting time with local steps.

        worker: step; ask. Continue? the next step. Cut? push; wait for the next version; x = W
        server: i asks at `now`, its step took c_i, s is the slowest worker that has asked:
                    cut, if i = s, or s was directed to cut in this round,
                            or now + c_i + epsilon > arrival_s; else continue
                    arrival_s = max(end of its last step, begin of the round) + c_s
                    (a round begins with the first step that any worker makes in it)
                i pushes: accept(p, 1/N); all active workers have pushed: commit, grant all

    Differs from local SGD in that tau is not chosen: each worker makes as many steps as end before
    the slowest worker's one. With equal speeds it is BSP.

    Source: Li, Zhou, Zhou, Yu, Xu, Sun, "ESync: Accelerating intra-domain federated learning in
    heterogeneous data centers", IEEE TSC 15(4), 2022, doi 10.1109/TSC.2020.3044043 [paper preprint,
    code]. c is the last step's time [code]. There a worker asks before its step, and the state
    server counts a round from each worker's own begin, and lets the others continue until the
    slowest has begun; here it asks after its step, and the round begins for all with the first step
    made in it [ours]: one message a step less. The code's epsilon is 0.5 s; here it is 0, since
    steps may be shorter than that [ours].
    """

    name = "esync"
    about = About(
        bound="no update is from before the newest version",
        waits="for the slowest, less than one own step",
        traffic="N pushes and N fetches a version; a question a step",
        source="Li et al., IEEE TSC 2022",
        certainty="from preprint and code; asked after a step in place of before: ours")
    rule = WorkerRule(push="on_query", wait="model", adopt="replace")
    OPTIONS = {"epsilon": Option(0.0, "seconds by which a further step must end before the slowest "
                                      "worker arrives", low=0)}

    epsilon: float

    def __init__(self, **options: object):
        super().__init__(**options)
        self.meter = SlowestMeter(smoothing=1.0)  # of the workers that have asked
        self._last: dict[int, tuple[float, float]] = {}  # worker -> (seconds, end) of its last step
        self._cut: set[int] = set()  # workers directed to cut in this round
        self._begin = 0.0  # of the round
        self._fresh = True  # no worker has asked in this round

    def leave(self, worker: int, now: float) -> list[Action]:
        self.meter.leave(worker)
        self._last.pop(worker, None)
        self._cut.discard(worker)
        return super().leave(worker, now)

    def on_commit(self, now: float) -> None:
        self._cut.clear()
        self._begin, self._fresh = now, True

    def query(self, worker: int, steps: int, seconds: float, now: float) -> list[Action]:
        if worker not in self._last:
            self.meter.join(worker)
        self.meter.update(worker, seconds)
        self._last[worker] = seconds, now
        if self._fresh and steps == 1:  # the version has travelled since the commit
            self._begin, self._fresh = max(self._begin, now - seconds), False
        slowest = self.meter.slowest
        assert slowest is not None  # the worker that asks has a measurement
        slow_seconds, end = self._last[slowest]
        arrival = max(end, self._begin) + slow_seconds
        cut = (worker == slowest or slowest in self._cut
               or now + seconds + self.epsilon > arrival)
        if cut:
            self._cut.add(worker)
        return [Direct(worker, cut=cut)]
