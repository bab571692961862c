"""Training of each network: optimizer, loss, metrics and devices of the published experiment.

The schedule counts *local* steps: every worker owns its optimizer, whose state is never sent. A
mini-batch that is split into micro-batches, each a step to Keras, counts as one.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras

from models.adamw import EPSILON, RATE, AdamW, adamw, usual
from models.gpt import shape

if TYPE_CHECKING:
    import tensorflow as tf

# Per network: the initial learning rate, and {local steps: factor from there on}.
SCHEDULES: dict[str, tuple[float, dict[int, float]]] = {
    "cnn": (0.1, {7_812: 0.1, 13_671: 0.01}),
    "alexnet": (0.001, {}),
    "small": (0.1, {}),
}
OWN: tuple[float, dict[int, float]] = (0.1, {})  # for a user's model that is not compiled
# What may train a network. Momentum lets each gradient count ten times, so its rate is a tenth.
OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "sgd": keras.optimizers.SGD,
    "nesterov": functools.partial(keras.optimizers.SGD, momentum=0.9, nesterov=True),
    "adam": keras.optimizers.Adam,
}
ADAM_RATE = 0.001  # [Kingma and Ba 2015]
# ImageNet's networks: one rate for all; two clip each variable's gradient to a norm [code].
IMAGENET: dict[str, tuple[float, float | None]] = {
    "alexnet": (0.01, 10.0),
    "vgg16": (0.01, 10.0),
    "resnet50": (0.01, None),
    "inception_v3": (0.01, None),
}


def published_decays(name: str) -> dict[int, float]:
    """Return {local steps: factor of the rate from there on} of the named network, at its published
    batch; empty: none."""
    return SCHEDULES.get(name, OWN)[1]


def optimizer(
    name: str, lr: float | None = None, micro_batches: int = 1, dataset: str = "cifar10",
    decays: Mapping[int, float] | None = None, kind: str = "sgd",
) -> keras.optimizers.Optimizer:
    """Return an optimizer of `OPTIMIZERS` with the named network's schedule.

    Args:
        name: of the network.
        lr: initial learning rate; None: the published one under plain SGD, a tenth of it with
            Nesterov's momentum, 0.001 under Adam, 0.003 under AdamW.
        micro_batches: steps into which a mini-batch is split.
        dataset: of ImageNet the published rates and clips are others.
        decays: {local steps: factor of the rate from there on}; None: the published ones.
        kind: name of the optimizer; plain SGD is the published one. AdamW comes with options, and
            at a plain rate: its schedule is that of the run (`models.adamw`).
    """
    (initial, published), clip = SCHEDULES.get(name, OWN), {}
    if dataset == "imagenet" and name in IMAGENET:
        initial, norm = IMAGENET[name]
        published, clip = {}, {"clipnorm": norm}
    if (options := adamw(kind)) is not None:
        return _adamw(options, RATE if lr is None else lr)
    make = OPTIMIZERS[kind]
    initial = {"sgd": initial, "nesterov": initial / 10, "adam": ADAM_RATE}[kind]
    initial, decays = initial if lr is None else lr, published if decays is None else decays
    if not decays:
        return make(initial, **clip)
    steps = [step * micro_batches for step in decays]
    rates = [initial, *(initial * factor for factor in decays.values())]
    return make(keras.optimizers.schedules.PiecewiseConstantDecay(steps, rates), **clip)


def compile(
    model: keras.Model, name: str, lr: float | None = None, micro_batches: int = 1,
    dataset: str = "cifar10", decays: Mapping[int, float] | None = None,
    kind: str | None = None, **options: Any,
) -> keras.Model:
    """Compile `model` like the named network, with top-1 and top-5 accuracy; of text also with the
    loss in bits a byte.

    A model that is already compiled keeps its own optimizer (at learning rate `lr`, if given) and
    its own loss. Others get an `optimizer` of these arguments; None: plain SGD. `options` go to
    `keras.Model.compile`. Returns the model. Raises ValueError in one line.
    """
    if model.compiled:
        if kind is not None:
            raise ValueError(f"--optimizer={kind}: {name} comes compiled, so it has an optimizer "
                             "of its own; change it there")
        if decays is not None:
            raise ValueError(f"{name} comes compiled, so its optimizer has a schedule of its own; "
                             "change it there")
        chosen, loss = model.optimizer, model.loss
        if lr is not None:
            chosen = type(chosen).from_config({**chosen.get_config(), "learning_rate": lr})
    else:
        chosen = optimizer(name, lr, micro_batches, dataset, decays, kind or usual(name))
        if isinstance(chosen, keras.optimizers.AdamW):
            chosen.exclude_from_weight_decay([v for v in model.trainable_variables
                                              if len(v.shape) < 2])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=chosen,
        loss=loss,
        metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseTopKCategoricalAccuracy(k=5, name="top5"),
            *([keras.metrics.MeanMetricWrapper(bits_per_byte, name="bits_per_byte")]
              if shape(name) else []),
        ],
        **options,
    )
    return model


def bits_per_byte(wanted: Any, logits: Any) -> Any:
    """Return the loss of each byte in bits."""
    nats = keras.losses.sparse_categorical_crossentropy(wanted, logits, from_logits=True)
    return nats / math.log(2)


def _adamw(options: AdamW, rate: float) -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(
        rate, weight_decay=options.decay, beta_1=options.beta1, beta_2=options.beta2,
        epsilon=EPSILON, global_clipnorm=options.clip or None)


def own_devices(say: Callable[[str], None]) -> tf.distribute.Strategy:
    """Return a strategy over the devices of this process: one GPU, several mirrored, or the CPU.

    `say` prints a line about a GPU that was named and is not found.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy()
    if gpus:
        return tf.distribute.OneDeviceStrategy("/gpu:0")
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        say(f"warning: CUDA_VISIBLE_DEVICES={named}, but TensorFlow finds no GPU; using the CPU")
    # OneDeviceStrategy passes batches through Python, upon which TensorFlow makes the C library map
    # every block of 128 KiB and more again (Python 3.11).
    return tf.distribute.get_strategy()
