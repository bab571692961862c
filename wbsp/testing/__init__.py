"""Properties of a synchronization model, checked on random clusters in virtual time.

    from wbsp.testing import laws

    test_laws = laws(lambda: KAsync(k=2))

is a whole test for pytest: hypothesis draws some hundred small clusters (slow and fast workers and
links, workers that are late, are lost, return or leave), each runs to its end under a new model,
and the smallest cluster in which a law is broken is reported. Needs hypothesis: `pip install
hypothesis`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wbsp.core.messages import Ack, Outgoing
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.nodes.worker import Observer
from wbsp.simulate.world.machine import Incarnation, Machine, StepTime, trace
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync.base import Push, SyncModel
from wbsp.testing.once import Pushes

__all__ = ["laws"]

INF = float("inf")
SIZE = 3  # floats of the trained vector
MAX_EVENTS = 20_000  # of a run that comes to its end

INCARNATIONS = [
    (Incarnation(),), (Incarnation(),), (Incarnation(),),
    (Incarnation(2.0),),  # is late
    (Incarnation(0.0, 5.0),),  # is lost
    (Incarnation(0.0, 4.0), Incarnation(4.25)),  # returns at once
    (Incarnation(0.0, 3.5), Incarnation(6.0, 9.0), Incarnation(9.5)),
    (Incarnation(0.0, 4.5, lost=False),),  # leaves cleanly
    (Incarnation(3.0, 7.0, lost=False), Incarnation(12.0)),
]
# All values of each kind, the simplest first: one draw in place of one for each value saves a third
# of the time of these tests. The strategies are created here once, since hypothesis hashes all
# values of each strategy that it has not seen before.
RATES = INF, 1.0, 4.0
STEPS = st.sampled_from([
    list(times) for n in (1, 2, 3) for times in product((1.0, 0.5, 1.25, 2.0, 4.0), repeat=n)
    for _ in range(5 ** (3 - n))])  # as many of each length
MACHINES = st.sampled_from([
    {"latency": latency, "up": up, "down": down, "incarnations": incarnations}
    for latency, up, down, incarnations in product((0.0, 0.25, 1.0), RATES, RATES, INCARNATIONS)])
SETTINGS = st.sampled_from([
    {"model_bytes": size, "server": ServerSpec(ingress, egress, apply, detect)}
    for size, ingress, egress, apply, detect
    in product((0.0, 1.0, 3.0), RATES, RATES, (0.0, 0.125), (0.0, 0.75))])
RESEND = st.sampled_from([
    flags for n in (1, 2, 3, 4) for flags in product((False, True), repeat=n)])
EMPTY = st.sampled_from([0.0, 0.0, 0.0, 0.25, 0.75])  # part of the steps that train no example


class Plan(NamedTuple):
    """A random cluster.

    It has the arguments of `Cluster`, which pushes are sent twice, whether the model receives
    norms, and the part of the steps that train no example.
    """

    traces: list[list[float]]
    workers: list[dict[str, Any]]
    settings: dict[str, Any]
    resend: tuple[bool, ...]
    norms: bool
    empty: float = 0.0


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw 1 to 5 workers. Values come from coarse grids, so that ties are common.

    Worker 0 always stays. No worker is lost before all have joined.
    """
    n = draw(st.integers(1, 5))
    workers = [draw(MACHINES) for _ in range(n)]
    workers[0] = workers[0] | {"incarnations": (Incarnation(),)}
    return Plan([draw(STEPS) for _ in range(n)], workers,
                draw(SETTINGS) | {"stop_samples": draw(st.integers(1, 6 * n))}, draw(RESEND),
                draw(st.booleans()), draw(EMPTY))


class IntegerWorkload:
    """Workers whose every step moves x by a random multiple of 60: sums of updates are exact.

    A step counts one sample, whatever size the server directed; one that trains no example counts
    none, and moves nothing.
    """

    batch, sgd, least = 1, False, 1
    statistics: Sequence[slice] = ()

    def __init__(self, workers: int, empty: float = 0.0):
        """`empty`: part of the steps that train no example."""
        self._empty = empty
        self._draws = [np.random.default_rng(worker) for worker in range(workers)]
        self.x = [self.initial() for _ in range(workers)]
        self.anchor = [self.initial() for _ in range(workers)]
        self.progress = [self.initial() for _ in range(workers)]  # sum of all steps

    def initial(self) -> np.ndarray:
        return np.zeros(SIZE, np.float32)

    def step(self, worker: int, samples: int | None = None, start: int | None = None,
             part: float = 1.0) -> tuple[int, float]:
        if self._empty and self._draws[worker].random() < self._empty:
            return 0, 0.0
        move = (60 * self._draws[worker].integers(-4, 5, SIZE)).astype(np.float32)
        self.x[worker] = self.x[worker] + move
        self.progress[worker] += move
        return 1, 0.0

    def cut(self, worker: int) -> np.ndarray:
        update: np.ndarray = self.x[worker] - self.anchor[worker]
        self.anchor[worker] = self.x[worker]
        return update

    def adopt(self, worker: int, vector: np.ndarray, how: str) -> None:
        uncut = self.x[worker] - self.anchor[worker]
        self.x[worker] = vector + uncut if how == "rebase" else vector
        self.anchor[worker] = vector


class Laws(Observer):
    """One run of a plan under a model, checked against the laws of every run.

    - The run ends: no worker waits for ever, and nothing runs for ever.
    - W_v = W_0 + sum of weight * update over the accepted pushes of the versions 1..v.
    - Every update of a worker that is not lost arrives once, in order, and has one answer.
    - All workers that adopt version v adopt the same bytes, and versions never go down.
    - The model receives the norm of each push and of the sum of each version, in order; or None.

    This object keeps its own books: it shares no state with the model, the engine or the store.
    """

    def __init__(self, plan: Plan, model: SyncModel):
        self.model = model
        self.workload = IntegerWorkload(len(plan.workers), plan.empty)
        workers = [Machine(self._timed(index, trace(times)), **kwargs)
                   for index, (times, kwargs) in enumerate(zip(plan.traces, plan.workers,
                                                               strict=True))]
        self.cluster = Cluster(model, workers, self.workload, log=self.log, observer=self,
                               **plan.settings)
        self.pushes = [Pushes(f"worker {index}") for index in range(len(workers))]
        self.joining: set[int] = set()  # workers that have not yet adopted their first version
        self.lossy: set[int] = set()  # workers that were lost
        self.update = np.zeros(SIZE)  # of the newest push
        self.expect = np.zeros(SIZE)  # the newest version, in float64
        self.pending = np.zeros(SIZE)
        self.bytes = {0: self.workload.initial().tobytes()}  # version -> its bytes
        self.held = [-1] * len(workers)  # newest adopted version
        self.norms: list[float | None] = []  # of the version's sums, beginning with version 1
        self._heard = 0  # newest version whose norm the model has received
        engine = self.cluster.engine
        self._push, self._leave, self._adopt = engine.push, engine.leave, self.workload.adopt
        self._committed, self._knows = model.committed, plan.norms
        vars(engine).update(push=self.push, leave=self.leave)
        vars(model).update(committed=self.hear_norm)
        if not plan.norms:
            vars(engine).update(norm2=lambda square: None)
        vars(self.workload).update(adopt=self._check_bytes)

    def run(self) -> None:
        """Run to the end. Raises AssertionError if a law is broken."""
        self.cluster.run()
        cluster, engine = self.cluster, self.cluster.engine
        assert engine.done and cluster.ended is not None, "the run did not reach its end"
        assert engine.samples >= engine.stop_samples
        assert not engine.active and engine.store.accepted == 0
        assert self.equal(engine.store.latest.vector), "conservation, at the end"
        for worker, (pushes, report) in enumerate(zip(self.pushes, cluster.reports, strict=True)):
            pushes.check()
            assert engine.ledger.next_seq(worker) == len(pushes.made)
            if worker in self.lossy:
                continue  # what a lost worker had not delivered is lost with it
            member = engine.members.get(worker)
            assert report.steps == (member.steps if member else 0)
            received = sum(pushes.made.values(), self.workload.initial())
            assert np.array_equal(self.whole(received), self.workload.progress[worker])

    # What the server receives.

    def push(self, push: Push, update: Any, now: float, fetch: int = 0) -> list[Outgoing]:
        """Record an update that reaches the engine."""
        worker = push.worker
        assert push.steps >= 1 and push.samples >= 0 and push.seconds > 0
        self.update = update.copy()
        self.pushes[worker].make(push.seq, self.update)
        outgoing = self._push(push, update, now, fetch)
        answers = [(to, message) for to, message in outgoing if isinstance(message, Ack)]
        assert [(to, answer.seq) for to, answer in answers] == [(worker, push.seq)]
        assert answers[0][1].accepted or answers[0][1].reason
        return outgoing

    def hear_norm(self, version: int, norm2: float | None, now: float) -> None:
        """Check the norm of a version that the engine gives the model."""
        self._heard += 1
        assert version == self._heard, "the norm of a version was skipped or told twice"
        expected = self.norms[version - 1]
        if norm2 is None or expected is None:
            assert norm2 is expected
        else:
            assert np.isclose(norm2, expected, rtol=1e-3, atol=1e-2)
        self._committed(version, norm2, now)

    def leave(self, worker: int, now: float, reason: str, finished: bool = False) -> list[Outgoing]:
        """Record a worker's end that reaches the engine."""
        if not finished:
            self.lossy.add(worker)
        return self._leave(worker, now, reason, finished)

    def log(self, now: float, kind: str, **f: Any) -> None:
        """Record an action of the engine."""
        if kind == "join":
            self.joining.add(f["worker"])
        elif kind == "reject":
            self.pushes[f["worker"]].answer(f["seq"], 0.0)
        elif kind == "accept":
            self.pushes[f["worker"]].answer(f["seq"], f["weight"])
            norm2, square = f.get("norm2"), float(self.update.astype(float) @ self.update)
            assert (norm2 is None) != self._knows
            assert norm2 is None or np.isclose(norm2, square, rtol=1e-4, atol=1e-6)
            self.pending += self.part(f["weight"] * self.update.astype(float))
        elif kind == "commit":
            snapshot = self.cluster.engine.store.latest
            self.norms.append(float(self.pending @ self.pending) if self._knows else None)
            self.expect, self.pending = self.expect + self.pending, np.zeros(SIZE)
            assert self.equal(snapshot.vector), "conservation"
            assert snapshot.version == f["version"] == len(self.bytes)
            if snapshot.vector is not None:
                self.bytes[snapshot.version] = snapshot.vector.tobytes()

    def part(self, weighted: np.ndarray) -> np.ndarray:
        """Return what a weighted update adds to the next version, in float64."""
        return weighted

    def equal(self, vector: np.ndarray | None) -> bool:
        """Return whether the model `vector` is the expected one."""
        return vector is not None and np.allclose(vector, self.expect, rtol=1e-5, atol=1e-2)

    def whole(self, total: np.ndarray) -> np.ndarray:
        """Return a sum of updates without the rounding errors of float32: a multiple of 60."""
        return 60 * np.rint(total / 60)

    # What the workers do.

    def _timed(self, worker: int, seconds: StepTime) -> StepTime:
        def step_time(index: int, now: float) -> float:
            assert self.cluster.clock.events < MAX_EVENTS, "the run does not end"
            self.starts(worker, now)
            return seconds(index, now)
        return step_time

    def starts(self, worker: int, now: float) -> None:
        """Record that a worker starts a step."""

    def adopt(self, worker: int, now: float, version: int, how: str) -> None:
        assert version >= self.held[worker], \
            f"worker {worker} went from version {self.held[worker]} to {version}"
        self.joining.discard(worker)
        self.held[worker] = version

    def _check_bytes(self, worker: int, vector: np.ndarray, how: str) -> None:
        assert vector.tobytes() == self.bytes[self.held[worker]]
        self._adopt(worker, vector, how)


def laws(make: Callable[[], SyncModel], examples: int = 500) -> Callable[[], None]:
    """Return a test of a synchronization model, for pytest, that runs random clusters.

    Args:
        make: returns a new model; each cluster gets one.
        examples: number of clusters.
    """
    @settings(max_examples=examples, deadline=None)
    @given(plans())
    def test(plan: Plan) -> None:
        Laws(plan, make()).run()
    return test
