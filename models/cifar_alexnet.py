"""The AlexNet of the published CIFAR-10 experiment: 1,783,562 parameters."""

from __future__ import annotations

import keras
from keras import layers

from models.layers import alexnet_layers, local_response_normalization


def build(seed: int, weight_decay: float = 0.0) -> keras.Model:
    conv, dense = alexnet_layers(seed, weight_decay)

    images = keras.Input((32, 32, 3), name="images")
    x = conv(64, 5, "conv1")(images)  # [batch, 32, 32, 64]
    x = local_response_normalization(x, radius=2, bias=2.0, alpha=1e-4)
    x = layers.MaxPooling2D(3, 2, name="pool1")(x)  # [batch, 15, 15, 64]

    x = conv(64, 5, "conv2")(x)  # [batch, 15, 15, 64]
    x = local_response_normalization(x, radius=2, bias=2.0, alpha=1e-4)
    x = layers.MaxPooling2D(3, 1, name="pool2")(x)  # [batch, 13, 13, 64]

    x = conv(128, 3, "conv3")(x)
    x = conv(128, 3, "conv4")(x)
    x = conv(64, 3, "conv5")(x)  # [batch, 13, 13, 64]
    x = layers.MaxPooling2D(3, 2, name="pool5")(x)  # [batch, 6, 6, 64]

    x = layers.Flatten(name="flatten")(x)  # [batch, 2304]
    x = dense(512, "dense1")(x)
    x = dense(384, "dense2")(x)
    logits = dense(10, "logits", activation=None)(x)  # [batch, 10]
    return keras.Model(images, logits, name="cifar_alexnet")
