"""Rivals: each rule against one that is computed by hand or written anew, and its law of time."""

from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rivals.chain import train
from rivals.ddp import ddp, shares
from rivals.decoupled import Options, Syncer, merged, packed
from rivals.delayed import DelayedNesterov, Server
from rivals.diloco import diloco, local_steps
from rivals.entries import RIVALS, rival
from rivals.ground import Ground, Nothing, Part
from rivals.hivemind import hivemind
from rivals.lone import lone
from rivals.ring import all_reduce

from wbsp.core.outer_optimizer import DelayedNesterov as OfWbsp
from wbsp.core.outer_optimizer import create_outer
from wbsp.simulate.world.machine import Incarnation, Machine, constant, lognormal
from wbsp.simulate.world.server import ServerSpec

ROWS = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
GOAL = ROWS @ np.arange(5, dtype=np.float32)


def gradient(x, indices):
    """Of the mean squared error of a linear model."""
    return 2 * ROWS[indices].T @ (ROWS[indices] @ x - GOAL[indices]) / len(indices)


class Linear:
    """A linear model, trained with momentum 0.5, which is a worker's state."""

    def make(self, seed):
        return np.random.default_rng(seed).normal(size=5).astype(np.float32), len(ROWS)

    def make_state(self):
        return np.zeros(5, np.float32)

    def step(self, values, momentum, indices, rate):
        momentum = 0.5 * momentum + gradient(values, indices)
        return values - np.float32(rate) * momentum, momentum, 0.0

    def evaluate(self, values):
        return {"loss": float(np.mean((ROWS @ values - GOAL) ** 2))}


def machine(seconds, up=float("inf"), latency=0.0, *presence):
    return Machine(constant(seconds), latency, up, up, presence or (Incarnation(),))


def ground(machines, until, batch=4, **more):
    return Ground(machines, Linear(), batch, until, rate=lambda done: 0.02, total=10**6, **more)


class Seen(Linear):
    """Notes the values that are evaluated."""

    def __init__(self):
        self.values = []

    def evaluate(self, values):
        self.values.append(np.array(values))
        return super().evaluate(values)


def trained(run, machines, until, **more):
    """Return the last values of a run."""
    task = Seen()
    one = Ground(machines, task, more.pop("batch", 4), until, rate=lambda done: 0.02, total=10**6,
                 **more)
    run(one)
    return task.values[-1]


def orders(machines, batch=4):
    """worker -> its next examples, as any run draws them."""
    one = ground([machine(1.0)] * machines, 1.0, batch)
    return lambda worker, count=batch: one.draw(worker, count)


# The ring.

def test_a_ring_sends_its_part_of_the_bytes_over_the_slowest_link():
    cost = all_reduce([machine(1, 100.0, 0.5), machine(1, 10.0), machine(1, 50.0),
                       machine(1, 100.0)], 40.0)
    assert cost == (2 * 3 / 4 * 40 / 10, 2 * 3 * 0.5)
    assert all_reduce([machine(1, 10.0, 1.0)], 40.0).seconds == 0


def first_end(machines, size, **options):
    return next(ddp(machines, 4, [1.0] * len(machines), size, 1.0, **options)).end


def test_buckets_travel_while_the_backward_pass_of_the_slowest_machine_computes():
    # a step of 30 s: forward until 10, then a bucket each 10 s
    pair = [machine(24.0, 10.0, 0.25), machine(30.0, 10.0, 0.25)]
    assert first_end(pair, 100.0, buckets=2) == pytest.approx(30 + 5 + 0.5)
    assert first_end(pair, 300.0, buckets=2) == pytest.approx(20 + 2 * 15 + 0.5)
    assert first_end(pair, 100.0, buckets=1) == pytest.approx(30 + 10 + 0.5)


@given(st.lists(st.tuples(st.floats(0.1, 5), st.sampled_from([0.0, 0.5])), min_size=1, max_size=3),
       st.integers(1, 5))
def test_uneven_shares_are_those_that_end_soonest(given, batch):
    machines = {n: Machine(constant(mean), part=part) for n, (mean, part) in enumerate(given)}
    means = [mean for mean, _ in given]
    whole = batch * len(given)

    def end(counts):
        return max(machines[n].seconds(0, 0.0, count / batch) for n, count in counts)

    found = shares(machines, batch, means)
    assert sum(found.values()) == whole and min(found.values()) >= 1
    best = min(end(enumerate(counts)) for counts in product(range(1, whole + 1), repeat=len(given))
               if sum(counts) == whole)
    assert end(found.items()) == pytest.approx(best)


@pytest.mark.parametrize("uneven", [False, True])
def test_ddp_is_the_step_on_the_mean_gradient_of_all_examples(uneven):
    pair, draw = [machine(1.0), machine(3.0)], orders(2)
    x, momentum = Linear().make(0)[0], np.zeros(5, np.float32)
    counts = {0: 6, 1: 2} if uneven else {0: 4, 1: 4}
    for _ in range(5):
        # each rank's mean gradient, times workers / sum of examples, and DDP's mean over ranks
        ranks = [gradient(x, draw(worker, count)) * count * 2 / 8
                 for worker, count in counts.items()]
        momentum = 0.5 * momentum + sum(ranks) / 2
        x = x - np.float32(0.02) * momentum
    time = 1.5 if uneven else 3.0
    found = trained(lambda one: train(one, ddp(pair, 4, [1.0, 3.0], 0.0, 1.0, uneven=uneven)),
                    pair, 5 * time + 0.1)
    assert found == pytest.approx(x, rel=1e-5)


def test_a_loss_stops_the_ring_until_it_is_noticed_and_a_newcomer_brings_its_copy():
    three = [machine(1.0), machine(1.0, 50.0, 0.0, Incarnation(0.0, 2.5)),
             machine(1.0, 50.0, 0.5, Incarnation(7.5))]
    law = ddp(three, 4, [1.0] * 3, 0.0, 4.0, buckets=1)
    found = list(islice(law, 5))
    assert [(one.end, set(one.samples)) for one in found[:3]] == [
        (1.0, {0, 1}), (2.0, {0, 1}), (7.5, {0})]  # 2.5 + 4 s, then the step again
    assert found[3].samples.keys() == {0, 2} and found[3].end == pytest.approx(7.5 + 0.5 + 1 + 1.0)


# One machine, and the outer step.

def test_a_lone_machine_steps_without_a_network():
    assert [one.end for one in islice(lone(machine(0.5, 1.0, 9.0), 4), 3)] == [0.5, 1.0, 1.5]


def test_the_outer_step_after_each_step_is_quasi_hyperbolic_momentum():
    rate, nu, momentum, draw = 8.0, 0.875, 0.95, orders(1)
    x, inner, m = Linear().make(0)[0], np.zeros(5), np.zeros(5)
    for _ in range(6):
        inner = 0.5 * inner + gradient(x, draw(0))
        u = -0.02 * inner
        m = momentum * m + (1 - momentum) * u
        x = x + (1 - nu) * rate * u + nu * rate * m
    outer = create_outer("qhm", rate=rate, nu=nu, momentum=momentum)
    alone = [machine(1.0)]
    found = trained(lambda one: train(one, lone(alone[0], 4), outer), alone, 6.5)
    assert found == pytest.approx(x, rel=1e-4)


def test_an_outer_step_each_few_steps_is_nesterovs_on_the_machines_own_difference():
    draw = orders(1)
    base = x = Linear().make(0)[0]
    inner, m = np.zeros(5), np.zeros(5)
    for n in range(1, 8):
        inner = 0.5 * inner + gradient(x, draw(0))
        x = x - 0.02 * inner
        if n % 3 == 0:
            m = 0.9 * m + (x - base)
            base = x = base + 0.7 * ((x - base) + 0.9 * m)
    alone = [machine(1.0)]
    found = trained(lambda one: train(one, lone(alone[0], 4), create_outer("nesterov"), 3),
                    alone, 7.5)
    assert found == pytest.approx(x, rel=1e-4)


# hivemind.

def test_peers_gather_the_target_at_their_own_pace_and_batches_under_way_count():
    pair = [machine(1.0, 10.0, 0.25), machine(2.5, 10.0, 0.25)]
    found = list(islice(hivemind(pair, 2, 6, 20.0, 1.0, matchmaking=9.0), 2))
    # after 1 s 2, 2 s 4, 2.5 s 6 examples; the batch under way ends at 3 s; 2 s for the average
    assert found[0] == (3 + 2 + 0.5, {0: 6, 1: 2})
    assert found[1].end == pytest.approx(5.5 + 3 + 2.5)


def test_a_peer_that_is_late_for_the_average_loses_its_gradients_and_loads_the_state():
    pair = [machine(1.0), machine(2.2, 10.0)]
    found = list(islice(hivemind(pair, 2, 4, 10.0, 1.0, matchmaking=0.1), 2))
    assert found[0] == (2.1, {0: 4})
    # it ends at 2.2, has the state at 3.2, and a batch at 5.4
    assert found[1] == (pytest.approx(4.2), {0: 4})


def test_a_lost_peer_loses_its_gradients_and_stops_only_an_average():
    pair = [machine(1.0, 10.0, 0.25),
            machine(1.0, 10.0, 0.25, Incarnation(0.0, 2.5), Incarnation(20.0, 26.0))]
    found = list(islice(hivemind(pair, 2, 10, 20.0, 4.0), 3))
    # 8 examples after 2 s, of which 4 are lost: the other has 10 after 5 s, with nobody to average
    assert found[0] == (5.0, {0: 10})
    assert [one.end for one in found[1:]] == [10.0, 15.0]
    later = list(islice(hivemind(pair, 2, 10, 20.0, 4.0, matchmaking=0.5), 5))
    # it joins at 20 s, and has the model at 22.25; both have 12 examples at 24.25, and it is lost
    # while they average, for 2.5 s
    assert later[3:] == [(20.0, {0: 10}), (26 + 4, {0: 8})]


def test_the_epochs_of_hivemind_are_steps_on_the_mean_gradient():
    pair, draw = [machine(1.0), machine(2.5)], orders(2, 2)
    x, momentum = Linear().make(0)[0], np.zeros(5, np.float32)
    for _ in range(2):
        sums = 6 * gradient(x, draw(0, 6)) + 2 * gradient(x, draw(1, 2))
        momentum = 0.5 * momentum + sums / 8
        x = x - np.float32(0.02) * momentum
    found = trained(lambda one: train(one, hivemind(pair, 2, 6, 0.0, 1.0, matchmaking=9.0)), pair,
                    6.5, batch=2)
    assert found == pytest.approx(x, rel=1e-5)


# DiLoCo.

def local(x, momentum, draw, worker, steps):
    for _ in range(steps):
        momentum = 0.5 * momentum + gradient(x, draw(worker))
        x = x - np.float32(0.02) * momentum
    return x, momentum


def test_diloco_is_nesterov_on_the_mean_difference_with_moments_that_are_kept():
    pair, draw = [machine(1.0, 10.0, 0.25), machine(2.0, 10.0, 0.25)], orders(2)
    x, m = Linear().make(0)[0], np.zeros(5)
    moments = [np.zeros(5, np.float32)] * 2
    for _ in range(3):
        ends = []
        for worker in range(2):
            end, moments[worker] = local(x, moments[worker], draw, worker, 4)
            ends.append(end)
        mean = sum(ends) / 2 - x
        m = 0.9 * m + mean
        x = x + 0.7 * (mean + 0.9 * m)
    # a round: eight seconds of the slower, 20 bytes on the ring, its latency
    found = trained(lambda one: diloco(one, [1.0, 2.0], 4), pair, 3 * (8 + 2 + 0.5) + 0.1,
                    size=20.0)
    assert found == pytest.approx(x, rel=1e-4)


def test_local_steps_go_by_speed_where_they_are_dynamic():
    means = {0: 1.0, 1: 2.0, 2: 3.0, 3: 99.0}
    assert local_steps(means, 8, by_speed=True) == {0: 8, 1: 4, 2: 2, 3: 1}
    assert local_steps(means, 8, by_speed=False) == dict.fromkeys(means, 8)


def test_diloco_continues_without_a_worker_lost_in_a_round():
    pair = [machine(1.0), machine(1.0, 10.0, 0.0, Incarnation(0.0, 5.0))]
    one = ground(pair, 11.5, size=0.0, server=ServerSpec(detect_seconds=2.0))
    diloco(one, [1.0, 1.0], 4)
    # rounds end at 4 with both, at 5 + 2 with one, at 11 with one
    assert one.examples == 4 * 4 * (2 + 1 + 1)


# Delayed Nesterov and dynamic local updates.

def changes(step, given):
    return [float(step.step(np.array([g], np.float32))[0]) for g in given]


def test_delayed_nesterov_by_hand():
    assert changes(DelayedNesterov(2, 1.0, 0.5), [2, 4, 6, 8]) == pytest.approx(
        [1, 2 + 0.5 * 3, 3, 4 + 0.5 * (0.5 * 3 + 7)])
    assert changes(DelayedNesterov(2, 1.0, 0.5, spread=0.1), [2, 4, 6, 8]) == pytest.approx(
        [1, 2 + 0.9 * 0.5 * 3, 3 + 0.1 * 0.5 * 3, 4 + 0.9 * 0.5 * 8.5])


@given(st.integers(1, 5), st.lists(st.floats(-5, 5, width=16), max_size=20))
def test_delayed_nesterov_is_that_of_wbsp_where_an_update_weighs_one_over_the_delay(n, given):
    other = OfWbsp(delay=n)
    expected = [float(other.step(np.array([g / n], np.float32))[0]) for g in given]
    assert changes(DelayedNesterov(n), given) == pytest.approx(expected, abs=1e-4)


def test_tasks_go_by_the_measured_speeds_and_end_about_together():
    one = ground([machine(1.0), machine(2.0), machine(4.0)], 24.5)
    server = Server(one, [1.0, 1.0, 1.0], 8, DelayedNesterov(3))
    server.run()
    # at first all are believed equal: 8 steps each; then 8, 4 and 2
    assert one.examples == 4 * (24 + 8 + 4 + 6)
    assert [server.task_of(worker) for worker in range(3)] == [8, 4, 8]


def test_workers_that_finish_within_the_grace_period_begin_together():
    pair = [machine(1.0), machine(1.1)]
    begins = []

    class Watched(Server):
        def task_of(self, worker):
            begins.append((round(self.clock.now, 6), worker))
            return 4

    Watched(ground(pair, 9.0), [1.0, 1.1], 4, DelayedNesterov(2), grace=0.5).run()
    assert begins == [(0, 0), (0, 1), (4.5, 0), (4.5, 1)] + [(9.0, 0), (9.0, 1)]


# Decoupled DiLoCo.

def test_lengths_and_directions_are_averaged_apart():
    three, four = np.array([3, 0], np.float32), np.array([0, 4], np.float32)
    assert merged([three, four], [1, 1]) == pytest.approx(3.5 * np.array([1, 1]) / 2**0.5)
    assert merged([three, four], [1, 3]) == pytest.approx(
        (3 + 3 * 4) / 4 * np.array([1, 3]) / 10**0.5)
    assert merged([three, four], [1, 3], embedding=True) == pytest.approx([0.75, 3])
    assert merged([three, -three], [1, 3]) == pytest.approx(-1 * three)  # one way is left
    assert merged([three, -three], [1, 1]) == pytest.approx([0, 0])
    assert merged([three, 0 * three], [1, 3]) == pytest.approx([0.75, 0])


def test_tensors_are_packed_to_about_equal_fragments():
    sizes = [50, 3, 30, 20, 7, 40]
    ends = np.cumsum(sizes)
    parts = [Part(str(n), int(end) - size, int(end))
             for n, (size, end) in enumerate(zip(sizes, ends, strict=True))]
    found = [sum(part.end - part.begin for part in group) for group in packed(parts, 3)]
    assert sum(found) == 150 and max(found) - min(found) <= 10
    assert len(packed(parts, 99)) == len(sizes)


def test_a_fragment_takes_effect_tau_steps_after_it_was_sent_and_overwrites():
    h, tau, draw = 4, 2, orders(1)
    x = theta = Linear().make(0)[0]
    momentum, m = np.zeros(5, np.float32), np.zeros(5)
    for n in range(1, 15):
        x, momentum = local(x, momentum, draw, 0, 1)
        if n % h == 0:
            moved = x - theta
            m = 0.9 * m + moved
            theta = theta + 0.7 * (moved + 0.9 * m)
        if n > h and n % h == tau:
            x = np.asarray(theta, np.float32)
    found = trained(lambda one: Syncer(one, Options(h=h, tau=tau)).run(), [machine(1.0)], 14.5)
    assert found == pytest.approx(theta, rel=1e-4)


def test_a_merge_waits_for_the_others_as_long_as_the_overlap_hides():
    one = ground([machine(1.0), machine(1.1)], 9.0)
    syncer = Syncer(one, Options(h=4, tau=2, quorum=1))
    syncer.run()
    assert [(pytest.approx(at), who) for at, _, who in syncer.merges] == [
        (4.0, [0]),  # no step is measured yet: no window
        (4.4 + 2 * 1.0, [1]),  # two steps of the fastest
        (8.8, [0, 1])]  # from 8 s on, until all are in


def test_transfers_and_the_quorums_time_take_their_part_of_the_window():
    pair = [machine(1.0, 40.0), machine(1.5, 40.0)]
    syncer = Syncer(ground(pair, 7.0, size=20.0), Options(h=4, tau=2, quorum=2))
    syncer.run()  # sent at 4 and 6 s, 0.5 s on the way, and 0.5 s back
    assert [at for at, _, _ in syncer.merges] == [pytest.approx(6.5)]
    assert syncer.slack == pytest.approx(2 * 1.0 - (2.0 + 1.0))


def test_a_newcomer_copies_a_learners_moments_and_a_lost_one_is_not_waited_for():
    pair = [machine(1.0), machine(1.0, 1.0, 0.0, Incarnation(0.0, 2.5), Incarnation(9.5, 99.0))]
    syncer = Syncer(ground(pair, 60.0, size=5.0, server=ServerSpec()),
                    Options(h=4, tau=1, quorum=2))
    syncer.run()
    merges = [who for at, _, who in syncer.merges if at < 24]
    assert merges[0] == [0], "the other is gone"
    assert [0, 1] in [who for _, _, who in syncer.merges], "three times its bytes, then it trains"


# What all have in common.

def test_a_run_without_tensors_has_the_examples_of_one_with_them():
    for name, kind in RIVALS.items():
        counts = []
        for task in (Nothing(), Linear()):
            machines = [Machine(lognormal(0.1 * (1 + n), 0.3, seed=n), 0.01, 50.0, 50.0)
                        for n in range(1 if kind.alone else 3)]
            one = Ground(machines, task, 4, 40.0, size=20.0, rate=lambda done: 0.01, total=10**6)
            rival(name).run(one, [0.1, 0.2, 0.3])
            counts.append(one.examples)
        assert counts[0] == counts[1] > 100, name


def test_every_rival_learns():
    for name, kind in RIVALS.items():
        machines = [machine(0.1), machine(0.15), machine(0.2)][:1 if kind.alone else 3]
        one = ground(machines, 60.0, size=20.0, looks=4.0, server=ServerSpec(1e4, 1e4))
        rival(f"{name}:h=8" if "h" in kind.OPTIONS else name).run(one, [0.1, 0.15, 0.2])
        assert one.found[-1].loss < 0.01 * one.found[0].loss, name
        assert [look.seconds for look in one.found[:-1]] == pytest.approx(
            [4 * n for n in range(len(one.found) - 1)], abs=4.0), name


@pytest.mark.parametrize("text, words", [
    ("ddp:bukets=3", "ddp: unknown option 'bukets'"),
    ("ddp:uneven", "'uneven' is no option; write name=value"),
    ("dn-dylu:outer=qhm", "dn-dylu has an outer step of its own"),
    ("lone:outer.rate=8", "give outer=NAME"),
    ("lone:outer=rumour", "unknown outer optimizer 'rumour'"),
    ("hivemind:target=0", "target=0 is below 1")])
def test_a_bad_entry_is_refused_in_one_line(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        rival(text)
    assert "\n" not in str(caught.value)


def test_a_model_of_wbsp_is_not_a_rival():
    assert rival("auto:outer.rate=8") is None and rival("decoupled") is None
