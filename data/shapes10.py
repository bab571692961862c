"""Ten geometric shapes, drawn by code: a data set for quick runs that needs no files.

A shape has a random place, size and tilt, random colours, and noise. No pixel's brightness reveals
the class, so a linear classifier fails, while a small convolutional network learns the set in a few
hundred steps. Drawing is seeded: every process has the same images.
"""

from __future__ import annotations

import functools
from os import PathLike

import numpy as np

TRAIN_SIZE, TEST_SIZE = 10_000, 2_000
AUGMENTED = False
CLASSES = (
    "disk", "ring", "square", "frame", "triangle", "half disk", "plus", "bars", "star", "dots",
)  # fmt: skip
_BLOCK = 200  # images drawn at once


def load(data_dir: str | PathLike | None, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (images uint8 [n, 32, 32, 3], labels int32 [n]); `data_dir` is ignored."""
    return draw(TRAIN_SIZE, seed=1) if split == "train" else draw(TEST_SIZE, seed=2)


@functools.cache
def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw `count` images, the classes in turn, in the order of their labels 0, 1, ... 9, 0, ..."""
    random = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int32) % 10

    def uniform(low, high, *shape):
        return random.uniform(low, high, (count, 1, 1, *shape)).astype(np.float32)

    left, up, radius, angle = (uniform(*limits) for limits in (
        (-2.5, 2.5), (-2.5, 2.5), (9, 13), (-0.4, 0.4)))  # each [count, 1, 1]
    ground = uniform(0, 255, 3)
    # Each channel differs by at least 60 of 255, so that every shape can be seen.
    ink = (ground + uniform(60, 195, 3)) % 255
    images = np.empty((count, 32, 32, 3), np.uint8)
    # In blocks: arrays for all images are fresh memory, which takes longer than the drawing.
    for at in (slice(start, start + _BLOCK) for start in range(0, count, _BLOCK)):
        inside = _drawn(labels[at], left[at], up[at], radius[at], angle[at])
        block = np.where(inside[..., None], ink[at], ground[at])
        block += 10 * random.standard_normal(block.shape, np.float32)
        images[at] = block.clip(0, 255)
    for kept in (images, labels):
        kept.setflags(write=False)  # the next caller receives these arrays
    return images, labels


def _drawn(labels: np.ndarray, left: np.ndarray, up: np.ndarray, radius: np.ndarray,
           angle: np.ndarray) -> np.ndarray:
    """Return which pixels belong to the shape, bool [n, 32, 32]."""
    y, x = np.mgrid[-15.5:16, -15.5:16].astype(np.float32)  # pixel centres, [32, 32]
    x, y = x - left, y - up
    # The shape's own frame: it lies inside the unit circle.
    u = (x * np.cos(angle) + y * np.sin(angle)) / radius
    v = (y * np.cos(angle) - x * np.sin(angle)) / radius
    inside = np.empty(u.shape, bool)
    for label in range(10):
        here = labels == label
        inside[here] = _inside(label, u[here], v[here])
    return inside


def _inside(label: int, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    r, square = np.hypot(u, v), np.maximum(abs(u), abs(v))
    match CLASSES[label]:
        case "disk":
            return r < 0.9
        case "ring":
            return (r > 0.55) & (r < 0.95)
        case "square":
            return square < 0.7
        case "frame":
            return (square > 0.4) & (square < 0.75)
        case "triangle":
            return np.maximum(-v, 0.5 * v + 0.866 * abs(u)) < 0.5
        case "half disk":
            return (r < 1) & (v > 0)
        case "plus":
            return np.minimum(abs(u), abs(v)) < np.where(square < 0.95, 0.22, 0)
        case "bars":
            return (abs(v) > 0.3) & (abs(v) < 0.65) & (abs(u) < 0.75)
        case "star":
            return r < 0.6 + 0.35 * np.cos(5 * np.arctan2(v, u))
        case "dots":
            return np.hypot(abs(u) - 0.55, abs(v) - 0.55) < 0.3
