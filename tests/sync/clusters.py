"""Random clusters in virtual time, and a witness who holds each run against the laws.

The witness sees every message that reaches the server and everything a worker does, and keeps its
own books: it shares no state with the model, the engine or the store. Updates are integers and
multiples of 60, so that update / N is an integer for up to five workers and sums are exact.
"""

from itertools import cycle, product
from typing import NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from wbsp.simulate.cluster import Cluster
from wbsp.simulate.machine import Incarnation, Machine, trace
from wbsp.simulate.worker import Observer

INF = float("inf")
SIZE = 3
MAX_EVENTS = 20_000

many = settings(max_examples=500, derandomize=True, deadline=None, database=None)

INCARNATIONS = [
    (Incarnation(),), (Incarnation(),), (Incarnation(),),
    (Incarnation(2.0),),  # comes late
    (Incarnation(0.0, 5.0),),  # is lost
    (Incarnation(0.0, 4.0), Incarnation(4.25)),  # returns at once
    (Incarnation(0.0, 3.5), Incarnation(6.0, 9.0), Incarnation(9.5)),
    (Incarnation(0.0, 4.5, lost=False),),  # leaves in good order
    (Incarnation(3.0, 7.0, lost=False), Incarnation(12.0)),
]


class Plan(NamedTuple):
    """A random cluster: what `Cluster` is made of, and which pushes are sent twice."""

    traces: list[list[float]]
    workers: list[dict]
    settings: dict
    resend: tuple[bool, ...]


# All there are of each, the simplest first: one draw in place of one per value saves a third of
# the time of these tests.
RATES = INF, 1.0, 4.0
STEPS = [list(times) for n in (1, 2, 3) for times in product((1.0, 0.5, 1.25, 2.0, 4.0), repeat=n)
         for _ in range(5 ** (3 - n))]  # as many of each length
MACHINES = [{"latency": latency, "up": up, "down": down, "incarnations": incarnations}
            for latency, up, down, incarnations
            in product((0.0, 0.25, 1.0), RATES, RATES, INCARNATIONS)]
SETTINGS = [{"model_bytes": size, "ingress": ingress, "egress": egress, "apply_seconds": apply,
             "detect_seconds": detect} for size, ingress, egress, apply, detect
            in product((0.0, 1.0, 3.0), RATES, RATES, (0.0, 0.125), (0.0, 0.75))]
RESEND = [flags for n in (1, 2, 3, 4) for flags in product((False, True), repeat=n)]


@st.composite
def plans(draw):
    """1 to 5 workers. Values come from coarse grids, so that ties are common.

    Worker 0 stays for good. Nobody is lost before everyone has come.
    """
    n = draw(st.integers(1, 5))
    workers = [draw(st.sampled_from(MACHINES)) for _ in range(n)]
    workers[0] = workers[0] | {"incarnations": (Incarnation(),)}
    return Plan([draw(st.sampled_from(STEPS)) for _ in range(n)], workers,
                draw(st.sampled_from(SETTINGS)) | {"stop_samples": draw(st.integers(1, 6 * n))},
                draw(st.sampled_from(RESEND)))


class IntegerWorkload:
    """Every step moves x by a random multiple of 60."""

    def __init__(self, workers: int):
        self._draws = [np.random.default_rng(worker) for worker in range(workers)]
        self.x = [self.initial() for _ in range(workers)]
        self.anchor = [self.initial() for _ in range(workers)]
        self.progress = [self.initial() for _ in range(workers)]  # sum of all steps

    def initial(self):
        return np.zeros(SIZE, np.float32)

    def step(self, worker, samples=None, start=None):
        move = (60 * self._draws[worker].integers(-4, 5, SIZE)).astype(np.float32)
        self.x[worker] = self.x[worker] + move
        self.progress[worker] += move
        return 1, 0.0

    def cut(self, worker):
        update = self.x[worker] - self.anchor[worker]
        self.anchor[worker] = self.x[worker]
        return update

    def adopt(self, worker, vector, how):
        uncut = self.x[worker] - self.anchor[worker]
        self.x[worker] = vector + uncut if how == "rebase" else vector
        self.anchor[worker] = vector


class Witness(Observer):
    """Runs a plan under a model and checks what holds for every model.

    judge(witness, effects, push) is called after every push, and with push=None after every leave
    that leaves somebody; it asserts the model's own rule.
    weight(push) is what an accepted push must weigh; default: 1 / active workers
    rejects:     the model may reject pushes (the judge says which)
    """

    def __init__(self, plan: Plan, model, judge=None, weight=None, rejects=False):
        self.model, self.judge, self.rejects = model, judge, rejects
        self.weight = weight or (lambda push: 1 / len(model.active))
        self.exact = weight is None  # 1/N of a multiple of 60 is a whole number, up to N = 5
        self.workload = IntegerWorkload(len(plan.workers))
        workers = [Machine(self._timed(index, trace(times)), **kwargs)
                   for index, (times, kwargs) in enumerate(zip(plan.traces, plan.workers,
                                                               strict=True))]
        self.cluster = Cluster(model, workers, self.workload, log=self.log, observer=self,
                               **plan.settings)
        self.resend = cycle(plan.resend)
        self.clock: dict[int, int] = {}  # active worker -> its pushes; a joiner: the lowest
        self.due = [0] * len(workers)  # next seq
        self.received = [self.workload.initial() for _ in workers]  # sum of all updates
        self.missing: set[int] = set()  # active workers without a push in this round
        self.begun = False  # the round holds a push
        self.joining: set[int] = set()  # workers that have yet to adopt their first version
        self.weights: list[float] = []  # since the last commit
        self.merged: list[int] = []  # pushes in each commit
        self.committed = False  # by the newest event
        self.lossy: set[int] = set()  # workers that were lost
        self.expect = self.workload.initial().astype(float)
        self.pending = np.zeros(SIZE)
        self.bytes = {0: self.workload.initial().tobytes()}
        self.held = [-1] * len(workers)  # newest adopted version
        self.spans: list[list[tuple]] = [[] for _ in workers]  # compute lane: (kind, start, end)
        engine = self.cluster.engine
        self._push, self._leave = engine.push, engine.leave
        engine.push, engine.leave = self.push, self.leave
        self._adopt, self.workload.adopt = self.workload.adopt, self._check_bytes
        self.cluster.run()
        self._close()

    # What the server is told.

    def push(self, push, update, now):
        engine, worker = self.cluster.engine, push.worker
        assert push.seq == self.due[worker], "a seq was skipped or came twice"
        assert push.steps >= 1 and push.samples == push.steps and push.seconds > 0
        self.due[worker] += 1
        self.received[worker] += update
        self.update, self.pushed, self.committed = update.copy(), push, False
        self.clock[worker] += 1
        self.missing.discard(worker)
        self.begun = True
        effects = self._push(push, update, now)
        answers = [e for e in effects if getattr(e, "seq", None) is not None]
        assert [(a.worker, a.seq) for a in answers] == [(worker, push.seq)]
        assert answers[0].accepted or (self.rejects and answers[0].reason)
        if self.judge:
            self.judge(self, effects, push)
        if next(self.resend):
            before = self._state()
            assert self._push(push, update, now) == answers
            if push.seq:
                assert self._push(push._replace(seq=push.seq - 1), update, now) == []
            assert self._state() == before
        assert engine.samples == sum(self.due_steps())
        return effects

    def leave(self, worker, now, reason, finished=False):
        self.committed = False
        if not finished:
            self.lossy.add(worker)
        counted = worker in self.clock  # the model knows nobody who came after the stop
        told = self._told_to(finished)
        effects = self._leave(worker, now, reason, finished)
        if self.judge and counted and not told and not self.cluster.engine.done:
            self.judge(self, effects, None)
        return effects

    def log(self, now, kind, **f):
        if kind == "join":
            self.joining.add(f["worker"])
            if self.cluster.engine.stop_reason is None:
                self.clock[f["worker"]] = min(self.clock.values(), default=0)
                self.missing.add(f["worker"])
        elif kind == "leave" and not self._told_to(f["finished"]):
            self.clock.pop(f["worker"], None)
            self.missing.discard(f["worker"])
        elif kind == "accept":
            assert f["weight"] == self.weight(self.pushed)
            part = f["weight"] * self.update.astype(float)
            self.pending += np.rint(part) if self.exact else part
            self.weights.append(f["weight"])
        elif kind == "commit":
            snapshot = self.cluster.engine.store.latest
            self.expect = self.expect + self.pending
            assert self._equal(snapshot.vector), "conservation"
            assert snapshot.version == f["version"] == len(self.bytes)
            assert f["merged"] == len(self.weights)
            self.bytes[snapshot.version] = snapshot.vector.tobytes()
            self.merged.append(len(self.weights))
            self.pending, self.weights, self.committed = np.zeros(SIZE), [], True

    def _told_to(self, finished: bool) -> bool:
        """A worker that leaves because the run is stopping still counts: weights stay what they
        were."""
        return finished and self.cluster.engine.stop_reason is not None

    @property
    def round_complete(self) -> bool:
        """Every active worker has pushed since `restart_round`, and somebody has."""
        return self.begun and not self.missing

    def restart_round(self):
        self.missing, self.begun = set(self.clock), False

    def due_steps(self):
        return [member.steps for member in self.cluster.engine.members.values()]

    def _equal(self, vector):
        if self.exact:
            return np.array_equal(vector, self.expect)
        return np.allclose(vector, self.expect, rtol=1e-5, atol=1e-2)

    def _state(self):
        engine = self.cluster.engine
        pending = engine.store._pending
        return (engine.store.latest.version, engine.store.accepted, engine.steps, engine.samples,
                None if pending is None else pending.tobytes(), sorted(self.model.active))

    # What the workers do.

    def _timed(self, worker, seconds):
        def step_time(index, now):
            assert self.cluster.clock.events < MAX_EVENTS, "the run does not end"
            self.starts(worker, now)
            return seconds(index, now)
        return step_time

    def starts(self, worker, now):
        """A worker starts a step."""

    def idle(self, worker):
        """Kinds of the compute thread's seconds between its first and its last step."""
        kinds = [kind for kind, *_ in self.spans[worker]]
        steps = [i for i, kind in enumerate(kinds) if kind == "compute"]
        return set(kinds[steps[0]:steps[-1]]) - {"compute"} if steps else set()

    def adopt(self, worker, now, version, how):
        agent = self.cluster.workers[worker].agent
        again = worker in self.joining or agent.finished
        assert version > self.held[worker] or (version == self.held[worker] and again), \
            f"worker {worker} went from version {self.held[worker]} to {version}"
        self.joining.discard(worker)
        self.held[worker] = version

    def _check_bytes(self, worker, vector, how):
        assert vector.tobytes() == self.bytes[self.held[worker]]
        self._adopt(worker, vector, how)

    def span(self, worker, lane, kind, start, end):
        if lane == "compute":
            self.spans[worker].append((kind, start, end))

    # The end.

    def _close(self):
        cluster, engine = self.cluster, self.cluster.engine
        assert engine.done and cluster.ended is not None, "the run did not reach its end"
        assert engine.samples >= engine.stop_samples
        assert not engine.active and engine.store.accepted == 0
        assert self._equal(engine.store.latest.vector)
        assert self.due == [engine.ledger.next_seq(w) for w in range(len(self.due))]
        for worker, report in enumerate(cluster.reports):
            if worker in self.lossy:
                continue  # what a lost worker had not delivered is lost with it
            member = engine.members.get(worker)
            assert report.steps == (member.steps if member else 0)
            assert np.array_equal(self.received[worker], self.workload.progress[worker])
