"""Sizes: the solver is exact; the trial by moves ends within one fine step of the optimum."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import many

from wbsp.sync.balance import Shifter, fastest, greedy
from wbsp.sync.base import Push

SPEEDS = st.one_of(st.sampled_from([1.0, 2.0, 3.0, 0.1, 100.0]), st.floats(0.1, 50.0))
OVERHEADS = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 3.0))
MACHINES = st.lists(st.tuples(SPEEDS, OVERHEADS), min_size=1, max_size=6)


@st.composite
def tables(draw):
    """(seconds of each worker by its size, low, high, total); times do not decrease."""
    n = draw(st.integers(1, 4))
    rises = st.lists(st.integers(0, 3), min_size=6, max_size=6)
    times = [[sum(rise[:x]) for x in range(7)] for rise in
             draw(st.lists(rises, min_size=n, max_size=n))]
    bounds = [sorted(draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))) for _ in range(n)]
    low, high = zip(*bounds, strict=True)
    return times, low, high, draw(st.integers(sum(low), sum(high)))


@many
@given(tables())
def test_no_other_sizes_are_faster_under_any_costs(problem):
    times, low, high, total = problem
    sizes = greedy(lambda i, x: times[i][x], low, total, high)
    assert sum(sizes) == total
    assert all(a <= x <= b for a, x, b in zip(low, sizes, high, strict=True))

    def slowest(sizes):
        return max(times[i][x] for i, x in enumerate(sizes))
    ranges = [range(a, b + 1) for a, b in zip(low, high, strict=True)]
    assert slowest(sizes) == min(slowest(s) for s in product(*ranges) if sum(s) == total)


@st.composite
def linear(draw):
    """(speeds, overheads, total, low, high)"""
    speed, fixed = zip(*draw(MACHINES), strict=True)
    low = draw(st.integers(0, 5))
    high = low + draw(st.integers(0, 60))
    return speed, fixed, draw(st.integers(len(speed) * low, len(speed) * high)), low, high


@many
@given(linear())
def test_the_fast_solver_gives_the_sizes_of_the_greedy_one(problem):
    speed, fixed, total, low, high = problem
    n = len(speed)
    sizes = fastest(*problem)
    assert sizes == greedy(lambda i, x: x / speed[i] + fixed[i], [low] * n, total, [high] * n)
    assert all(type(x) is int for x in sizes)


def test_the_fast_solver_gives_the_sizes_of_the_greedy_one_for_a_thousand_workers():
    speed = [1.0 + i % 7 + i / 1000 for i in range(1000)]
    sizes = fastest(speed, [0.5] * 1000, 64_000, 1, 1 << 40)
    assert sizes == greedy(lambda i, x: x / speed[i] + 0.5, [1] * 1000, 64_000, [64_000] * 1000)


@many
@given(linear())
def test_the_faster_of_two_workers_never_gets_fewer_examples(problem):
    speed, _, total, low, high = problem
    sizes = fastest(speed, [0.25] * len(speed), total, low, high)
    ordered = sorted(zip(speed, sizes, strict=True))
    assert all(x <= y for (v, x), (w, y) in pairwise(ordered) if v < w)


@many
@given(st.integers(1, 20), SPEEDS, OVERHEADS, st.integers(1, 200))
def test_equal_workers_share_equally(n, speed, fixed, batch):
    assert fastest([speed] * n, [fixed] * n, n * batch, 1, 1 << 40) == [batch] * n


@pytest.mark.parametrize("total", [3, 21])
def test_bounds_that_leave_no_sizes_are_named(total):
    message = f"{total} examples cannot be split: 2 workers take 4 to 20 together"
    with pytest.raises(ValueError, match=message):
        fastest([1.0, 2.0], [0.0, 0.0], total, 2, 10)
    with pytest.raises(ValueError, match=message):
        greedy(lambda i, x: x, [2, 2], total, [10, 10])


def test_no_worker_shares_nothing():
    assert fastest([], [], 0, 1, 10) == []


class Trial:
    """A shifter and machines whose seconds are time(worker, size)."""

    def __init__(self, n, time, memory=lambda worker, size: None, batch=16, low=1, high=1 << 40,
                 grain=1, window=2, coarse=8, fine=2):
        self.shifter = Shifter(batch, low, high, grain, window, coarse, fine)
        self.time, self.memory, self.total = time, memory, n * batch
        self.sizes = dict.fromkeys(range(n), batch)
        self.history = []
        for worker in range(n):
            self.shifter.join(worker)

    def round(self):
        for worker, size in self.sizes.items():
            self.shifter.pushed(Push(worker, 0, 0, 1, size, self.time(worker, size),
                                     memory=self.memory(worker, size)), 0.0)
        self.sizes = self.shifter.sizes(self.sizes)
        self.history.append((self.shifter.phase, self.sizes))
        assert sum(self.sizes.values()) == self.total

    def until_it_holds(self):
        while self.shifter.phase != "hold":
            assert len(self.history) < 5000, "it does not end"
            self.round()
        return self

    def slowest(self, sizes=None):
        return max(self.time(*item) for item in (sizes or self.sizes).items())


@many
@given(MACHINES, st.sampled_from([(1, 1, 1), (8, 2, 1), (8, 4, 4)]), st.integers(0, 20),
       st.integers(0, 3))
def test_the_balance_settles_within_one_fine_step_of_the_optimum(machines, steps, more, less):
    coarse, fine, grain = steps
    batch, n = 16, len(machines)
    low, high = grain * (less + 1), batch + grain * more
    speed, fixed = zip(*machines, strict=True)
    trial = Trial(n, lambda i, x: x / speed[i] + fixed[i], batch=batch, low=low, high=high,
                  grain=grain, coarse=coarse, fine=fine).until_it_holds()
    best = fastest([v / grain for v in speed], fixed, n * batch // grain, low // grain,
                   high // grain)
    optimum = max(x * grain / v + q for x, v, q in zip(best, speed, fixed, strict=True))
    assert trial.slowest() <= optimum + fine / min(speed) + 1e-9
    for _, sizes in trial.history:
        assert trial.slowest() <= trial.slowest(sizes)
        assert all(low <= x <= high and x % grain == 0 for x in sizes.values())


@many
@given(st.lists(st.lists(st.integers(0, 3), min_size=8, max_size=8), min_size=1, max_size=4))
def test_the_balance_settles_within_one_fine_step_at_any_cost(rises):
    """Seconds rise by up to 3 an example, in a pattern of 8."""
    def time(worker, size):
        return 1 + sum(rises[worker]) * (size // 8) + sum(rises[worker][:size % 8])
    trial = Trial(len(rises), time, batch=8, coarse=4, fine=2).until_it_holds()
    n = len(rises)
    best = greedy(time, [1] * n, 8 * n, [8 * n] * n)
    assert trial.slowest() <= max(time(i, x) for i, x in enumerate(best)) + 3 * 2


@many
@given(MACHINES, st.lists(st.tuples(st.floats(0.0, 0.9), st.floats(0.2, 1.0)), min_size=6,
                          max_size=6))
def test_the_balance_never_exceeds_the_memory(machines, memories):
    """memories: (share at size 0, how much of the rest the equal split takes)"""
    def memory(worker, size):
        empty, taken = memories[worker]
        return empty + (1 - empty) * taken * size / 16
    trial = Trial(len(machines), lambda i, x: x / machines[i][0] + machines[i][1],
                  memory).until_it_holds()
    for _, sizes in trial.history:
        assert all(memory(*item) <= 1 + 1e-9 for item in sizes.items())


def test_a_machine_without_free_memory_does_not_lead():
    def half_full(worker, size):
        return size / (16 if worker == 2 else 64)
    trial = Trial(3, lambda i, x: x / (1, 2, 10)[i], half_full).until_it_holds()
    assert trial.sizes[2] == 16 and trial.sizes[1] > trial.sizes[0]


def test_sizes_change_once_a_window_and_windows_are_longer_in_the_fine_phase():
    trial = Trial(2, lambda i, x: x / (1, 2.2)[i], window=3).until_it_holds()
    changes = [r for r, (a, b) in enumerate(pairwise(trial.history), 1) if a != b]
    gaps = {(trial.history[r - 1][0], r - before) for before, r in pairwise([0, *changes])}
    assert gaps == {("coarse", 3), ("fine", 6)}


def test_moves_go_from_the_slowest_to_the_quickest():
    trial = Trial(3, lambda i, x: x / (1, 2, 4)[i], batch=32, window=1)
    trial.round()  # the first round may hold a machine's start
    trial.round()
    assert trial.sizes == {0: 24, 1: 32, 2: 40}


def test_a_move_that_a_bound_cut_short_is_not_answered_by_a_longer_one():
    trial = Trial(2, lambda i, x: x / (1, 1.1)[i], window=1, high=19).until_it_holds()
    assert {sizes[0] for _, sizes in trial.history} == {16, 13, 14}


def test_the_balance_stays_until_the_spread_grows():
    speed = [1.0, 3.0]
    trial = Trial(2, lambda i, x: x / speed[i], window=1).until_it_holds()
    held = trial.sizes
    for slower in (1.2, 1.0, 0.9):
        speed[0] = slower
        for _ in range(10):
            trial.round()
        assert trial.sizes == held and trial.shifter.phase == "hold"
    speed[0] = 0.25
    trial.round(), trial.round()
    assert trial.shifter.phase == "coarse"
    trial.until_it_holds()
    assert trial.sizes[0] < held[0] and trial.slowest() <= 32 / 3.25 + 2 / 0.25


def test_a_common_slowdown_changes_no_sizes():
    speed = [1.0, 3.0]
    trial = Trial(2, lambda i, x: x / speed[i], window=1).until_it_holds()
    speed[:] = 0.25, 0.75
    for _ in range(10):
        trial.round()
    assert trial.shifter.phase == "hold"


def test_a_worker_that_slows_down_in_the_fine_phase_ends_it():
    speed = [1.0, 3.0]
    trial = Trial(2, lambda i, x: x / speed[i], window=1)
    while trial.shifter.phase != "fine":
        trial.round()
    speed[0] = 0.1
    trial.round(), trial.round()
    assert trial.shifter.phase == "coarse"


def test_a_join_or_leave_restarts_the_balance_from_equal_shares():
    trial = Trial(3, lambda i, x: x / (1, 2, 4)[i], window=1).until_it_holds()
    trial.shifter.leave(2)
    del trial.sizes[2]
    assert trial.shifter.sizes(trial.sizes) == {0: 16, 1: 16}
    assert trial.shifter.phase == "coarse"
