"""The noise scale from norms, of gradients whose noise is known."""

import numpy as np
import pytest

from wbsp.sync.noise import NoiseScale

SIZE = 4000


class Pushes:
    """Workers that push sums of steps of one gradient of length 1, plus noise of scale `scale`."""

    def __init__(self, steps, weights, scale, batch=32, seed=0):
        self.steps, self.weights, self.scale, self.batch = steps, weights, scale, batch
        self.random = np.random.default_rng(seed)
        self.gradient = np.full(SIZE, SIZE**-0.5)
        self.meter, self.version = NoiseScale(), 0

    def make(self, versions, rate=1.0, lag=0):
        for _ in range(versions):
            total = np.zeros(SIZE)
            for steps, weight in zip(self.steps, self.weights, strict=True):
                noise = self.random.standard_normal(SIZE) * (
                    steps * self.scale / self.batch / SIZE) ** 0.5
                update = rate * (steps * self.gradient + noise)
                self.meter.push(weight, steps, steps * self.batch, update @ update, lag)
                total += weight * update
            self.version += 1
            self.meter.committed(self.version, len(self.steps))
            self.meter.measured(self.version, total @ total)
        return self.meter


@pytest.mark.parametrize("steps, weights, width", [
    ([1, 1], [0.5, 0.5], 2), ([1] * 8, [1 / 8] * 8, 8), ([2] * 4, [1 / 4] * 4, 4),
    ([2, 1], [2 / 3, 1 / 3], 1.8), ([2, 1], [0.5, 0.5], 2)])
def test_the_scale_and_the_share_of_the_work_that_counts(steps, weights, width):
    """Whatever the model: bsp, localsgd, equal weights and weights by work."""
    scale, batch = 320, 32
    meter = Pushes(steps, weights, scale).make(400)
    assert meter.scale == pytest.approx(scale, rel=0.15)
    assert meter.batch == batch
    expected = (scale + batch) / (scale + width * batch)
    assert meter.efficiency == pytest.approx(expected, abs=0.04)
    assert meter.gain(batch / 2) == pytest.approx(
        (scale + width * batch) / (scale + width * batch / 2), rel=0.05)


def test_the_learning_rate_does_not_matter():
    pushes = Pushes([1] * 4, [1 / 4] * 4, 320)
    pushes.make(150)
    assert pushes.make(30, rate=1e-3).scale == pytest.approx(320, rel=0.15)


def test_the_scale_is_unknown_until_it_is_above_its_error():
    assert Pushes([1, 1], [0.5, 0.5], 320).make(9).scale is None, "too few versions"
    meter = Pushes([1, 1], [0.5, 0.5], 1e7).make(50)
    assert meter.scale is None and meter.efficiency is None, "a gradient that drowns in noise"


def test_versions_of_many_local_steps_say_nothing():
    """There the gradients of a push are not one gradient."""
    meter = Pushes([8] * 4, [1 / 4] * 4, 320).make(50)
    assert meter.scale is None and meter.efficiency is None


def test_versions_with_stale_pushes_say_nothing():
    """As of workers that never wait: they continue from their own progress."""
    meter = Pushes([1] * 4, [1 / 4] * 4, 320).make(50, lag=1)
    assert meter.scale is None and meter.efficiency is None


def test_versions_of_one_push_say_nothing():
    meter = Pushes([1], [1.0], 320).make(50)
    assert meter.scale is None and meter.efficiency is None


def test_a_version_with_other_updates_than_pushes_does_not_count():
    """Such as a sum that a worker has sent again."""
    pushes = Pushes([1, 1], [0.5, 0.5], 32)
    meter = pushes.make(50)
    known = meter.scale
    meter.push(0.5, 1, 32, 1.0, 0)
    meter.committed(51, 2)
    meter.measured(51, 1e9)
    assert meter.scale == known


def test_norms_of_versions_may_come_late():
    """As from shards."""
    at_once, late = (Pushes([1, 1], [0.5, 0.5], 32, seed=3) for _ in range(2))
    held = []
    measured = late.meter.measured
    late.meter.measured = lambda version, norm2: held.append((version, norm2))
    for pushes in (at_once, late):
        pushes.make(60)
    for version, norm2 in held:
        measured(version, norm2)
    assert late.meter.scale == at_once.meter.scale
