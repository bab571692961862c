"""ADSP: the server directs all workers when to commit, so that all commit equally often."""

import math
from heapq import heappop, heappush
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import Witness, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, trace
from wbsp.sync import Accept, Commit, Direct, Grant, Push
from wbsp.sync.adsp import ADSP, Search, interval, reward


class Watched(ADSP):
    """No worker is directed twice without a push between."""

    def __init__(self, **options):
        super().__init__(**options)
        self.outstanding = set()

    def leave(self, worker, now):
        self.outstanding.discard(worker)
        return super().leave(worker, now)

    def push(self, push, now):
        self.outstanding.discard(push.worker)
        actions = super().push(push, now)
        assert actions == [Accept(push, 1 / len(self.active)), Commit(), Grant(push.worker)]
        return actions

    def tick(self, now):
        actions = super().tick(now)
        for action in actions:
            assert action == Direct(action.worker, cut=True) and action.worker in self.active
            assert action.worker not in self.outstanding, "told again before it has pushed"
            self.outstanding.add(action.worker)
        assert self.alarm is None if not self.active else self.alarm > now
        return actions


def every_push_is_a_version(witness, outgoing, push):
    assert witness.committed == (push is not None)


@many
@given(plans(), st.sampled_from([1.0, 4.0, 15.0]), st.integers(1, 4))
def test_random_clusters_keep_the_laws_and_wait_for_no_worker(plan, period, commits):
    model = Watched(period=period)
    model.search.rate = commits
    witness = Witness(plan, model, every_push_is_a_version)
    witness.assert_waits_for_itself_only()


@st.composite
def machines(draw):
    """Workers whose step and transfer together fit between two commits, up to six in 60 s."""
    times = st.lists(st.floats(0.3, 3.0), min_size=1, max_size=4)
    return [Machine(trace(draw(times)), latency=draw(st.floats(0, 0.5)), up=draw(
        st.floats(0.5, 10)), down=draw(st.floats(0.5, 10))) for _ in range(draw(st.integers(1, 4)))]


@many
@given(machines(), st.integers(1, 6))
def test_after_every_period_all_have_committed_equally_often_within_one(workers, commits):
    times = [[] for _ in workers]

    def log(now, kind, **fields):
        if kind == "accept":
            times[fields["worker"]].append(now)
    model = ADSP()
    model.search.rate = commits
    begin = max(worker.latency for worker in workers)  # when all have come
    cluster = Cluster(model, workers, model_bytes=1.0, log=log)
    cluster.run(until=begin + 245.0)
    for period in range(1, 5):
        counts = [sum(t <= begin + 60.0 * period for t in one) for one in times]
        assert max(counts) - min(counts) <= 1
        assert all(abs(count - commits * period) <= 1 for count in counts), counts


@many
@given(st.floats(1e-3, 1e5), st.integers(1, 10**6), st.floats(0, 1e6))
def test_the_interval_is_positive_and_no_longer_than_its_share(period, commits, overhead):
    assert 0 < interval(period, commits, overhead) <= max(period / commits, period / 100)


def test_the_interval_is_the_share_less_the_overhead():
    assert interval(60.0, 4, 2.5) == 12.5


# The search.


def curve(slope, b, c):
    return lambda t: 1 / (slope * t + b) + c


@pytest.mark.parametrize("slope, b, c", [(0.01, 0.4, 0.0), (0.02, 0.4, -0.3), (0.002, 0.5, -0.5)])
def test_the_reward_is_the_inverse_of_the_seconds_to_the_goal(slope, b, c):
    loss, times = curve(slope, b, c), [60.0, 90.0, 120.0]
    seconds = (1 / (0.2 - c) - b) / slope
    assert reward(times, [loss(t) for t in times], 0.2) == pytest.approx(1 / seconds, rel=1e-4)


LOSS = st.floats(-1, 10) | st.floats(0.1, 3)


@many
@given(st.floats(0, 1e6), st.floats(0, 100), LOSS, LOSS, LOSS, st.floats(1e-3, 5))
def test_the_reward_is_positive_or_the_lowest_at_any_losses(begin, half, a, b, c, goal):
    value = reward([begin, begin + half, begin + 2 * half], [a, b, c], goal)
    assert 0 < value < math.inf or value == -math.inf
    if half >= 1 and a > b > c > 0.1 and a > 2 * goal:
        assert value > 0, "a loss that falls has a reward"


@pytest.mark.parametrize("times, losses", [
    ([0, 30, 60], [2.0, 1.9, 2.0]),  # not fallen
    ([0, 30, 60], [2.0, 2.5, 2.1]),
    ([0, 30, 60], [2.0, 1.0, math.nan]),
    ([0, 30, 60], [2.0, 1.0, 0.0]),
    ([0, 30, 60], [-1.0, -2.0, -3.0]),
    ([60, 60, 60], [2.0, 1.5, 1.0]),  # no time
    ([60, 90, 120], [0.2, 0.15, 0.1]),  # past the goal
])
def test_degenerate_fits_score_lowest(times, losses):
    assert reward(times, losses, 0.2) == -math.inf


@many
@given(st.lists(st.integers(-2, 5).map(lambda r: r if r > -2 else -math.inf),
                min_size=1, max_size=12))
def test_the_search_moves_up_only_while_the_reward_improves(rewards):
    search, trials = Search(), []
    search.end(0.0, 2.0)
    with patch("wbsp.sync.adsp.reward", side_effect=rewards):
        for period in range(len(rewards)):
            if not search.running:
                break
            trials.append(search.commits)
            search.observe(60.0 * period + 30, 2.0)
            search.end(60.0 * period + 60, 2.0)
    better = next((i for i in range(len(rewards) - 1) if rewards[i + 1] <= rewards[i]), None)
    assert trials == list(range(1, len(trials) + 1))
    assert search.rate == (len(rewards) if better is None else better + 1)
    assert search.running == (better is None)
    assert search.commits == search.rate + search.running


def periods(search, losses, start=0.0):
    """The search receives these losses, one every half period."""
    for half, loss in enumerate(losses):
        now = start + 30.0 * half
        (search.observe if half % 2 else search.end)(now, loss)


def test_a_rise_of_the_loss_by_30_percent_begins_a_new_search_from_c():
    search = Search()
    periods(search, [2.0, 1.9, 1.8, 1.2, 0.8, 0.8, 0.8])
    assert (search.running, search.rate, search.commits) == (False, 2, 2)
    periods(search, [0.9, 0.9, 1.16], start=200.0)
    assert not search.running
    periods(search, [1.16, 1.3, 1.52], start=300.0)
    assert (search.running, search.commits) == (True, 2)
    periods(search, [1.52, 1.4, 1.3], start=400.0)
    assert (search.running, search.rate, search.commits) == (True, 2, 3)


def test_nothing_is_searched_where_no_loss_is_known():
    search = Search()
    periods(search, [None] * 9)
    assert (search.running, search.rate, search.commits) == (True, 1, 1)


# The model by itself.


class Crew:
    """Workers that push `seconds` after a directive, while the model is driven by its alarm."""

    def __init__(self, model, seconds, loss=lambda now: None):
        self.model, self.seconds, self.loss = model, seconds, loss
        self.times = [[] for _ in seconds]  # of its pushes
        self.coming = []  # heap of (time, worker)
        for worker in range(len(seconds)):
            model.join(worker, 0.0)

    def run(self, until):
        while True:
            now = min(self.model.alarm, self.coming[0][0] if self.coming else math.inf)
            if now > until:
                return self
            if self.coming and self.coming[0][0] == now:
                _, worker = heappop(self.coming)
                self.times[worker].append(now)
                self.model.push(Push(worker, len(self.times[worker]) - 1, 0, 1, 1, 1.0,
                                     self.loss(now)), now)
            else:
                for action in self.model.tick(now):
                    heappush(self.coming, (now + self.seconds[action.worker], action.worker))


def test_the_overhead_is_taken_off_so_that_commits_keep_their_distance():
    model = ADSP(period=60.0)
    model.search.rate = 3
    times = Crew(model, [0.5, 7.0]).run(239.0).times
    assert times[0] == pytest.approx([20.5 + 20 * i for i in range(11)])
    assert times[1] == pytest.approx([27 + 20 * i for i in range(11)])


def test_a_worker_too_slow_for_its_share_commits_as_often_as_it_can():
    model = ADSP(period=60.0)
    model.search.rate = 6
    times = Crew(model, [1.0, 25.0]).run(600.0).times
    gaps = [later - sooner for sooner, later in zip(times[1], times[1][1:], strict=False)]
    assert max(gaps[1:]) <= 25.0 + 60.0 / 100 + 1e-9
    assert abs(len(times[0]) - 60) <= 1, "the slow worker changes nothing for the fast one"


def test_losses_that_fall_faster_with_more_commits_raise_c():
    model = ADSP(period=60.0)
    log = []

    class Descent:
        """Falls faster from period to period, until C = 4 is tried."""

        loss, before = 2.0, 0.0

        def __call__(self, now):
            rate = {1: 0.0005, 2: 0.002, 3: 0.004}.get(model.search.commits, 0.0005)
            self.loss *= math.exp(-rate * (now - self.before))
            self.before = now
            log.append(model.search.commits)
            return self.loss

    Crew(model, [0.1, 0.1, 0.1], Descent()).run(1200.0)
    assert model.search.rate == 3 and not model.search.running
    assert max(log) == 4


def test_without_losses_c_stays_1():
    model = ADSP(period=60.0)
    times = Crew(model, [0.1, 5.0]).run(610.0).times
    assert model.search.commits == 1 and [len(t) for t in times] == [10, 10]


def test_a_worker_that_joins_owes_nothing_for_the_time_before():
    model = ADSP(period=60.0)
    model.search.rate = 4
    model.join(0, 0.0)
    now = 0.0
    while now < 595.0:  # no worker pushes, but time passes
        now = model.alarm
        model.tick(now)
    model.join(1, 600.0)
    assert model.pace[1].count == model.target - 4
    model.join(2, 630.0)
    assert model.pace[2].count == model.target - 2
    assert model.pace[1].share == model.pace[2].share == 4


def test_a_worker_that_died_after_a_direct_and_returned_is_directed_again():
    model = ADSP(period=10.0)
    model.join(0, 0.0)
    model.join(1, 0.0)
    assert Direct(0, cut=True) in model.tick(10.0)
    model.leave(0, 11.0)
    assert model.join(0, 12.0) == [Grant(0)]
    late = Push(0, 0, 0, 1, 1, 1.0)  # computed before it died
    assert model.push(late, 13.0) == [Accept(late, 1 / 2), Commit(), Grant(0)]
    told = []
    while model.alarm < 30.0:
        told += model.tick(model.alarm)
    assert told.count(Direct(0, cut=True)) == 1


def test_after_all_have_left_the_next_worker_begins_a_new_period():
    model = ADSP(period=10.0)
    model.join(0, 0.0)
    model.leave(0, 1.0)
    assert model.alarm is None
    model.join(1, 100.0)
    assert model.alarm == 105.0  # the half of its first period
    model.tick(105.0)
    assert model.tick(110.0) == [Direct(1, cut=True)]


def test_a_period_of_zero_is_refused():
    with pytest.raises(ValueError, match="adsp: option period=0 is below 0.001"):
        ADSP(period=0)
