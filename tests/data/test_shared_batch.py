"""The stream that all workers share: the example at a position depends on nothing else."""

import itertools
from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import data
from data import pipeline

SIZE = 40
sizes = st.lists(st.integers(1, 60), min_size=1, max_size=4)


def images_of(side):
    """Noise on a tint, so that contrast shows once the images are standardized."""
    random = np.random.default_rng(7)
    tint = random.integers(0, 156, (SIZE, 1, 1, 3))
    return (tint + random.integers(0, 100, (SIZE, side, side, 3))).astype(np.uint8)


IMAGES, LABELS = images_of(32), np.arange(SIZE, dtype=np.int32)  # labelled with their numbers


def stream(seed=1, augmented=True, images=IMAGES):
    """start, count -> arrays (images, labels)."""
    batch = pipeline.shared_batch(images, LABELS, seed, augmented)

    def arrays(start, count):
        x, y = batch(start, count)
        return x.numpy(), y.numpy()

    return arrays


@cache
def shared(side=32):
    """The stream of most tests, traced once."""
    return stream(images=images_of(side))


@cache
def first(side=32):
    """All of it that a test looks at."""
    return shared(side)(0, 240)


@given(sizes)
def test_an_example_is_the_same_in_any_batch(sizes):
    starts = itertools.accumulate(sizes, initial=0)
    for start, size in zip(starts, sizes, strict=False):
        for part, whole in zip(shared(2)(start, size), first(2), strict=True):
            assert part.tobytes() == whole[start:start + size].tobytes()


@given(sizes, st.integers(1, 4))
def test_each_pass_covers_the_set_once_under_any_assignment(sizes, workers):
    """Positions are handed to the workers in turn, a piece of another size each time."""
    trained = [[] for _ in range(workers)]
    position, turn = 0, 0
    while position < 2 * SIZE:
        count = min(sizes[turn % len(sizes)], 2 * SIZE - position)
        _, y = shared(2)(position, count)
        trained[turn % workers] += zip(range(position, position + count), y, strict=True)
        position, turn = position + count, turn + 1
    everything = sorted(itertools.chain(*trained))
    assert [position for position, _ in everything] == list(range(2 * SIZE))
    for begin in (0, SIZE):
        assert sorted(label for _, label in everything[begin:begin + SIZE]) == list(range(SIZE))


def test_one_trace_for_all_sizes():
    batch = pipeline.shared_batch(IMAGES, LABELS, 1, augmented=True)
    for count in range(1, 40):
        x, y = batch(5 * count, count)
        assert (x.dtype, y.dtype) == (np.float32, np.int32)
        for part, whole in zip((x, y), first(), strict=True):
            assert part.numpy().tobytes() == whole[5 * count:6 * count].tobytes()
    assert batch.experimental_get_tracing_count() == 1


def test_passes_and_seeds_differ():
    orders = [shared()(SIZE * n, SIZE)[1].tolist() for n in range(3)]
    orders += [stream(seed)(0, SIZE)[1].tolist() for seed in (2, (1, 1), (1, 2))]
    assert len(set(map(tuple, orders))) == 6
    assert orders[0] == stream(1)(0, SIZE)[1].tolist()


def test_an_order_has_no_pattern():
    """In a random order of n, indices show no pattern, and neighbours are n/3 apart on average."""
    count = 50_000
    batch = pipeline.shared_batch(np.zeros((count, 2, 2, 1), np.uint8), np.arange(count), 1, False)
    orders = [batch(n * count, count)[1].numpy() for n in range(3)]
    for one, other in itertools.combinations([np.arange(count), *orders], 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    for order in orders:
        assert abs(np.abs(np.diff(order)).mean() / (count / 3) - 1) < 0.02
        pairs, *_ = np.histogram2d(order[:-1], order[1:], bins=10)
        assert abs(pairs - count / 100).max() < 5 * (count / 100) ** 0.5


def test_without_augmentation_images_are_standardized_only():
    x, y = stream(augmented=False)(5, 2 * SIZE)
    np.testing.assert_allclose(x, tf.image.per_image_standardization(IMAGES[y]), atol=1e-5)


def test_augmentation_is_the_published_chain():
    """The contrast is read from the image: how much it spreads within a channel, relative to how
    far the channels' means are apart."""
    x, y = first()
    raw = IMAGES[y].astype(np.float64)
    means, spreads = raw.mean((1, 2)), raw.std((1, 2))
    apart = means[:, 0] - means.mean(1)
    contrast = (x.std((1, 2))[:, 0] / spreads[:, 0]) / (x.mean((1, 2))[:, 0] / apart)
    plain, mirrored = (pipeline.augment(tf.constant(IMAGES[y]), np.full(len(y), flip),
                                        contrast.astype(np.float32)).numpy()
                       for flip in (False, True))
    is_mirrored = abs(x - mirrored).max((1, 2, 3)) < abs(x - plain).max((1, 2, 3))
    expected = np.where(is_mirrored[:, None, None, None], mirrored, plain)
    np.testing.assert_allclose(x, expected, atol=5e-3)
    assert 0.35 < is_mirrored.mean() < 0.65
    assert contrast.min() + 1e-3 >= 0.2 and contrast.max() <= 1.801
    assert abs(contrast.mean() - 1) < 0.1 and contrast.std() == pytest.approx(1.6 / 12**0.5, 0.1)


def test_draws_differ_between_passes():
    x, y = first()
    again = [np.flatnonzero(y == label)[:2] for label in range(SIZE)]
    changed = [not np.array_equal(x[one], x[other]) for one, other in again]
    assert np.mean(changed) > 0.9


def test_a_set_by_its_name():
    x, y = (part.numpy() for part in data.shared_batch("shapes10", seed=1)(9_990, 20))
    assert (x.shape, y.shape) == ((20, 32, 32, 3), (20,))
    np.testing.assert_allclose(x.mean((1, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(x.std((1, 2, 3)), 1, atol=1e-4)
