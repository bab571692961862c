"""SaPS: no worker waits, too old pushes are rejected, and stragglers are directed in time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quadratic import QuadraticWorkload, versions
from random_clusters import INF, IntegerWorkload, Witness, answer_in, many, plans

from wbsp.core.messages import Directed
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant, trace
from wbsp.sync import Accept, Commit, Direct, Grant, Push, Reject, create
from wbsp.sync.saps import SaPS


class Bounded(Witness):
    """Keeps the version that every worker was granted last, and which were directed since."""

    def __init__(self, plan, model):
        self.granted, self.told = {}, set()
        self.accepted = self.rejected = 0
        super().__init__(plan, model, Bounded.judge, self.weighs, rejects=True)
        members = self.cluster.engine.members.values()
        assert self.rejected == sum(sum(m.rejected.values()) for m in members)
        assert self.accepted + self.rejected == sum(m.pushes for m in members) == sum(
            len(pushes.made) for pushes in self.pushes)
        assert model.version == self.accepted == len(self.merged)
        self.assert_waits_for_itself_only()

    def weighs(self, push):
        """What an accepted push must weigh; asked before its commit."""
        lag = self.cluster.engine.store.latest.version - push.base_version
        shrink = 1 + lag if self.model.scale == "inverse" else 1
        return 1 / (len(self.model.active) * self.model.rule.micro_batches * shrink)

    def log(self, now, kind, **fields):
        super().log(now, kind, **fields)
        if kind == "join" and self.cluster.engine.stop_reason is None:
            self.granted[fields["worker"]] = fields["version"]
            self.told.discard(fields["worker"])

    def judge(self, outgoing, push):
        if push is None:
            assert outgoing == [] and not self.committed
            self.granted = {w: v for w, v in self.granted.items() if w in self.clock}
            return
        model, n = self.model, len(self.clock)
        newest = self.cluster.engine.store.latest.version
        answer = answer_in(outgoing)
        lag = newest - self.committed - push.base_version
        assert answer.accepted == self.committed == (lag <= model.s * n)
        assert answer.accepted or answer.reason == "stale"
        assert answer.granted == newest
        assert push.base_version >= self.granted[push.worker], "a worker went back"
        self.accepted += answer.accepted
        self.rejected += not answer.accepted
        assert push.steps <= model.rule.every
        if push.steps < model.rule.every:
            assert push.worker in self.told or self.finishing, "nobody told it"
        self.granted[push.worker] = newest
        self.told.discard(push.worker)
        due = set()
        if model.policy == "preempt" and self.committed:
            due = {w for w, v in self.granted.items()
                   if newest - v >= model.h * n and w not in self.told | {push.worker}}
        orders = [(worker, message.direct) for worker, message in outgoing
                  if isinstance(message, Directed)]
        assert sorted(worker for worker, _ in orders) == sorted(due)
        assert all(direct == Direct(worker, cut=True) for worker, direct in orders)
        self.told |= due


bounds = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 4.0, INF])
scales = st.sampled_from(["constant", "inverse"])


@many
@given(plans(), bounds, scales)
def test_random_clusters_that_only_reject_keep_the_laws(plan, s, scale):
    Bounded(plan, SaPS(policy="reject", s=s, scale=scale))


@many
@given(plans(), bounds.filter(lambda s: s > 0), st.sampled_from([0.0, 0.25, 0.5, 0.75]),
       st.integers(1, 4), scales)
def test_random_clusters_that_preempt_keep_the_laws(plan, s, part, parts, scale):
    h = 2.0 if s == INF else part * s
    Bounded(plan, SaPS(s=s, h=h, micro_batches=parts, scale=scale))


@many
@given(plans())
def test_without_bounds_it_is_asp_bit_for_bit(plan):
    runs = []
    for model in (SaPS(s="inf", policy="reject"), create("asp")):
        workers = [Machine(trace(times), **kwargs)
                   for times, kwargs in zip(plan.traces, plan.workers, strict=True)]
        runs.append(versions(model, workers, IntegerWorkload(len(workers)), **plan.settings))
    assert runs[0] == runs[1] and runs[0]


@many
@given(plans())
def test_a_bound_of_zero_serializes(plan):
    """Every update was computed from the version that it is added to."""
    class Chain(Bounded):
        def log(self, now, kind, **fields):
            super().log(now, kind, **fields)
            assert kind != "accept" or fields["base"] == fields["version"]
    Chain(plan, SaPS(policy="reject", s=0))


@pytest.mark.parametrize("policy", ["preempt", "reject"])
def test_one_worker_is_plain_sgd(policy):
    workload, plain = QuadraticWorkload(1, seed=5), QuadraticWorkload(1, seed=5)
    cluster = Cluster(SaPS(policy=policy, micro_batches=1),
                      [Machine(constant(0.1), latency=0.07)], workload, stop_samples=50 * 16)
    cluster.run()
    steps = cluster.reports[0].steps
    for _ in range(steps):
        plain.step(0)
    assert steps >= 50
    assert np.allclose(cluster.engine.store.latest.vector, plain.x[0], rtol=0, atol=1e-6)


def straggle(model, n, factor, until=600.0, down=INF):
    """n - 1 workers with a second a mini-batch and one, the last, with `factor` seconds.

    down: bytes/s at which the straggler gets a version, of one byte
    Returns what became of the straggler's pushes: (accepted, lag) each.
    """
    heard = []

    def log(now, kind, **fields):
        if kind in ("accept", "reject") and fields["worker"] == n - 1:
            heard.append((kind == "accept", fields["version"] - fields["base"]))
    workers = [Machine(constant(1.0))] * (n - 1) + [Machine(constant(factor), down=down)]
    Cluster(model, workers, log=log, model_bytes=1.0).run(until)
    return heard


@st.composite
def stragglers(draw):
    """A worker so slow that a micro-batch of it fits just within s - h."""
    n, parts = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    s, h = draw(st.sampled_from([5.0, 6.0, 8.0])), draw(st.sampled_from([2.0, 2.5, 3.0]))
    # The others make n - 1 versions a second, and in `room` seconds, ends included, what is left.
    room = (s * n - math.ceil(h * n)) / (n - 1) - 1
    factor = draw(st.floats(1.0, room * parts))
    return n, factor, {"s": s, "h": h, "micro_batches": parts}


@many
@given(stragglers())
def test_preempt_receives_every_worker_whose_micro_batch_fits_between_the_bounds(plan):
    n, factor, options = plan
    heard = straggle(SaPS(**options), n, factor, until=5 * factor)
    assert len(heard) >= 4 and all(accepted for accepted, _ in heard)
    assert max(lag for _, lag in heard) <= options["s"] * n


def test_reject_alone_starves_a_straggler_that_preempt_receives():
    """f (N - 1) = 24 versions a step are more than s N = 16; a quarter of it fits into 16 - 8."""
    starved = straggle(SaPS(policy="reject"), 4, 8.0)
    assert len(starved) > 50 and not any(accepted for accepted, _ in starved)
    heard = straggle(SaPS(), 4, 8.0)
    assert len(heard) > 1.5 * len(starved) and all(accepted for accepted, _ in heard)
    assert 8 <= max(lag for _, lag in heard) <= 16


def test_preempt_receives_a_straggler_directed_while_its_model_is_in_transit():
    """In 2.5 s of download h N = 4 versions are made, and 6 in the micro-batch that follows."""
    heard = straggle(SaPS(h=1), 4, 8.0, down=0.4)
    assert len(heard) > 100 and all(accepted for accepted, _ in heard)


def push(worker, seq=0, base=0, steps=4):
    return Push(worker, seq, base, steps, steps, float(steps))


def model_with(n, **options):
    model = SaPS(**options)
    for worker in range(n):
        assert model.join(worker, 0.0) == [Grant(worker)]
    return model


def test_a_push_beyond_the_bound_is_rejected_and_granted_at_once():
    model = model_with(2, s=1.5, h=1)
    for seq in range(4):
        model.push(push(0, seq, seq), 1.0)
    late = push(1)
    assert model.push(late, 2.0) == [Reject(late, "stale"), Grant(1)]
    fresh = push(1, 1, 4)
    assert model.push(fresh, 3.0) == [Accept(fresh, 1 / 8), Commit(), Grant(1)]


def test_the_bound_itself_is_accepted():
    model = model_with(2, s=1.5, h=1, scale="inverse")
    for seq in range(3):
        model.push(push(0, seq, seq), 1.0)
    late = push(1)
    assert model.push(late, 2.0) == [Accept(late, 1 / (8 * 4)), Commit(), Grant(1)]


def test_a_worker_is_directed_once_until_its_next_grant():
    model = model_with(2, s=3, h=1)
    told = Direct(1, cut=True)
    orders = [model.push(push(0, seq, seq), 1.0)[2:] for seq in range(4)]
    assert orders == [[Grant(0)], [told, Grant(0)], [Grant(0)], [Grant(0)]]
    model.push(push(1, 0, 0, 1), 2.0)
    assert told not in model.push(push(0, 4, 4), 3.0)
    assert told in model.push(push(0, 5, 6), 4.0)


def test_a_worker_that_has_left_receives_no_message():
    model = model_with(3, s=3, h=1)
    model.push(push(0), 1.0)
    model.leave(1, 1.0)
    assert model.push(push(0, 1, 1), 2.0)[2:] == [Direct(2, cut=True), Grant(0)]


def test_a_push_from_before_a_return_is_judged_by_its_version():
    model = model_with(2, s=1.5, h=1)
    for seq in range(4):
        model.push(push(0, seq, seq), 1.0)
    model.leave(1, 2.0)
    model.join(1, 3.0)
    assert model.push(push(1), 4.0)[0] == Reject(push(1), "stale")


def test_a_resumed_run_counts_the_lag_from_its_first_version():
    model = model_with(2, s=1, h=0.5)
    for seq in range(3):
        model.push(push(0, seq, 100 + seq), 1.0)
    assert model.push(push(1, 0, 101), 2.0)[0] == Accept(push(1, 0, 101), 1 / 8)
    assert model.push(push(1, 1, 101), 2.0)[0] == Reject(push(1, 1, 101), "stale")


def test_the_rule_follows_the_policy():
    rule = SaPS(micro_batches=3).rule
    assert rule.every == rule.micro_batches == 3
    rule = SaPS(policy="reject").rule
    assert rule.every == rule.micro_batches == 1


@pytest.mark.parametrize("options, message", [
    ({"s": 2}, "saps: option h=2 is not below s=2; lower h, or use policy=reject"),
    ({"s": -1}, "saps: option s=-1 is below 0"),
    ({"s": "nan"}, "saps: option s=nan is below 0"),
    ({"micro_batches": 0}, "saps: option micro_batches=0 is below 1"),
])
def test_a_bad_option_is_refused_with_the_reason(options, message):
    with pytest.raises(ValueError, match=message) as error:
        SaPS(**options)
    assert "\n" not in str(error.value)
