"""The order of the shared data: the same everywhere, each example once, and as if drawn."""

from collections import Counter

import numpy as np
import pytest

from wbsp.core.permutation import LARGEST, Order, examples


@pytest.mark.parametrize("n", [*range(1, 70), 299, 1000, 4096, 50_000])
def test_each_example_comes_once_in_each_epoch(n):
    for seed, epoch in ((0, 0), (7, 3), (2**64 - 1, 10**6)):
        order = examples(epoch * n, epoch * n + n, n, seed)
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("arguments, golden", [
    ((0, 10, 10, 1), [5, 3, 6, 4, 9, 7, 2, 1, 8, 0]),
    ((10, 20, 10, 1), [2, 7, 0, 6, 3, 9, 4, 1, 8, 5]),
    ((0, 8, 50_000, 3), [1614, 10888, 42425, 22305, 26107, 3413, 29727, 12471]),
    ((0, 8, 50_000, -3), [31637, 28288, 4946, 37555, 2201, 39828, 6314, 37439]),
    ((10**12, 10**12 + 4, 10**10, 2**63), [468061405, 4331092902, 2668566120, 1395801683]),
])
def test_the_order_is_the_same_for_ever(arguments, golden):
    assert examples(*arguments).tolist() == golden


def test_a_part_of_an_epoch_is_that_part_of_its_order():
    whole = examples(5000, 6000, 1000, 9)
    parts = [examples(at, min(at + 64, 6000), 1000, 9) for at in range(5000, 6000, 64)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert not examples(5100, 5100, 1000, 9).size


def test_a_reader_gets_the_same_order_with_and_without_gaps_and_at_the_ends_of_epochs():
    order, draw = Order(), np.random.default_rng(0)
    at, ends = 0, 0
    while at < 9000:
        stop = min(at + int(draw.integers(0, 70)), (at // 3000 + 1) * 3000)
        found = order.examples(at, stop, 3000, 4)
        assert found.dtype == np.int64 and np.array_equal(found, examples(at, stop, 3000, 4))
        found[:] = -1  # the reader's own memory
        at = stop + (int(draw.integers(-50, 900)) if draw.random() < 0.05 else 0)
        at, ends = max(at, 0), ends + (stop % 3000 == 0)
    assert ends, "an epoch ended"


def test_an_order_is_of_the_data_that_are_asked_for():
    order = Order()
    for n, seed in ((100, 0), (100, 1), (120, 1), (100, 0)):
        for start in (0, 10, 20):
            assert np.array_equal(order.examples(start, start + 10, n, seed),
                                  examples(start, start + 10, n, seed))
    with pytest.raises(ValueError, match="not of one epoch"):
        order.examples(95, 105, 100, 0)


def test_the_largest_data_have_an_order():
    some = examples(LARGEST - 1000, LARGEST, LARGEST, 5)
    assert len(set(some.tolist())) == 1000 and some.min() >= 0 and some.max() < LARGEST


def test_the_orders_look_as_if_drawn():
    orders = Counter(tuple(examples(4 * epoch, 4 * epoch + 4, 4, 5)) for epoch in range(24_000))
    assert len(orders) == 24 and min(orders.values()) > 880 and max(orders.values()) < 1130
    fixed = [np.count_nonzero(examples(0, 1000, 1000, seed) == np.arange(1000))
             for seed in range(400)]
    assert 0.8 < np.mean(fixed) < 1.2  # 1 is expected
    n, counts = 12_800, []
    for seed in range(20):  # of ten classes that lie in order, batches have what chance gives them
        of_class = examples(0, n, n, seed) // 1280 == 3
        counts += [np.count_nonzero(of_class[at:at + 128]) for at in range(0, n, 128)]
    assert 10.4 < np.var(counts) < 12.6  # 11.41 of a drawn order
    first, second = examples(0, n, n, 1), examples(n, 2 * n, n, 1)
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


@pytest.mark.parametrize("start, stop, n", [(0, 11, 10), (9, 11, 10), (-1, 3, 10), (5, 4, 10)])
def test_positions_of_two_epochs_are_refused(start, stop, n):
    with pytest.raises(ValueError, match="are not of one epoch of 10"):
        examples(start, stop, n, 0)


@pytest.mark.parametrize("n", [0, -1, LARGEST + 1])
def test_an_impossible_number_of_examples_is_refused(n):
    with pytest.raises(ValueError, match=f"n={n} examples"):
        examples(0, 0, n, 0)
