"""VGG16, ResNet50 and Inception-v3 of `keras.applications`, untrained: nothing is downloaded.

Keras's own initializers draw the initial values, not those of the published code. With 1000 classes
and images of the published size: 138,357,544, 25,636,712 and 23,851,784 parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import keras


def vgg16(seed: int, weight_decay: float, side: int, classes: int) -> keras.Model:
    return _build(keras.applications.VGG16, seed, weight_decay, side, classes)


def resnet50(seed: int, weight_decay: float, side: int, classes: int) -> keras.Model:
    return _build(keras.applications.ResNet50, seed, weight_decay, side, classes)


def inception_v3(seed: int, weight_decay: float, side: int, classes: int) -> keras.Model:
    return _build(keras.applications.InceptionV3, seed, weight_decay, side, classes)


def _build(
    application: Callable[..., keras.Model], seed: int, weight_decay: float, side: int,
    classes: int,
) -> keras.Model:
    """Build a network: [batch, side, side, 3] images to [batch, classes] logits."""
    # They take no seed, so it reaches their initializers through the global state.
    keras.utils.set_random_seed(seed)
    model = application(
        weights=None, input_shape=(side, side, 3), classes=classes, classifier_activation=None
    )
    for layer in model.layers if weight_decay else []:
        if isinstance(layer, keras.layers.Dense):
            # Keras adds l2 * sum(w^2), the tutorial half of that. A built layer uses its
            # variable's regularizer; the layer's own attribute is saved.
            layer.kernel_regularizer = keras.regularizers.L2(weight_decay / 2)
            layer.kernel.regularizer = layer.kernel_regularizer
    return model
