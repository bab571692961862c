"""The same chain of images on JAX, in a process of its own."""

import forked
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]  # a back end takes its seconds to start

SAME = """
import jax, numpy as np, tensorflow as tf
from data import pipeline, pipeline_jax
from data.draws import subset

random = np.random.default_rng(0)
tint = random.integers(0, 156, (60, 1, 1, 3))
images = (tint + random.integers(0, 100, (60, 32, 32, 3))).astype(np.uint8)
images[7], labels = 255, np.arange(60, dtype=np.int32)  # one without a contrast
contrast = random.uniform(0.2, 1.8, 60).astype(np.float32)
np.testing.assert_allclose(pipeline_jax.standardize(images, contrast),
                           pipeline.standardize(images, contrast), atol=1e-3)
ours = [np.concatenate(part) for part in zip(*pipeline_jax.test(images, labels, 25))]
np.testing.assert_allclose(ours[0], pipeline.standardize(images), atol=1e-3)
assert ours[1].tolist() == list(range(60))

held = pipeline_jax.in_memory(images, labels)
stream = pipeline_jax.shared_batch(*held, [3, 1], True)
x, y = stream(0, 180)
for epoch in range(3):  # each pass has all images, in an order of its own
    assert sorted(np.asarray(y[60 * epoch:60 * epoch + 60]).tolist()) == list(range(60))
assert y[:60].tolist() != y[60:120].tolist()
for start, count in ((0, 1), (13, 7), (50, 25), (119, 2)):
    part, label = stream(start, count)
    np.testing.assert_allclose(part, x[start:start + count], atol=1e-5)
    assert label.tolist() == y[start:start + count].tolist()
def centred(images):
    x = np.asarray(images)  # each channel about its mean: contrast only scales this
    return x - x.mean((1, 2), keepdims=True)

def like(some, others):
    a, b = centred(some), centred(others)
    return (a * b).sum((1, 2, 3)) / np.sqrt((a**2).sum((1, 2, 3)) * (b**2).sum((1, 2, 3)))

seen = np.asarray(y) != 7
varied, plain = np.asarray(x)[seen], np.asarray(pipeline_jax.standardize(images))[y][seen]
straight, mirrored = like(varied, plain) > 0.999, like(varied, plain[:, :, ::-1]) > 0.999
assert (straight ^ mirrored).all() and 50 < mirrored.sum() < 127, mirrored.sum()
spreads = centred(varied).std((1, 2, 3)) / centred(plain).std((1, 2, 3))
assert spreads.min() < 0.6 and spreads.max() > 1.05, (spreads.min(), spreads.max())

own = pipeline_jax.batches(*held, 20, True)
first, other = own(3, 1), own(3, 2)
for start in (0, 20, 40, 60):
    part, label = next(first)
    np.testing.assert_allclose(part, x[start:start + 20], atol=1e-5)
    assert label.tolist() != next(other)[1].tolist()
plain = pipeline_jax.shared_batch(*held, 5, False)
part, label = plain(0, 8)
np.testing.assert_allclose(part, pipeline_jax.standardize(images)[label], atol=1e-5)
print("the same")
"""


def test_batches_on_jax(jobs):
    (jobs.folder / "same.py").write_text(SAME)
    job = jobs.start("jax", "same.py", JAX_PLATFORMS="cpu", fork=forked.KERAS)
    job.ends_well()
    assert job.lines[-1] == "the same"
