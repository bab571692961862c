"""Draw random clusters in virtual time, and check each run against the laws by a witness.

The witness sees every message that reaches the server and everything a worker does, and keeps
separate records: it shares no state with the model, the engine or the store. Updates are integers
and multiples of 60, so that update / N is an integer for up to five workers and sums are exact.
"""

from itertools import cycle

import numpy as np
from hypothesis import settings

from wbsp.core.messages import Ack, Granted
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Incarnation, Machine, trace
from wbsp.testing import INF, IntegerWorkload, Laws, Plan, plans

__all__ = ["INF", "Incarnation", "IntegerWorkload", "Judge", "Witness", "events", "many", "plans"]

many = settings(max_examples=5 * settings.default.max_examples)


def events(model, plan):
    """Return (time, kind, fields) of each event of a run of `plan` under `model`."""
    log = []
    workers = [Machine(trace(times), **kwargs)
               for times, kwargs in zip(plan.traces, plan.workers, strict=True)]
    Cluster(model, workers, log=lambda now, kind, **f: log.append((now, kind, f)),
            **plan.settings).run()
    return log


def answer_in(outgoing):
    """Return the Ack among the messages to workers."""
    (answer,) = (message for _, message in outgoing if isinstance(message, Ack))
    return answer


def granted_in(outgoing):
    """Return worker -> the version that these messages, an Ack or others, allow it to fetch."""
    return {worker: message.version for worker, message in outgoing
            if isinstance(message, Granted)} | {
        worker: message.granted for worker, message in outgoing
        if isinstance(message, Ack) and message.granted is not None}


class Witness(Laws):
    """Run a plan under a model, and check what holds for every model of this package.

    Attributes:
        judge: judge(witness, outgoing, push) is called after every push, and with push=None after
            every leave after which a worker remains; it asserts the model's own rule.
        weight: weight(push) is the expected weight of an accepted push; default: 1 / active
            workers.
        rejects: the model may reject pushes (the judge says which).
    """

    def __init__(self, plan: Plan, model, judge=None, weight=None, rejects=False):
        super().__init__(plan, model)
        self.judge, self.rejects = judge, rejects
        self.weight = weight or (lambda push: 1 / len(model.active))
        self.exact = weight is None  # 1/N of a multiple of 60 is a whole number, up to N = 5
        self.resend = cycle(plan.resend)
        self.clock: dict[int, int] = {}  # active worker -> its pushes; a joiner: the lowest
        self.missing: set[int] = set()  # active workers without a push in this round
        self.begun = False  # the round holds a push
        self.weights: list[float] = []  # since the last commit
        self.merged: list[int] = []  # pushes in each commit
        self.committed = False  # by the newest event
        self.finishing = False  # the newest push was its worker's last
        self.spans: list[list[tuple]] = [[] for _ in plan.workers]  # compute: (kind, start, end)
        self.run()
        # workers with one life, which was not lost
        self.steady = [worker for worker, planned in enumerate(plan.workers)
                       if worker not in self.lossy and len(planned["incarnations"]) == 1]

    # What the server receives.

    def push(self, push, update, now, fetch=0):
        engine, worker = self.cluster.engine, push.worker
        assert push.samples <= push.steps
        self.pushed, self.committed, self.finishing = push, False, not fetch
        self.clock[worker] += 1
        self.missing.discard(worker)
        self.begun = True
        outgoing = super().push(push, update, now, fetch)
        answer = answer_in(outgoing)
        assert answer.accepted or self.rejects
        if self.judge:
            self.judge(self, outgoing, push)
        if next(self.resend):
            before = self._state()
            assert self._push(push, update, now) == [(worker, answer)]
            if push.seq:
                assert self._push(push._replace(seq=push.seq - 1), update, now) == []
            assert self._state() == before
        assert engine.steps == sum(self.due_steps()) >= engine.samples
        return outgoing

    def leave(self, worker, now, reason, finished=False):
        self.committed = False
        counted = worker in self.clock  # the model knows no worker that came after the stop
        told = self._stops(finished)
        outgoing = super().leave(worker, now, reason, finished)
        if self.judge and counted and not told and not self.cluster.engine.done:
            self.judge(self, outgoing, None)
        return outgoing

    def log(self, now, kind, **f):
        super().log(now, kind, **f)
        if kind == "join":
            if self.cluster.engine.stop_reason is None:
                self.clock[f["worker"]] = min(self.clock.values(), default=0)
                self.missing.add(f["worker"])
        elif kind == "leave" and not self._stops(f["finished"]):
            self.clock.pop(f["worker"], None)
            self.missing.discard(f["worker"])
        elif kind == "accept":
            assert f["weight"] == self.weight(self.pushed._replace(norm2=f.get("norm2")))
            self.weights.append(f["weight"])
        elif kind == "commit":
            assert f["merged"] == len(self.weights)
            self.merged.append(len(self.weights))
            self.weights, self.committed = [], True

    def part(self, weighted):
        return np.rint(weighted) if self.exact else weighted

    def whole(self, total):
        return total if self.exact else super().whole(total)

    def equal(self, vector):
        return np.array_equal(vector, self.expect) if self.exact else super().equal(vector)

    def _stops(self, finished: bool) -> bool:
        """Note a worker that leaves because the run is stopping. It still counts: weights do not
        change.
        """
        return finished and self.cluster.engine.stop_reason is not None

    @property
    def round_complete(self) -> bool:
        """Return whether every active worker has pushed since `restart_round`, and at least one
        has.
        """
        return self.begun and not self.missing

    def restart_round(self):
        self.missing, self.begun = set(self.clock), False

    def due_steps(self):
        return [member.steps for member in self.cluster.engine.members.values()]

    def _state(self):
        engine = self.cluster.engine
        pending = engine.store._pending
        return (engine.store.latest.version, engine.store.accepted, engine.steps, engine.samples,
                None if pending is None else pending.tobytes(), sorted(self.model.active))

    # What the workers do.

    def idle(self, worker):
        """Return the kinds of the compute thread's seconds between its first and its last step."""
        kinds = [kind for kind, *_ in self.spans[worker]]
        steps = [i for i, kind in enumerate(kinds) if kind == "compute"]
        return set(kinds[steps[0]:steps[-1]]) - {"compute"} if steps else set()

    def span(self, worker, lane, kind, start, end):
        if lane == "compute":
            self.spans[worker].append((kind, start, end))

    def assert_idle_for(self, *kinds):
        """Assert that a worker spends its time, between its first and last step, on these kinds and
        on computing.
        """
        for worker in self.steady:
            assert self.idle(worker) <= set(kinds)

    def assert_waits_for_itself_only(self):
        """Assert that a worker is blocked no longer than its own pushes and pulls take, whatever
        others do.
        """
        self.assert_idle_for("push", "pull")
        for worker in self.steady:
            report = self.cluster.reports[worker]
            blocked = report.seconds["push"] + report.seconds["pull"]
            assert blocked <= report.push_seconds + report.pull_seconds + 1e-9


class Judge:
    """Judge WBSP and pcc: a round ends at the push (or leave) that the trigger names, and then
    grants all workers.
    """

    def __init__(self, commit="slowest", trigger="all_pushed"):
        self.commit, self.trigger = commit, trigger
        self.seconds = {}  # worker -> moving average of its seconds a step

    def __call__(self, witness, outgoing, push):
        active = witness.clock.keys()
        due = witness.round_complete
        self.seconds = {w: s for w, s in self.seconds.items() if w in active}
        if self.trigger == "slowest" and push:
            due = push.worker == self._slowest(active, push)
        granted = granted_in(outgoing).keys()
        assert granted == (set(active) if due else set())
        assert witness.committed == (push is not None if self.commit == "every_push" else due)
        if due:
            witness.restart_round()

    def _slowest(self, active, push):
        new, old = push.seconds / push.steps, self.seconds.get(push.worker)
        self.seconds[push.worker] = new if old is None else 0.7 * old + 0.3 * new
        return max(active, key=lambda w: (self.seconds.get(w, float("inf")), -w))
