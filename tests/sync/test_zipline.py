"""ZipLine finds the best barrier, whatever the variant, and at the cost that it claims."""

from itertools import accumulate, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import many

from wbsp.sync.zipline import zipline, zipline_opt, zipline_opt_bs

VARIANTS = (zipline, zipline_opt, zipline_opt_bs)
every_variant = pytest.mark.parametrize("solve", VARIANTS, ids=lambda solve: solve.__name__)


@st.composite
def some_rows(draw, workers=12, limit=8, start=20, interval=6):
    """Whole times from a small range, so that ties are many, within a row and between rows."""
    n, r = draw(st.integers(1, workers)), draw(st.integers(1, limit))
    gaps = st.lists(st.integers(0, interval), min_size=r - 1, max_size=r - 1)
    return [list(accumulate(draw(gaps), initial=draw(st.integers(0, start)))) for _ in range(n)]


small_rows = some_rows(workers=4, limit=5, start=8, interval=4)


def random_rows(n, r, seed=0, digits=None):
    """Workers of different speeds; times rounded to `digits`, if given, make ties."""
    rng, rows = Random(seed), []
    for _ in range(n):
        last, interval = rng.uniform(0, 2), rng.uniform(0.5, 2)
        ends = [last + i * interval for i in range(1, r + 1)]
        rows.append(ends if digits is None else [round(end, digits) for end in ends])
    return rows


def of_all_combinations(rows):
    """(d, barrier): the least spread of one end per row, and the earliest of the latest ends."""
    return min((max(ends) - min(ends), max(ends)) for ends in product(*rows))


def of_all_barriers(rows):
    """The same for larger cases: with a barrier given, the latest ends before it are the best."""
    first = max(row[0] for row in rows)
    return min((barrier - min(max(end for end in row if end <= barrier) for row in rows), barrier)
               for barrier in {end for row in rows for end in row} if barrier >= first)


def answer(choice):
    return choice.d, choice.barrier


@many
@given(small_rows)
def test_the_choice_is_that_of_an_exhaustive_search(rows):
    best = of_all_combinations(rows)
    assert [answer(solve(rows)) for solve in VARIANTS] == [best] * len(VARIANTS)


@many
@given(small_rows)
def test_the_oracle_of_the_larger_cases_is_right(rows):
    assert of_all_barriers(rows) == of_all_combinations(rows)


@many
@given(some_rows())
def test_no_other_barrier_is_better_or_as_good_and_earlier(rows):
    best = of_all_barriers(rows)
    assert [answer(solve(rows)) for solve in VARIANTS] == [best] * len(VARIANTS)


@many
@given(some_rows())
def test_each_worker_has_its_last_end_that_is_not_after_the_barrier(rows):
    for solve in VARIANTS:
        choice = solve(rows)
        assert len(choice.indices) == len(rows)
        for index, row in zip(choice.indices, rows, strict=True):
            assert 1 <= index <= len(row)
            assert row[index - 1] <= choice.barrier
            assert index == len(row) or row[index] > choice.barrier
        ends = [row[index - 1] for index, row in zip(choice.indices, rows, strict=True)]
        assert max(ends) == choice.barrier and max(ends) - min(ends) == choice.d


@pytest.mark.parametrize("digits", [None, 2, 1, 0])
def test_the_variants_agree_on_a_thousand_workers(digits):
    rows = random_rows(1000, 15, seed=1, digits=digits)
    choices = [solve(rows)[:3] for solve in VARIANTS]
    assert choices[0] == choices[1] == choices[2]


@many
@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 2**32), st.sampled_from([None, 1, 0]))
def test_the_variants_agree_on_random_speeds(n, r, seed, digits):
    rows = random_rows(n, r, seed, digits)
    choices = [solve(rows)[:3] for solve in VARIANTS]
    assert choices[0] == choices[1] == choices[2]


@many
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_with_one_end_each_no_choice_exists(ends):
    for solve in VARIANTS:
        assert answer(solve([[end] for end in ends])) == (max(ends) - min(ends), max(ends))


@many
@given(some_rows(), st.integers(1, 8))
def test_looking_further_ahead_is_never_worse(rows, r):
    for solve in VARIANTS:
        assert solve(rows).d <= solve([row[:r] for row in rows]).d


@many
@given(some_rows())
def test_one_more_worker_is_never_better(rows):
    for solve in VARIANTS:
        d = [solve(rows[:n]).d for n in range(1, len(rows) + 1)]
        assert d == sorted(d) and d[0] == 0


@many
@given(some_rows(), st.integers(-100, 100), st.integers(1, 9))
def test_times_shifted_and_scaled_shift_and_scale_the_choice(rows, shift, scale):
    for solve in VARIANTS:
        choice, other = solve(rows), solve([[shift + scale * end for end in row] for row in rows])
        assert other.d == scale * choice.d
        assert other.barrier == shift + scale * choice.barrier
        assert other.indices == choice.indices


@many
@given(some_rows(), st.randoms(use_true_random=False))
def test_the_order_of_the_workers_does_not_matter(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    for solve in VARIANTS:
        choice, other = solve(rows), solve([rows[worker] for worker in order])
        assert answer(other) == answer(choice)
        assert other.indices == [choice.indices[worker] for worker in order]


@many
@given(st.integers(1, 20), st.data())
def test_equal_speeds_meet_across_the_largest_gap_of_their_phases(interval, data):
    phases = data.draw(st.lists(st.integers(0, interval - 1), min_size=1, max_size=10))
    around, r = sorted(phases), data.draw(st.integers(2, 5))
    gaps = [b - a for a, b in zip(around, [*around[1:], around[0] + interval], strict=True)]
    rows = [[phase + i * interval for i in range(r)] for phase in phases]
    for solve in VARIANTS:
        assert solve(rows).d == interval - max(gaps)


# Costs, in entries looked at and moved: the clock of a busy machine proves nothing.

def late_rows(n, r):
    """The worst case: worker 0's first end stays leftmost while all others advance."""
    return [[0.0] + [1e6 + i for i in range(r - 1)],
            *([i * n + worker for i in range(1, r + 1)] for worker in range(1, n))]


def work(choice):
    return choice.counts.compared + choice.counts.moved


@many
@given(some_rows(workers=30, limit=15))
def test_with_binary_search_no_point_costs_more_than_a_logarithm(rows):
    n, r = len(rows), len(rows[0])
    choice = zipline_opt_bs(rows)
    assert choice.counts.points == n * r
    assert work(choice) <= n * r * (1 + (n * r).bit_length())


@pytest.mark.parametrize("make", [random_rows, late_rows])
@pytest.mark.parametrize("n, r", [(50, 15), (100, 15), (400, 15), (50, 60), (100, 120)])
def test_with_binary_search_the_work_is_linearithmic(make, n, r):
    grown = work(zipline_opt_bs(make(4 * n, r))) / work(zipline_opt_bs(make(n, r)))
    assert grown < 4 * 1.5  # linear times a logarithm's growth: log 4nr / log nr < 1.25
    grown = work(zipline_opt_bs(make(n, 4 * r))) / work(zipline_opt_bs(make(n, r)))
    assert grown < 4 * 1.5


@pytest.mark.parametrize("make, solve", [(random_rows, zipline), (late_rows, zipline),
                                         (late_rows, zipline_opt)])
def test_without_it_the_work_grows_with_the_square_of_the_workers(make, solve):
    assert work(solve(make(400, 15))) / work(solve(make(100, 15))) > 15


@pytest.mark.parametrize("make", [random_rows, late_rows])
def test_each_variant_does_less_than_the_previous_one(make):
    plain, opt, bs = (work(solve(make(400, 15))) for solve in VARIANTS)
    assert plain > opt > bs


def test_a_leftmost_point_is_found_without_a_search():
    rows = [[10 * i + worker for i in range(15)] for worker in range(10)]  # they take turns
    for solve in (zipline_opt, zipline_opt_bs):
        counts = solve(rows).counts
        assert counts.compared == counts.points - 10  # one look for each point that drops one
    assert zipline(rows).counts.compared == 10 * (150 - 10)


@every_variant
@pytest.mark.parametrize("rows, named", [
    ([], "no rows"),
    ([[1.0], []], "rows[1]=[]"),
    ([[2.0, 1.0]], "rows[0]=[2.0, 1.0]"),
    ([[1.0, float("nan"), 2.0]], "rows[0]"),
    ([[float("nan")]], "rows[0]"),
    ([[1.0], [1.0, float("inf")]], "rows[1]"),
])
def test_malformed_rows_are_refused_by_name(solve, rows, named):
    with pytest.raises(ValueError) as error:
        solve(rows)
    assert named in str(error.value) and "\n" not in str(error.value)
