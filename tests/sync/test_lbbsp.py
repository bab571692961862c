"""LB-BSP: the barrier of BSP, with batches by which all workers end together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quadratic import QuadraticWorkload
from random_clusters import Witness, granted_in, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync.base import Accept, Commit, Direct, Grant, Push
from wbsp.sync.bsp import BSP
from wbsp.sync.lbbsp import LBBSP

OPTIONS = st.fixed_dictionaries({
    "controller": st.sampled_from(["cpu", "gpu", "federated"]),
    "predictor": st.sampled_from(["last", "ema", "narx"]),
    "batch": st.sampled_from([8, 16]), "low": st.integers(1, 8),
    "high": st.sampled_from([0, 16, 23]), "grain": st.sampled_from([1, 4]),
    "tau": st.integers(1, 3), "window": st.integers(1, 2), "coarse": st.just(8),
    "fine": st.just(4)})


class Barrier(Witness):
    """A run in virtual time, in which every step counts one sample whatever its size."""

    def __init__(self, plan, model):
        super().__init__(plan, model, _commits_and_grants_when_all_have_pushed, self.share)

    def _timed(self, worker, seconds):
        self.workload.batch = 8  # the examples that a whole step's seconds are for
        return super()._timed(worker, seconds)

    def starts(self, worker, now):
        assert self.clock[worker] <= min(self.clock.values()), "started ahead of the slowest"

    def push(self, push, update, now, fetch=0):
        self.sum = sum(self.model.sizes.values()) * self.model.rule.every
        return super().push(push, update, now, fetch)

    def share(self, push):
        return push.samples / self.sum


def _commits_and_grants_when_all_have_pushed(witness, outgoing, push):
    assert witness.committed == witness.round_complete
    assert sorted(granted_in(outgoing)) == (sorted(witness.clock) if witness.committed else [])
    if witness.committed:
        witness.restart_round()


@many
@given(plans(), OPTIONS)
def test_random_clusters_keep_the_laws_and_the_barrier(plan, options):
    Barrier(plan, LBBSP(**options))


class Book:
    """Drives a model, and holds every answer against the rule. Keeps its own books."""

    def __init__(self, workers=0, **options):
        self.model = LBBSP(**options)
        self.sizes: dict[int, int] = {}
        self.missing: set[int] = set()
        self.begun = False
        self.given: list[tuple[int, int]] = []  # (start, size) of all pieces of the stream
        self.seq = [0] * 8
        self.now = 0.0
        for worker in range(workers):
            self.join(worker)

    @property
    def steps(self):
        return self.model.tau if self.model.controller == "federated" else 1

    def join(self, worker):
        self.sizes[worker] = self.model.batch
        self.missing.add(worker)
        direct, grant = self.model.join(worker, self.now)
        self._check_direct(direct, worker)
        assert grant == Grant(worker)

    def leave(self, worker):
        del self.sizes[worker]
        self.missing.discard(worker)
        self._check(self.model.leave(worker, self.now))

    def push(self, worker, seconds, cpu=None, memory=None, samples=None):
        """A push `seconds` after the one before; returns its weight."""
        self.now += seconds
        samples = self.steps * self.sizes[worker] if samples is None else samples
        push = Push(worker, self.seq[worker], 0, self.steps, samples, seconds, None, cpu, memory)
        self.seq[worker] += 1
        self.missing.discard(worker)
        self.begun = True
        accept, *rest = self.model.push(push, self.now)
        weight = samples / (self.steps * sum(self.sizes.values()))
        assert accept == Accept(push, weight)
        self._check(rest)
        return weight

    def round(self, *seconds):
        """Each of the workers 0, 1 ... pushes once."""
        return [self.push(worker, s) for worker, s in enumerate(seconds)]

    def _check(self, actions):
        if not self.begun or self.missing:
            assert actions == []
            return
        workers, model = sorted(self.sizes), self.model
        assert actions[0] == Commit() and len(actions) == 1 + 2 * len(workers)
        self.sizes = {direct.worker: direct.batch for direct in actions[1:1 + len(workers)]}
        assert sorted(self.sizes) == workers
        for worker, direct in zip(workers, actions[1:], strict=False):
            self._check_direct(direct, worker)
        assert actions[1 + len(workers):] == [Grant(worker) for worker in workers]
        assert sum(self.sizes.values()) == len(workers) * model.batch
        self.missing, self.begun = set(workers), False

    def _check_direct(self, direct, worker):
        size, model = self.sizes[worker], self.model
        assert type(size) is int and size % model.grain == 0
        assert model.low <= size <= (model.high or size)
        start = sum(self.given[-1]) if self.given else 0
        assert direct == Direct(worker, batch=size,
                                start=None if model.controller == "federated" else start)
        self.given.append((start, size))


EVENTS = st.lists(st.tuples(
    st.sampled_from(["push"] * 6 + ["join", "leave"]), st.integers(0, 4),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 2.0]), st.one_of(st.none(), st.floats(0, 1)),
    st.sampled_from([None] * 5 + [0, 1, 200])), max_size=60)


@many
@given(OPTIONS, EVENTS)
def test_any_order_of_joins_leaves_and_pushes_keeps_the_rule(options, events):
    """`samples`: of a push that was computed with another size; others have the directed one."""
    book = Book(2, **options)
    for kind, worker, seconds, use, samples in events:
        here = worker in book.sizes
        if kind == "push" and here:
            book.push(worker, seconds, use, use, samples)
        elif kind == "leave" and here:
            book.leave(worker)
        elif not here:
            book.join(worker)


@many
@given(OPTIONS, EVENTS, st.sampled_from([0.0, 0.3]))
def test_equal_speeds_are_bsp(options, events, fixed):
    """The same weights, versions and grants, with whoever comes and goes. Messages take no time."""
    model, bsp, book = LBBSP(**options), BSP(), {}
    seconds = fixed + model.batch / 100

    def same(ours, theirs):
        assert [a for a in ours if not isinstance(a, Direct)] == theirs
        assert all(a.batch == model.batch for a in ours if isinstance(a, Direct))
    now = 0.0
    for kind, worker, *_ in [("join", 0), ("join", 1), *events]:
        if kind == "push" and worker in book:
            push = Push(worker, book[worker], 0, model.rule.every,
                        model.rule.every * model.batch, seconds * model.rule.every)
            book[worker] += 1
            same(model.push(push, now), bsp.push(push, now))
        elif kind == "leave" and worker in book:
            del book[worker]
            same(model.leave(worker, now), bsp.leave(worker, now))
        elif worker not in book:
            book[worker] = 0
            same(model.join(worker, now), bsp.join(worker, now))


@many
@given(st.lists(st.sampled_from([1.0, 2.5, 7.0, 30.0]), min_size=1, max_size=5), OPTIONS)
def test_the_weighted_mean_is_the_gradient_of_the_union(speeds, options):
    random = np.random.default_rng(0)
    a, b, x = random.standard_normal((80, 3)), random.standard_normal(80), np.ones(3)

    def gradient(rows):
        return (a[rows] @ x - b[rows]) @ a[rows] / len(rows)
    book = Book(len(speeds), **(options | {"tau": 1}))
    for _ in range(4):
        sizes = book.sizes
        ends = np.cumsum(list(sizes.values()))
        batches = [np.arange(end - size, end) for end, size in zip(ends, sizes.values(),
                                                                   strict=True)]
        weights = book.round(*(size / speeds[worker] for worker, size in sizes.items()))
        mean = sum(w * gradient(rows) for w, rows in zip(weights, batches, strict=True))
        assert sum(weights) == pytest.approx(1, abs=1e-12)
        assert np.allclose(mean, gradient(np.concatenate(batches)), rtol=0, atol=1e-12)


@many
@given(OPTIONS.filter(lambda options: options["controller"] != "federated"), EVENTS,
       st.integers(1, 40))
def test_every_pass_over_the_data_holds_each_example_once(options, events, n):
    book = Book(2, **options)
    for kind, worker, seconds, *_ in events:
        if worker in book.sizes:
            book.push(worker, seconds) if kind != "leave" else book.leave(worker)
        else:
            book.join(worker)
    seen = [(p // n, p % n) for start, size in book.given for p in range(start, start + size)]
    epochs = len(seen) // n
    assert sorted(seen)[:epochs * n] == [(e, i) for e in range(epochs) for i in range(n)]


@pytest.mark.parametrize("predictor", ["last", "ema", "narx"])
def test_batches_become_proportional_to_the_speeds(predictor):
    book = Book(3, batch=120, predictor=predictor)
    for _ in range(6):
        book.round(*(book.sizes[worker] / v for worker, v in enumerate((100, 200, 300))))
    assert book.sizes == {0: 60, 1: 120, 2: 180}


@pytest.mark.parametrize("options", [{}, {"controller": "gpu", "window": 1}])
def test_a_sleep_before_each_step_is_distinguished_from_a_slow_machine(options):
    """As fast as the other, but 0.05 s late: at the optimum both take 0.125 s."""
    book = Book(2, batch=100, fine=1, predictor="last", **options)
    for _ in range(60):
        book.round(0.05 + book.sizes[0] / 1000, book.sizes[1] / 1000)
    assert book.sizes[0] == pytest.approx(75, abs=1) and sum(book.sizes.values()) == 200


def test_bounds_hold_where_speeds_would_break_them():
    book = Book(2, batch=64, low=20, high=96, grain=8)
    for _ in range(5):
        book.round(book.sizes[0] / 1.0, book.sizes[1] / 1000)
    assert book.sizes == {0: 32, 1: 96}
    book = Book(2, batch=64, low=20, grain=8)
    for _ in range(5):
        book.round(book.sizes[0] / 1.0, book.sizes[1] / 1000)
    assert book.sizes == {0: 24, 1: 104}


def test_a_joiner_takes_the_base_batch_and_the_next_examples_and_is_waited_for():
    book = Book(2, batch=100)
    for _ in range(3):
        book.round(1.0, book.sizes[1] / book.sizes[0] / 3)
    assert book.sizes == {0: 50, 1: 150} and book.given[-1] == (3 * 200 + 50, 150)
    assert book.push(0, 1.0) == 50 / 200
    book.join(2)
    assert book.given[-1] == (800, 100)
    assert book.push(1, 1.0) == 150 / 300  # no new version yet, which the book sees to
    assert book.push(2, 1.0) == 100 / 300
    assert sum(book.sizes.values()) == 300


def test_a_worker_that_leaves_lets_the_rest_commit_and_share_again():
    book = Book(3, batch=100)
    for _ in range(3):
        book.round(*(book.sizes[w] / v for w, v in enumerate((100, 200, 300))))
    assert book.push(0, 1.0) == 50 / 300
    book.leave(2)
    assert book.push(1, 0.5) == 100 / 150
    assert sum(book.sizes.values()) == 200


def test_a_worker_that_is_ahead_after_a_restart_waits_for_the_others():
    """And nothing is known of its speed until it has pushed."""
    model = LBBSP(batch=8)
    assert model.rejoin(0, 0, 0.0) == [Direct(0, batch=8, start=0), Grant(0)]
    assert model.rejoin(1, 1, 0.0) == []
    accept, *rest = model.push(Push(0, 0, 0, 1, 12, 1.0), 1.0)
    assert accept.weight == 12 / 16, "of as many examples as the server before gave it"
    assert rest == [Commit(), Direct(0, batch=8, start=8), Direct(1, batch=8, start=16),
                    Grant(0), Grant(1)]
    model.push(Push(0, 1, 0, 1, 8, 1.0), 2.0)
    (*_, slow, fast, _, _) = model.push(Push(1, 1, 0, 1, 8, 0.5), 2.0)
    assert slow.batch < fast.batch and slow.batch + fast.batch == 16, "from here on as ever"


def test_a_worker_that_has_left_ahead_of_the_others_has_its_part_of_the_round():
    model = LBBSP(batch=8)
    for worker, ahead in enumerate((0, 0, 1)):
        model.rejoin(worker, ahead, 0.0)
    assert model.leave(2, 0.5) == []
    weights = [model.push(Push(worker, 0, 0, 1, 8, 1.0), 1.0)[0].weight for worker in range(2)]
    assert weights == [8 / 24, 8 / 24]
    assert model.push(Push(0, 1, 0, 1, 8, 1.0), 2.0)[0].weight == 8 / 16


def test_federated_clients_train_tau_steps_on_their_own_data():
    model = LBBSP(controller="federated", tau=5)
    assert (model.rule.every, model.rule.shared) == (5, False)
    assert model.join(0, 0.0) == [Direct(0, batch=128), Grant(0)]
    push = Push(0, 0, 0, 5, 5 * 128, 1.0)
    assert model.push(push, 2.0) == [Accept(push, 1.0), Commit(), Direct(0, batch=128), Grant(0)]


def test_a_federated_client_far_away_trains_less():
    """All train 100 examples/s; messages to the first take 6 s a round; the last comes late."""
    model, now = LBBSP(controller="federated", tau=2, batch=500, predictor="last"), 0.0
    model.join(0, now)
    model.join(1, now)
    for seq in range(8):
        if seq == 4:
            assert model.sizes == {0: 350, 1: 650}  # both 13 s
            model.join(2, now)
        granted, sizes = now, dict(model.sizes)
        for worker in reversed(sizes):
            seconds = 2 * sizes[worker] / 100
            now = granted + seconds + (0.0 if worker else 6.0)
            model.push(Push(worker, seq, seq, 2, 2 * sizes[worker], seconds), now)
    assert model.sizes == {0: 300, 1: 600, 2: 600}  # all 12 s


def test_the_examples_of_a_partial_push_count_as_they_are():
    book = Book(2, controller="federated", tau=4, batch=16)
    assert book.push(0, 1.0, samples=16) == 16 / (4 * 32)


@pytest.mark.parametrize("options, message", [
    ({"batch": 100, "grain": 8}, "batch=100 is not a multiple of grain=8; give one that is"),
    ({"batch": 16, "low": 17}, "batch=16 is not between low=17 and high=0"),
    ({"batch": 16, "high": 8}, "batch=16 is not between low=1 and high=8"),
    ({"controller": "gpu", "coarse": 12, "grain": 8}, "coarse=12 is not a multiple of grain=8"),
    ({"controller": "gpu", "coarse": 4, "fine": 8}, "fine=8 is above coarse=4"),
    ({"controller": "tpu"}, "controller='tpu' is not one of cpu, gpu, federated"),
    ({"predictor": "oracle"}, "predictor='oracle' is not one of last, ema, narx"),
])
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=f"lbbsp: (option )?{message}") as error:
        LBBSP(**options)
    assert "\n" not in str(error.value)


def test_steps_of_the_gpu_controller_bind_no_other():
    assert LBBSP(controller="cpu", grain=32).sizes == {}


SPEEDS = [(1.0, 1.0, 1.0), (1.0, 0.25, 0.5), (0.1, 2.0, 0.3)]


@pytest.mark.parametrize("controller", ["cpu", "gpu"])
@pytest.mark.parametrize("seconds", SPEEDS)
def test_training_is_sgd_on_the_shared_stream_at_any_speeds(controller, seconds):
    n, rounds = len(seconds), 30
    workload = QuadraticWorkload(n, seed=3)
    model = LBBSP(controller=controller, batch=workload.batch, window=1, coarse=4, fine=2)
    cluster = Cluster(model, [Machine(constant(s)) for s in seconds], workload,
                      stop_samples=rounds * n * workload.batch)
    cluster.run()
    x = workload.initial().astype(float)
    for k in range(rounds):
        rows = workload.draw(0, n * workload.batch, k * n * workload.batch)
        x -= workload.rate * ((workload.a[rows] @ x - workload.b[rows]) @ workload.a[rows]
                              ) / len(rows)
    assert cluster.engine.store.latest.version == rounds
    assert np.allclose(cluster.engine.store.latest.vector, x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("controller, at_most", [("cpu", 0.5), ("gpu", 0.6)])
def test_unequal_workers_end_sooner_than_under_bsp(controller, at_most):
    """Speeds 1 : 4, so 0.4 of the time of BSP at best."""
    def time(model):
        cluster = Cluster(model, [Machine(constant(1.0)), Machine(constant(0.25))],
                          QuadraticWorkload(2), stop_samples=60 * 2 * 16)
        cluster.run()
        return cluster.ended
    options = {"controller": controller, "batch": 16, "window": 2, "coarse": 4, "fine": 1}
    assert time(LBBSP(**options)) < at_most * time(BSP())
