"""The networks of the check, and batches for them that need no data set.

A step takes as long on random pixels as on pictures. `models.training` and `data` need TensorFlow,
and so does a seed for `keras.applications`, where it is installed: none of them is used here.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import models

APPLICATIONS = {"vgg16": "VGG16", "resnet50": "ResNet50", "inception_v3": "InceptionV3"}
RATE = 1e-3  # small: random pixels teach nothing, and no value may become NaN


def build(name: str, side: int | None = None) -> keras.Model:
    """Return the named network, compiled: float32 images [batch, side, side, 3] to 1000 logits;
    the networks of CIFAR-10, [batch, 32, 32, 3] to 10.

    side: pixels of a side of ImageNet's images; default: the published ones
    Raises ValueError for an unknown name.
    """
    dataset = "imagenet" if name in models.IMAGENET else "cifar10"
    side = models.check(name, dataset, side)
    if name in APPLICATIONS:
        network = getattr(keras.applications, APPLICATIONS[name])(
            weights=None, input_shape=(side, side, 3), classifier_activation=None)
    else:
        network = models.build(name, seed=0, dataset=dataset, image_size=side)
    network.compile(keras.optimizers.SGD(RATE),
                    keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return network


class Batches(keras.utils.PyDataset):
    """An endless data set of a few batches for a network, the same ones in every process."""

    def __init__(self, network: keras.Model, batch_size: int, number: int = 2):
        super().__init__()
        random = np.random.default_rng(0)
        shape, classes = network.input_shape[1:], network.output_shape[-1]
        self._batches = [(random.standard_normal((batch_size, *shape), np.float32),
                          random.integers(classes, size=batch_size, dtype=np.int32))
                         for _ in range(number)]

    @property
    def num_batches(self) -> None:
        """There is no end."""

    def __getitem__(self, index: int) -> Any:
        return self._batches[index % len(self._batches)]


def silent(text: str) -> None:
    """Replaces `say`: a worker that waits in a check need not say so."""
