"""The CNN of the published CIFAR-10 experiments H1, H2 and H3: 148,298 parameters."""

from __future__ import annotations

import keras
from keras import layers

from models.layers import local_response_normalization, truncated_normals


def build(seed: int, weight_decay: float = 0.0) -> keras.Model:
    normal = truncated_normals(seed)

    images = keras.Input((32, 32, 3), name="images")
    x = layers.Conv2D(
        64, 5, padding="same", activation="relu", kernel_initializer=normal(0.05), name="conv1"
    )(images)  # [batch, 32, 32, 64]
    x = layers.MaxPooling2D(3, 2, padding="same", name="pool1")(x)  # [batch, 16, 16, 64]
    x = local_response_normalization(x, radius=4, bias=1.0, alpha=0.001 / 9)

    x = layers.Conv2D(
        64,
        5,
        padding="same",
        activation="relu",
        kernel_initializer=normal(0.05),
        bias_initializer=keras.initializers.Constant(0.1),
        name="conv2",
    )(x)  # [batch, 16, 16, 64]
    x = local_response_normalization(x, radius=4, bias=1.0, alpha=0.001 / 9)
    x = layers.MaxPooling2D(3, 2, padding="same", name="pool2")(x)  # [batch, 8, 8, 64]

    x = layers.Flatten(name="flatten")(x)  # [batch, 4096]
    logits = layers.Dense(
        10,
        kernel_initializer=normal(1 / 192),
        # Keras adds l2 * sum(w^2), the tutorial half of that.
        kernel_regularizer=keras.regularizers.L2(weight_decay / 2) if weight_decay else None,
        name="logits",
    )(x)  # [batch, 10]
    return keras.Model(images, logits, name="cifar_cnn")
