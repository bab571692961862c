"""ElasticBSP: quotas that end at about the same moment, and a barrier for all of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pushes import push
from random_clusters import INF, Incarnation, Witness, granted_in, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import Accept, Commit, Grant, create
from wbsp.sync.elasticbsp import ElasticBSP


def best_barrier(rows):
    """(d, barrier, ends until it) by trying every end as the barrier."""
    first = max(row[0] for row in rows.values())
    d, barrier = min((time - min(max(end for end in row if end <= time) for row in rows.values()),
                      time)
                     for time in {end for row in rows.values() for end in row} if time >= first)
    return d, barrier, {worker: sum(end <= barrier for end in row) for worker, row in rows.items()}


class Supersteps:
    """Keeps its own books of the superstep, and asserts each answer of the model."""

    def __init__(self, r):
        self.r = r
        self.barriers = 0
        self.met = {}  # worker -> version of the newest barrier, until it is adopted
        self.restart()

    def restart(self):
        self.stamps = {}  # worker -> times of its pushes since the barrier
        self.quota = None  # worker -> pushes to go, once they are set
        self.arrivals = []

    def may_step(self, worker):
        return self.quota is None or self.quota.get(worker, 0) > 0

    def __call__(self, witness, outgoing, push):
        now, active = witness.cluster.clock.now, set(witness.clock)
        granted = granted_in(outgoing).keys()
        for books in (self.stamps, self.quota or {}, self.met):
            for worker in books.keys() - active:
                del books[worker]
        if self.quota is None:
            if push:
                self.stamps.setdefault(push.worker, []).append(now)
            assert granted == ({push.worker} if push else set())
            assert witness.committed == (push is not None)
            if all(len(self.stamps.get(worker, ())) >= 2 for worker in active):
                self.predict(now)
            return
        if push and self.quota.get(push.worker):
            self.quota[push.worker] -= 1
            self.arrivals += [now] * (not self.quota[push.worker])
        if any(self.quota.values()):
            goes_on = push is not None and self.quota.get(push.worker, 0) > 0
            assert granted == ({push.worker} if goes_on else set())
            assert witness.committed == goes_on
        else:
            assert granted == active and witness.committed
            self.barriers += 1
            self.met = dict.fromkeys(active, witness.cluster.engine.store.latest.version)
            self.meet(now)
            self.restart()

    def predict(self, now):
        rows = {}
        for worker, (*_, before, last) in self.stamps.items():
            first = max(now, last + (last - before))
            rows[worker] = [first + i * (last - before) for i in range(self.r)]
        self.d, self.barrier, self.quota = best_barrier(rows)
        assert all(1 <= quota <= self.r for quota in self.quota.values())

    def meet(self, now):
        """The barrier opens."""


class Elastic(Witness):
    """No worker starts a step beyond its quota; all wait for the barrier's version."""

    exactly = False

    def starts(self, worker, now):
        assert self.judge.may_step(worker), f"worker {worker} starts a step at the barrier"

    def adopt(self, worker, now, version, how):
        super().adopt(worker, now, version, how)
        met = self.judge.met.pop(worker, version)
        assert version == met or (version > met and not self.exactly)


class ElasticAtOnce(Elastic):
    """Without delays no worker can push before all have fetched the barrier's version."""

    exactly = True


def longer(plan):
    return plan._replace(settings=plan.settings | {"stop_samples":
                                                   5 * plan.settings["stop_samples"]})


def instant(plan):
    return longer(plan)._replace(
        workers=[worker | {"latency": 0.0, "up": INF, "down": INF} for worker in plan.workers],
        settings=longer(plan).settings | {
            "model_bytes": 0.0, "server": replace(plan.settings["server"], apply_seconds=0.0)})


def steady(plan):
    """Speeds without noise, and a fixed set of workers."""
    return instant(plan)._replace(traces=[times[:1] for times in plan.traces],
                                  workers=[worker | {"incarnations": (Incarnation(),)}
                                           for worker in instant(plan).workers])


look_ahead = st.sampled_from([1, 2, 3, 5, 15])


@many
@given(plans().map(longer), look_ahead)
def test_random_clusters_keep_the_laws_and_the_quotas(plan, r):
    Elastic(plan, ElasticBSP(r=r), Supersteps(r))


@many
@given(plans().map(instant), look_ahead)
def test_all_hold_identical_weights_after_a_barrier(plan, r):
    ElasticAtOnce(plan, ElasticBSP(r=r), Supersteps(r))


class Punctual(Supersteps):
    def meet(self, now):
        assert now == self.barrier
        assert now - min(self.arrivals) == self.d


@many
@given(plans().map(steady), look_ahead)
def test_with_steady_speeds_the_first_to_arrive_waits_d(plan, r):
    judge = Punctual(r)
    ElasticAtOnce(plan, ElasticBSP(r=r), judge)
    n = len(plan.workers)
    most = 4 * 2 * n + n * r  # of one superstep's pushes: a fast worker makes 8 in a slow one's 2
    assert judge.barriers >= plan.settings["stop_samples"] // (most + 8 * n)


events = st.lists(st.tuples(st.sampled_from(["join", "leave", "push", "push", "push"]),
                            st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0, 7.0])),
                  max_size=60)


@many
@given(events, look_ahead)
def test_at_least_one_worker_may_always_continue(events, r):
    """Any order of joins, leaves and pushes, also pushes that were made before a return."""
    model, now, seq, free = ElasticBSP(r=r), 0.0, 0, set()
    for kind, worker, passed in events:
        now += passed
        if (kind == "join") == (worker in model.active):
            continue
        if kind == "push":
            pushed, seq = push(worker, seq), seq + 1
            actions = model.push(pushed, now)
            assert [a for a in actions if isinstance(a, Accept)] == [
                Accept(pushed, 1 / len(model.active))]
            free.discard(worker)
        else:
            actions = getattr(model, kind)(worker, now)
        free = (free | set(grants(actions))) & model.active
        assert free or not model.active
        assert model.quota.keys() <= model.active


def grants(actions):
    return [action.worker for action in actions if isinstance(action, Grant)]


def after(pushes, workers=2, **options):
    """A model whose `workers` joined at 0 s and made these (time, worker) pushes."""
    model = ElasticBSP(**options)
    for worker in range(workers):
        assert model.join(worker, 0.0) == [Grant(worker)]
    for time, worker in pushes:
        model.push(push(worker), time)
    return model


ONE_TO_THREE = [(1.0, 0), (2.0, 0), (3.0, 0), (3.0, 1), (4.0, 0), (5.0, 0), (6.0, 0), (6.0, 1)]


def test_the_quotas_end_together_and_the_last_opens_the_barrier():
    model = after(ONE_TO_THREE)
    assert model.quota == {0: 3, 1: 1}
    assert model.choice.barrier == 9.0 and model.choice.d == 0.0
    for now in (7.0, 8.0):
        assert model.push(push(0), now) == [Accept(push(0), 1 / 2), Commit(), Grant(0)]
    assert model.push(push(0), 9.0) == [Accept(push(0), 1 / 2)]
    assert model.push(push(1), 9.5) == [Accept(push(1), 1 / 2), Commit(), Grant(0), Grant(1)]
    assert model.quota == {}


def test_the_wait_at_the_barrier_is_no_part_of_an_interval():
    model = after([*ONE_TO_THREE, (7.0, 0), (8.0, 0), (9.0, 0), (50.0, 1)])
    for now, worker in ((51.0, 0), (52.0, 0), (53.0, 1)):
        model.push(push(worker), now)
        assert model.quota == {}
    model.push(push(1), 56.0)
    assert model.quota == {0: 4, 1: 1}  # worker 0 was due at 53 s: from 56 s it needs 4 to reach 59


def test_an_overdue_workers_row_starts_now():
    model = after([(1.0, 0), (2.0, 0), (5.0, 1), (10.0, 1)])
    assert model.quota == {0: 6, 1: 1} and model.choice.barrier == 15.0  # 10, 11 ... 15


def test_a_shorter_horizon_bounds_the_quota():
    model = after([(1.0, 0), (2.0, 0), (5.0, 1), (10.0, 1)], r=4)
    assert model.quota == {0: 4, 1: 1} and model.choice.d == 2.0


def test_a_worker_that_joins_while_the_quotas_run_waits_for_the_barrier():
    model = after(ONE_TO_THREE)
    assert model.join(2, 6.5) == []
    model.push(push(1), 9.0)
    assert model.leave(0, 9.5) == [Commit(), Grant(1), Grant(2)]


def test_a_push_made_before_a_return_is_accepted_and_changes_no_quota():
    model = after(ONE_TO_THREE)
    assert model.leave(1, 6.5) == [] and model.join(1, 7.0) == []
    assert model.push(push(1), 7.0) == [Accept(push(1), 1 / 2)]
    assert model.quota == {0: 3}


def test_a_held_worker_may_leave():
    model = after([*ONE_TO_THREE, (9.0, 1)])
    assert model.leave(1, 9.5) == []
    assert model.quota == {0: 3}


def test_prediction_does_not_wait_for_a_worker_that_left():
    model = after([(1.0, 0), (2.0, 0), (3.0, 1)])
    assert model.quota == {}
    assert model.leave(1, 4.0) == []
    assert model.quota == {0: 1}


def test_after_everyone_has_left_a_joiner_begins_a_superstep():
    model = after(ONE_TO_THREE)
    model.leave(0, 7.0)
    model.leave(1, 7.0)
    assert model.join(1, 8.0) == [Grant(1)]
    model.push(push(1), 9.0)
    assert model.quota == {}
    model.push(push(1), 10.0)
    assert model.quota == {1: 1}


@pytest.mark.parametrize("r", [0, -1, 1.5, "many"])
def test_a_horizon_of_no_steps_is_refused(r):
    with pytest.raises(ValueError, match="elasticbsp: option r="):
        ElasticBSP(r=r)


def waited(model):
    cluster = Cluster(model, [Machine(constant(s)) for s in (1.0, 1.375, 2.25)], stop_samples=400)
    cluster.run()
    return sum(report.seconds["wait"] for report in cluster.reports) / cluster.ended


def test_workers_wait_less_than_under_bsp_and_less_with_a_longer_horizon():
    waits = [waited(model) for model in (create("bsp"), ElasticBSP(r=1), ElasticBSP(r=15))]
    assert waits[0] > 2 * waits[1] > 4 * waits[2]
