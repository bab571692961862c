import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import data
from data import pipeline


def random_images(count, seed=0):
    """Noise on a tint: contrast shows in standardized images where the channels' means differ."""
    random = np.random.default_rng(seed)
    tint = random.integers(0, 156, (count, 1, 1, 3))
    return (tint + random.integers(0, 100, (count, 32, 32, 3))).astype(np.uint8)


def batches(count, seed=1, worker_index=0, augmented=True):
    """The first `count` batches of 30 out of 100 images, each image labelled with its index."""
    labels = np.arange(100, dtype=np.int32)
    stream = pipeline.train(random_images(100), labels, 30, seed, worker_index, augmented)
    return [(x.numpy(), y.numpy()) for x, y in stream.take(count)]


def test_import_does_not_need_tensorflow():
    script = "import data, sys; assert not {'keras', 'tensorflow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_augmentation_is_the_published_chain():
    images = random_images(16)
    random = np.random.default_rng(1)
    flip, contrast = random.random(16) < 0.5, random.uniform(0.2, 1.8, 16).astype("float32")
    ours = pipeline.augment(tf.constant(images), flip, contrast)
    for image, mirrored, factor, our in zip(images, flip, contrast, ours, strict=True):
        x = tf.image.flip_left_right(image) if mirrored else image
        x = tf.image.adjust_brightness(tf.cast(x, tf.float32), random.uniform(-63, 63))
        x = tf.image.per_image_standardization(tf.image.adjust_contrast(x, factor))
        np.testing.assert_allclose(our, x, atol=1e-4)


def test_a_uniform_image_becomes_zero():
    images = np.full((2, 32, 32, 3), [[[[255]]], [[[0]]]], np.uint8)
    np.testing.assert_allclose(pipeline.standardize(tf.constant(images)), 0, atol=1e-2)


def test_test_images_are_standardized_only():
    images = random_images(5)
    stream = pipeline.test(images, np.arange(5, dtype=np.int32), batch_size=3)
    parts = [(x.numpy(), y.numpy()) for x, y in stream]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    np.testing.assert_array_equal(y, range(5))
    np.testing.assert_allclose(x, tf.image.per_image_standardization(images), atol=1e-5)


def test_training_batches_are_standardized_and_vary():
    (x, y), *_ = batches(1)
    assert (x.shape, x.dtype, y.dtype) == ((30, 32, 32, 3), np.float32, np.int32)
    np.testing.assert_allclose(x.mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std((1, 2, 3)), 1, atol=1e-5)
    plain = tf.image.per_image_standardization(random_images(100)[y]).numpy()

    def distance(images):
        return abs(x - images).mean((1, 2, 3))

    mirrored = distance(plain[:, :, ::-1]) < distance(plain)
    assert 5 <= mirrored.sum() <= 25
    assert np.median(np.minimum(distance(plain), distance(plain[:, :, ::-1]))) > 0.01  # contrast


@pytest.mark.parametrize("augmented", [True, False])
def test_batches_made_on_demand_are_those_of_the_pipeline(augmented):
    """Through several passes over the set, for two workers that take turns."""
    labels = np.arange(100, dtype=np.int32)
    made = pipeline.batches(random_images(100), labels, 30, augmented)
    workers = [made(7, worker) for worker in range(2)]
    usual = [iter(batches(9, 7, worker, augmented)) for worker in range(2)]
    for _ in range(9):
        for worker in range(2):
            for ours, theirs in zip(next(workers[worker]), next(usual[worker]), strict=True):
                np.testing.assert_array_equal(ours, theirs)
                assert ours.dtype == theirs.dtype


def test_every_image_comes_once_a_pass():
    order = np.concatenate([y for _, y in batches(10)])  # 300 = three passes
    passes = order.reshape(3, 100)
    for one in passes:
        np.testing.assert_array_equal(np.sort(one), range(100))
    assert not (passes[0] == passes[1]).all()


def test_seed_and_worker_decide_the_stream():
    reference = batches(5)
    for (x, y), (again_x, again_y) in zip(reference, batches(5), strict=True):
        np.testing.assert_array_equal(y, again_y)
        np.testing.assert_array_equal(x, again_x)
    for other in (batches(1, worker_index=1), batches(1, seed=2)):
        assert not (reference[0][1] == other[0][1]).all()


def test_draws_differ_between_passes():
    seen = {}
    for x, y in batches(10):
        for image, label in zip(x, y, strict=True):
            seen.setdefault(label, []).append(image)
    changed = [not np.array_equal(a, b) for a, b, _ in seen.values()]
    assert np.mean(changed) > 0.9


def test_without_augmentation_an_image_is_always_the_same():
    plain = tf.image.per_image_standardization(random_images(100)).numpy()
    for x, y in batches(4, augmented=False):
        np.testing.assert_allclose(x, plain[y], atol=1e-5)


def test_the_stream_has_no_end():
    stream = data.train_dataset("shapes10", batch_size=4096, seed=1, worker_index=0)
    assert stream.cardinality() == tf.data.INFINITE_CARDINALITY
    assert all(len(y) == 4096 for _, y in itertools.islice(stream, 4))


@pytest.mark.parametrize("batch_size", [0, 101])
def test_a_batch_must_fit_into_the_set(batch_size):
    labels = np.zeros(100, np.int32)
    with pytest.raises(ValueError, match=f"batch_size={batch_size}: choose 1 to 100"):
        pipeline.train(random_images(100), labels, batch_size, 1, 0, augmented=True)


@pytest.mark.skipif(not os.environ.get("WBSP_DATA_DIR"), reason="WBSP_DATA_DIR names no CIFAR-10")
def test_real_cifar10_is_complete():
    images, labels = data.load("cifar10")
    assert images.shape == (50_000, 32, 32, 3)
    assert (np.bincount(labels) == 5_000).all()
    x, _ = next(iter(data.train_dataset("cifar10", batch_size=128, seed=1, worker_index=0)))
    np.testing.assert_allclose(tf.math.reduce_std(x, [1, 2, 3]), 1, atol=1e-4)


@pytest.mark.parametrize("stream", [
    lambda images, labels: pipeline.train(images, labels, 30, 1, 0, True),
    lambda images, labels: pipeline.test(images, labels, 30)])
def test_nothing_tunes_the_pipelines(stream):
    """TensorFlow may wait for the tuning thread for a minute when an iterator is deleted."""
    assert stream(random_images(100), np.zeros(100, np.int32)).options().autotune.enabled is False
