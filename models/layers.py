"""Local response normalization, seeded initializers, and layers that networks share.

Normalization is written with `keras.ops` on symbolic tensors, not as a layer class, so that plain
Keras loads a saved model without this project and without custom objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import keras
import numpy as np


def local_response_normalization(x, radius: int, bias: float, alpha: float):
    """Return x / (bias + alpha * sum of x^2 over the 2 * radius + 1 nearest channels) ^ 0.75.

    Equals `tf.nn.local_response_normalization(x, radius, bias, alpha, beta=0.75)`.
    """
    channel = np.arange(x.shape[-1])
    near = np.abs(channel[:, None] - channel) <= radius  # [channels, channels], a band
    # The window as a matrix product: twice as fast on a CPU as the native op and its gradient.
    scale = bias + keras.ops.matmul(keras.ops.square(x), alpha * near.astype("float32"))
    root = keras.ops.rsqrt(scale)
    return x * root * keras.ops.sqrt(root)  # scale^-1/2 * scale^-1/4, cheaper than a power


def truncated_normals(seed: int) -> Callable[[float], keras.Initializer]:
    """Return `initializer(stddev)`; each call takes the next seed of the model's own sequence."""
    seeds = itertools.count(1000 * seed)
    return lambda stddev: keras.initializers.TruncatedNormal(stddev=stddev, seed=next(seeds))


def alexnet_layers(seed: int, weight_decay: float) -> tuple[Callable, Callable]:
    """Return `conv(filters, size, name, strides=1)` and `dense(units, name, activation="relu")` of
    both published AlexNets; each call takes the next seed."""
    normal = truncated_normals(seed)

    def conv(filters: int, size: int, name: str, strides: int = 1) -> keras.layers.Layer:
        return keras.layers.Conv2D(
            filters,
            size,
            strides,
            padding="same",
            activation="relu",
            kernel_initializer=normal(0.1),
            name=name,
        )

    def dense(units: int, name: str, activation: str | None = "relu") -> keras.layers.Layer:
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=normal(0.1),
            # Keras adds l2 * sum(w^2), the tutorial half of that.
            kernel_regularizer=keras.regularizers.L2(weight_decay / 2) if weight_decay else None,
            name=name,
        )

    return conv, dense
