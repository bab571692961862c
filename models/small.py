"""A network for quick runs: 33,834 parameters, a few milliseconds for a step on one CPU core.

It learns `shapes10` in a few hundred steps, so that a cluster can be tried without a GPU.
"""

from __future__ import annotations

import keras
from keras import layers


def build(seed: int, weight_decay: float = 0.0) -> keras.Model:
    def initializer(layer):
        return keras.initializers.HeNormal(seed=1000 * seed + layer)

    images = keras.Input((32, 32, 3), name="images")
    x = images
    for layer, filters in enumerate((16, 32, 64)):
        x = layers.Conv2D(
            filters,
            3,
            strides=2,
            padding="same",
            activation="relu",
            kernel_initializer=initializer(layer),
            name=f"conv{layer + 1}",
        )(x)  # [batch, 16, 16, 16], [batch, 8, 8, 32], [batch, 4, 4, 64]

    x = layers.Flatten(name="flatten")(x)  # [batch, 1024]
    logits = layers.Dense(
        10,
        kernel_initializer=initializer(3),
        # Keras adds l2 * sum(w^2), the tutorial half of that.
        kernel_regularizer=keras.regularizers.L2(weight_decay / 2) if weight_decay else None,
        name="logits",
    )(x)  # [batch, 10]
    return keras.Model(images, logits, name="small")
