"""SSP: no worker starts a step more than s ahead of the slowest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import Witness, answer_in, granted_in, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import Grant, Push, create


class Bound(Witness):
    def starts(self, worker, now):
        ahead = self.clock[worker] - min(self.clock.values())
        assert ahead <= self.model.s, f"worker {worker} starts {ahead} steps ahead"


def every_push_is_a_version(witness, outgoing, push):
    assert witness.committed == (push is not None)


@many
@given(plans(), st.integers(0, 5))
def test_random_clusters_keep_the_laws_and_the_bound(plan, s):
    Bound(plan, create("ssp", s=s), every_push_is_a_version)


class Published(Bound):
    """The published runners' rule once more: who is told what, who asks, who waits for an answer.

        c_i += 1 after each step; c_i - told_i >= s? ask: answered when c_i - min_j c_j < s,
        with the newest model and that minimum; told_i = that minimum; else no pull, no wait
    """

    def __init__(self, plan, s):
        self.s = s
        self.told = {}  # worker -> the minimum that came with its newest model
        self.asking = set()  # not answered
        self.answered = set()  # not adopted
        self.excused = set()  # may wait or pull before the next step
        super().__init__(plan, create("ssp", s=s, refresh="published"), Published.check)

    def check(self, outgoing, push):
        assert self.committed == (push is not None)
        if push and self.clock[push.worker] - self.told[push.worker] >= self.s:
            self.asking.add(push.worker)
            self.excused.add(push.worker)
        self.asking &= self.clock.keys()
        least = min(self.clock.values())
        answers = {worker for worker in self.asking if self.clock[worker] - least < self.s}
        self.asking -= answers
        self.answered |= answers
        self.told.update(dict.fromkeys(answers, least))
        if push:
            assert answer_in(outgoing).hold == (push.worker in self.asking)
        assert granted_in(outgoing) == dict.fromkeys(answers, len(self.bytes) - 1)

    def log(self, now, kind, **f):
        super().log(now, kind, **f)
        if kind == "join" and self.running:
            self.told[f["worker"]] = min(self.clock.values())
            self.asking.discard(f["worker"])
            self.answered.discard(f["worker"])
            self.excused.add(f["worker"])

    @property
    def running(self):
        return self.cluster.engine.stop_reason is None

    def starts(self, worker, now):
        super().starts(worker, now)
        assert not self.running or worker not in self.asking | self.answered

    def adopt(self, worker, now, version, how):
        first = worker in self.joining
        super().adopt(worker, now, version, how)
        assert how == "replace"
        if self.running and not first:
            self.answered.remove(worker)

    def span(self, worker, lane, kind, start, end):
        super().span(worker, lane, kind, start, end)
        if lane == "compute" and kind == "compute":
            self.excused.discard(worker)
        elif lane == "compute" and kind in ("wait", "pull"):
            assert not self.running or worker in self.excused


@many
@given(plans(), st.integers(1, 5))
def test_random_clusters_keep_the_laws_and_the_published_runners_rule(plan, s):
    Published(plan, s)


def push(worker, seq):
    return Push(worker, seq, 0, 1, 1, 1.0)


def grants(actions):
    return [action.worker for action in actions if isinstance(action, Grant)]


def ahead_by(s, **options):
    """A model in which worker 0 has pushed until the bound stopped it; worker 1 nothing."""
    model = create("ssp", s=s, **options)
    model.join(0, 0.0)
    model.join(1, 0.0)
    for seq in range(s):
        model.push(push(0, seq), 1.0)
    return model, model.push(push(0, s), 1.0)


@pytest.mark.parametrize("s", [0, 1, 3])
def test_the_bound_is_sharp(s):
    model, stopping = ahead_by(s)
    assert grants(stopping) == []
    assert grants(model.push(push(1, 0), 2.0)) == [0, 1]


def test_the_loss_of_the_slowest_worker_frees_the_waiting_ones():
    model, _ = ahead_by(2)
    assert grants(model.leave(1, 2.0)) == [0]


def test_a_joiner_starts_at_the_lowest_clock_and_stops_no_one_else():
    model, _ = ahead_by(2)
    model.push(push(1, 0), 2.0)
    model.join(2, 2.0)
    assert model.clock == {0: 3, 1: 1, 2: 1}


def test_a_stopped_worker_that_leaves_is_not_granted():
    model, _ = ahead_by(1)
    model.leave(0, 2.0)
    assert grants(model.push(push(1, 0), 3.0)) == [1]


def asked_by(model, worker, seq, now=1.0):
    """What a push brings: (workers granted, whether the pusher is held)."""
    actions = model.push(push(worker, seq), now)
    return grants(actions), any(getattr(action, "hold", False) for action in actions)


def published(s):
    model = create("ssp", s=s, refresh="published")
    model.join(0, 0.0)
    model.join(1, 0.0)
    return model


def test_published_workers_continue_until_s_steps_beyond_the_known_clock():
    model = published(s=3)
    assert [asked_by(model, 0, seq) for seq in range(3)] == [([], False), ([], False), ([], True)]
    assert asked_by(model, 1, 0) == ([0], False)  # 3 - 1 < 3; told: 1
    assert asked_by(model, 0, 3) == ([], True)  # 4 - 1
    assert [asked_by(model, 1, seq) for seq in (1, 2)] == [([0], False), ([1], False)]


def test_the_slowest_published_worker_fetches_too():
    model = published(s=2)
    assert [asked_by(model, 0, seq) for seq in range(2)] == [([], False), ([], True)]
    assert asked_by(model, 1, 0) == ([0], False)
    assert asked_by(model, 1, 1) == ([1], False)


def test_a_published_joiner_learns_the_lowest_clock_and_a_loss_frees_waiting_workers():
    model = published(s=2)
    for seq in range(2):
        asked_by(model, 0, seq)
        asked_by(model, 1, seq)
    model.join(2, 2.0)
    assert model.clock[2] == model.told[2] == 2
    assert asked_by(model, 2, 0) == ([], False)
    assert asked_by(model, 2, 1) == ([], True)
    assert grants(model.leave(0, 3.0)) == []
    assert grants(model.leave(1, 3.0)) == [2]


@pytest.mark.parametrize("s, pulls", [(1, 1000), (40, 27)])
def test_published_pulls_of_a_thousand_steps_at_equal_speeds(s, pulls):
    cluster = Cluster(create("ssp", s=s, refresh="published"),
                      [Machine(constant(1.0), latency=0.001) for _ in range(2)],
                      stop_samples=2000)
    cluster.run()
    assert [report.steps for report in cluster.reports] == [1000, 1000]
    assert all(pulls <= report.pulls <= pulls + 2 for report in cluster.reports)


def test_the_published_refresh_needs_a_bound_of_at_least_1():
    with pytest.raises(ValueError, match="ssp: option s=0 is below 1; with refresh=published"):
        create("ssp", s=0, refresh="published")
