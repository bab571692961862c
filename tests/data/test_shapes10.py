import subprocess
import sys

import numpy as np
import pytest

import data
from data import shapes10


def test_both_splits_have_their_size_and_equal_classes():
    for split, count in (("train", shapes10.TRAIN_SIZE), ("test", shapes10.TEST_SIZE)):
        images, labels = data.load("shapes10", split=split)
        assert (images.shape, images.dtype) == ((count, 32, 32, 3), np.uint8)
        assert labels.dtype == np.int32
        assert (np.bincount(labels) == count // 10).all()


def test_every_process_draws_the_same_bytes():
    script = """
import hashlib
from data import shapes10
print(hashlib.sha256(shapes10.draw(50, seed=3)[0].tobytes()).hexdigest())
"""
    run = [sys.executable, "-c", script]
    hashes = {subprocess.run(run, capture_output=True, check=True).stdout for _ in range(2)}
    assert len(hashes) == 1


def test_the_splits_share_no_image():
    train, test = (data.load("shapes10", split=split)[0] for split in ("train", "test"))
    seen = {image.tobytes() for image in train}
    assert len(seen) == len(train)
    assert not any(image.tobytes() in seen for image in test)


@pytest.mark.long
def test_a_linear_classifier_fails():
    def features(split):
        images, labels = data.load("shapes10", split=split)
        return images.reshape(len(images), -1).astype(np.float32) / 128 - 1, labels

    x, y = features("train")
    test_x, test_y = features("test")
    accuracies = []
    for ridge in (1e2, 1e3, 1e4):  # least squares onto one-hot labels
        gram = x.T @ x + ridge * np.eye(x.shape[1], dtype=np.float32)
        weights = np.linalg.solve(gram, x.T @ np.eye(10, dtype=np.float32)[y])
        accuracies.append((np.argmax(test_x @ weights, 1) == test_y).mean())
    assert max(accuracies) < 0.4, accuracies
