"""The experiment's networks by name: `build("cnn", seed=1)`.

Every process of a run names its model on the command line, the server as well as the workers, so
a name must mean equal bytes everywhere: each initializer is seeded from `seed`. The names are
known without Keras, which is imported when a model is built.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from models import gpt

if TYPE_CHECKING:
    import keras

KNOWN = {
    "cnn": "models.cifar_cnn:build",
    "alexnet": "models.cifar_alexnet:build",
    "small": "models.small:build",
}
NAMES = (*KNOWN, "gpt")  # gpt has options, and reads text
IMAGENET = {
    "alexnet": "models.imagenet_alexnet:build",
    "vgg16": "models.applications:vgg16",
    "resnet50": "models.applications:resnet50",
    "inception_v3": "models.applications:inception_v3",
}
# Pixels of a side: as published, and the least with which the last layers have any.
SIDES = {"alexnet": (224, 57), "vgg16": (224, 32), "resnet50": (224, 32), "inception_v3": (299, 75)}


def build(
    name: str, seed: int, weight_decay: float = 0.0, dataset: str = "cifar10",
    image_size: int | None = None, classes: int | None = None,
) -> keras.Model:
    """Build the named network: float32 images to logits.

    for CIFAR-10 and shapes10: [batch, 32, 32, 3] to [batch, 10]
    for `dataset` "imagenet":  [batch, image_size, image_size, 3] to [batch, classes]
    for stdlib:                int32 [batch, context] bytes to [batch, context, 256]

    `name` is one of `KNOWN`, for ImageNet one of `IMAGENET`, for stdlib `gpt` with its options
    (`models.gpt`), or `module:function` for a network of
    your own: `function()` must return a built `keras.Model`; `module` is searched in the current
    folder, too. Defaults are the published `image_size` and 1000 `classes`.
    `weight_decay` adds the L2 term of the TensorFlow tutorial, weight_decay * sum(w^2) / 2, to the
    dense layers. Its default is 0 because the published code of the CNN declares 0.004, also for
    both convolutions, but never adds it.
    """
    side = check(name, dataset, image_size)
    if (form := gpt.shape(name)) is not None:
        if weight_decay:
            raise ValueError(f"weight_decay={weight_decay} has no effect on the model {name!r}: "
                             "its decay is adamw's, as adamw:decay=0.1")
        return gpt.build(form, seed)
    if dataset == "imagenet" and name in IMAGENET:
        return _function(IMAGENET[name])(seed, weight_decay, side, classes or 1000)
    if ":" not in name:
        return _function(KNOWN[name])(seed, weight_decay)
    if weight_decay:
        raise ValueError(
            f"weight_decay={weight_decay} has no effect on the model {name!r}: "
            "put the regularizer into its function"
        )
    model = _build_own(name, seed)
    if dataset == "imagenet":
        _check_own(model, name, side, classes or 1000)
    return model


def check(name: str, dataset: str, image_size: int | None = None) -> int:
    """Raise ValueError unless there is such a network for the data set; needs no Keras.

    Returns the pixels of a side of its images: `image_size`, or the published number; 0: none.
    """
    known = IMAGENET if dataset == "imagenet" else KNOWN
    if gpt.shape(name) is not None:
        if dataset != gpt.DATASET:
            raise ValueError(f"model {name!r} reads bytes, not {dataset}: its data set is "
                             f"{gpt.DATASET}")
        return 0
    if dataset == gpt.DATASET:
        raise ValueError(f"{dataset} is text, which model {name!r} does not read: choose gpt, or "
                         "gpt:width=128:layers=4, say")
    if name not in known and ":" not in name:
        other = {**KNOWN, **IMAGENET}.get(name)
        raise ValueError(
            f"{'unknown ' if other is None else f'{dataset} has no '}model {name!r}: choose one of "
            f"{', '.join(known if dataset == 'imagenet' else NAMES)}, or give module:function"
        )
    if dataset != "imagenet":
        return 32
    published, least = SIDES.get(name, (SIDES["vgg16"][0], 1))
    if image_size is not None and image_size < least:
        raise ValueError(
            f"{name} needs images of at least {least} pixels a side, not --image_size={image_size}"
        )
    return image_size or published


def dataset_of(name: str) -> str:
    """Return the data set of a model for which none is named."""
    return "cifar10" if gpt.shape(name) is None else gpt.DATASET


def _check_own(model: keras.Model, name: str, side: int, classes: int) -> None:
    """Raise ValueError unless the network accepts such images and has so many outputs."""
    wanted, given = (side, side, 3), model.input_shape[1:]
    if len(given) != 3 or any(given[n] not in (None, wanted[n]) for n in range(3)):
        raise ValueError(
            f"model {name!r} takes {given}, images are {wanted}: --image_size says how large"
        )
    if model.output_shape[-1] != classes:
        raise ValueError(
            f"model {name!r} gives {model.output_shape[-1]} values, but there are {classes} classes"
        )


def _build_own(name: str, seed: int) -> keras.Model:
    import keras

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    # The function takes no seed, so the seed reaches its initializers through the global state.
    keras.utils.set_random_seed(seed)
    model = _function(name)()
    if not (isinstance(model, keras.Model) and model.built):
        raise ValueError(
            f"model {name!r}: the function returned {type(model).__name__!r}, "
            "it must return a built keras.Model (one that starts with a keras.Input)"
        )
    return model


def _function(name: str) -> Callable[..., keras.Model]:
    """Import and return the function `module:function`. Raises ValueError if there is none."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A broken import *inside* that module must reach its author unchanged.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"model {name!r}: no module {module_name!r} in {Path.cwd()}") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        source = getattr(module, "__file__", module_name)
        raise ValueError(f"model {name!r}: {source} has no function {function_name!r}")
    return function
