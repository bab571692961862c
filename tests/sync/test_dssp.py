"""DSSP: a bound between s_l and s_u, where the fastest worker is predicted to wait least."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import Witness, events, granted_in, many, plans

from wbsp.sync import Grant, Push, create
from wbsp.sync.dssp import DSSP, extra_steps

BOUNDS = st.tuples(st.integers(0, 4), st.integers(0, 6)).map(lambda b: (b[0], b[0] + b[1]))
GRID = st.integers(0, 80).map(lambda eighths: eighths / 8)
TIME = GRID | st.floats(0, 1e6)


def search(fast, fast_interval, slow, slow_interval, most):
    """The controller by trying every pair."""
    gaps = [(abs(fast + r * fast_interval - (slow + k * slow_interval)), r)
            for r in range(most + 1) for k in range(1, most + 2)]
    return min(gaps)[1]


@many
@given(TIME, TIME, TIME, TIME, st.integers(0, 20))
def test_the_controller_finds_the_result_of_trying_every_pair(a, i, b, j, most):
    assert extra_steps(a, i, b, j, most) == search(a, i, b, j, most)


def test_the_controller_lets_the_fastest_arrive_with_the_slowest():
    assert extra_steps(10.0, 1.0, 8.0, 4.0, most=4) == 2  # at 12
    assert extra_steps(10.0, 1.0, 9.5, 1.0, most=4) == 0  # 10.5 is as far as any: the smallest
    assert extra_steps(10.0, 3.0, 5.0, 6.5, most=1) == 0  # 11.5 is as near to 10 as to 13
    assert extra_steps(10.0, 1.0, 0.0, 100.0, most=4) == 4  # far away: run on


class Judge(Witness):
    """The algorithm once more, naively: full searches over all workers and all pairs."""

    def __init__(self, plan, s_l, s_u):
        self.s_l, self.s_u = s_l, s_u
        self.known, self.order = {}, 0  # worker -> [clock, since, stamps, credit, held]
        super().__init__(plan, DSSP(s_l=s_l, s_u=s_u), Judge.check)

    def starts(self, worker, now):
        ahead = self.clock[worker] - min(self.clock.values())
        assert ahead <= self.s_u, f"worker {worker} starts {ahead} steps ahead"

    def check(self, outgoing, push):
        assert self.committed == (push is not None)
        known, clock = self.known, self.clock
        for worker in known.keys() - clock.keys():
            del known[worker]
        for worker in sorted(clock.keys() - known.keys()):
            joined = clock[worker] - (push is not None and push.worker == worker)
            known[worker] = {
                "clock": joined, "since": self._next(), "stamps": [], "credit": 0, "held": False}
        expected = set()
        if push:
            me = known[push.worker]
            me.update(clock=me["clock"] + 1, since=self._next(),
                      stamps=[*me["stamps"], self.cluster.clock.now])
        least = min(w["clock"] for w in known.values())
        for worker, it in known.items():
            if it["held"] and it["clock"] - least <= self.s_l:
                it["held"] = False
                expected.add(worker)
        if push and self._granted(me, least):
            expected.add(push.worker)
        elif push:
            me["held"] = True
        granted = granted_in(outgoing).keys()
        assert granted == expected
        assert all(it["clock"] == clock[worker] for worker, it in known.items())

    def _granted(self, me, least):
        lead = me["clock"] - least
        if me["credit"]:
            me["credit"] -= 1
            return True
        if lead <= self.s_l:
            return True
        slowest = min(self.known.values(), key=lambda it: (it["clock"], it["since"]))
        if (me["clock"] < max(it["clock"] for it in self.known.values())
                or min(len(me["stamps"]), len(slowest["stamps"])) < 2):
            return False
        mine, its = me["stamps"], slowest["stamps"]
        wanted = search(mine[-1], mine[-1] - mine[-2], its[-1], its[-1] - its[-2],
                        self.s_u - self.s_l)
        me["credit"] = max(0, min(wanted, self.s_u + 1 - lead) - 1)
        return min(wanted, self.s_u + 1 - lead) > 0

    def _next(self):
        self.order += 1
        return self.order


@many
@given(plans(), BOUNDS)
def test_random_clusters_keep_the_laws_the_bound_and_the_algorithm(plan, bounds):
    Judge(plan, *bounds)


@many
@given(plans(), st.integers(0, 5))
def test_equal_bounds_are_ssp(plan, s):
    assert events(DSSP(s_l=s, s_u=s), plan) == events(create("ssp", s=s), plan)


def push(worker, seq):
    return Push(worker, seq, 0, 1, 1, 1.0)


def drive(model, times):
    """Push at [(worker, second)], and return the workers granted by each push."""
    seq, granted = {}, []
    for worker, now in times:
        actions = model.push(push(worker, seq.setdefault(worker, 0)), now)
        seq[worker] += 1
        granted.append([a.worker for a in actions if isinstance(a, Grant)])
    return granted


def test_a_worker_at_the_bound_continues_until_the_slowest_is_due():
    model = DSSP(s_l=1, s_u=5)
    model.join(0, 0.0)
    model.join(1, 0.0)
    assert drive(model, [(0, 1), (0, 2), (1, 4), (0, 5), (1, 8)]) == [
        [0], [], [0, 1], [], [0, 1]]  # held: the slowest has not pushed twice
    # waiting has made 0 look as slow as 1: one step; then three at 1 s, to meet 1 at 12 s
    assert drive(model, [(0, 9), (0, 10), (0, 11), (1, 12)]) == [[0], [0], [0], [1]]
    assert model.clock == {0: 6, 1: 3}


def test_the_lead_stops_at_the_upper_bound():
    model = DSSP(s_l=0, s_u=2)
    model.join(0, 0.0)
    model.join(1, 0.0)
    drive(model, [(0, 1), (1, 100), (0, 101), (1, 200)])
    assert drive(model, [(0, 201), (0, 202), (0, 203)]) == [[0], [0], []]
    assert drive(model, [(1, 300), (1, 400), (1, 500)]) == [[1], [1], [0, 1]]


def test_credit_ends_with_its_workers_life():
    model = DSSP(s_l=0, s_u=9)
    model.join(0, 0.0)
    model.join(1, 0.0)
    drive(model, [(0, 1), (1, 100), (0, 101), (1, 200), (0, 201)])
    model.leave(0, 202.0)
    model.join(0, 203.0)
    assert drive(model, [(0, 204)]) == [[]]


def test_the_loss_of_the_slowest_worker_frees_the_waiting_ones():
    model = DSSP(s_l=0, s_u=3)
    model.join(0, 0.0)
    model.join(1, 0.0)
    assert drive(model, [(0, 1)]) == [[]]
    assert model.leave(1, 2.0) == [Grant(0)]


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="dssp: option s_l=5 is above s_u=4"):
        DSSP(s_l=5, s_u=4)
