"""The AlexNet of the published ImageNet experiment, for 1000 classes: 4,855,912 parameters.

It is smaller than Krizhevsky's of 2012 (some 61 million): fewer filters, dense layers of 1024, no
dropout. Layers, initial values and local response normalization are the published code's.
"""

from __future__ import annotations

import keras
from keras import layers

from models.layers import alexnet_layers, local_response_normalization


def build(seed: int, weight_decay: float, side: int, classes: int) -> keras.Model:
    """Build it: [batch, side, side, 3] images to [batch, classes] logits; shapes below: side 224.
    """
    conv, dense = alexnet_layers(seed, weight_decay)

    images = keras.Input((side, side, 3), name="images")
    x = conv(64, 11, "conv1", strides=4)(images)  # [batch, 56, 56, 64]
    x = local_response_normalization(x, radius=2, bias=2.0, alpha=1e-4)
    x = layers.MaxPooling2D(3, 2, name="pool1")(x)  # [batch, 27, 27, 64]

    x = conv(64, 5, "conv2")(x)
    x = local_response_normalization(x, radius=2, bias=2.0, alpha=1e-4)
    x = layers.MaxPooling2D(3, 2, name="pool2")(x)  # [batch, 13, 13, 64]

    x = conv(128, 3, "conv3")(x)
    x = conv(128, 3, "conv4")(x)
    x = conv(64, 3, "conv5")(x)  # [batch, 13, 13, 64]
    x = layers.MaxPooling2D(3, 2, name="pool5")(x)  # [batch, 6, 6, 64]

    x = layers.Flatten(name="flatten")(x)  # [batch, 2304]
    x = dense(1024, "dense1")(x)
    x = dense(1024, "dense2")(x)
    logits = dense(classes, "logits", activation=None)(x)  # [batch, classes]
    return keras.Model(images, logits, name="imagenet_alexnet")
