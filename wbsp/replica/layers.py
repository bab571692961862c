"""State of a model outside the flat vector: constants derived from variables, and values that an
optimizer or a constraint writes into the model at the end of training.

Layers are found at any depth: inside other layers, models, lists and dicts of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from wbsp.tensors.layout import subject

_NEAR = 1e-3  # relative difference up to which statistics count as equal
_BROKEN = 1e-5  # relative change by a constraint up to which the constraint holds


class Statistics(NamedTuple):
    """Mean and variance of the data that a Normalization layer was adapted to."""

    layer: keras.layers.Normalization
    mean: np.ndarray
    variance: np.ndarray

    @property
    def differ(self) -> bool:
        """Whether the layer's variables have changed since."""
        now = _statistics(self.layer)
        deviation = np.sqrt(np.maximum(self.variance, now.variance)) + 1e-12
        return bool(np.any(np.abs(self.mean - now.mean) > _NEAR * (deviation + np.abs(self.mean)))
                    or np.any(np.abs(self.variance - now.variance) > _NEAR * deviation ** 2))


def every_layer(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the model and all layers in it, each once."""
    # No public method finds layers inside layers.
    found: list[keras.layers.Layer] = model._flatten_layers()
    return found


def calls(model: keras.Layer) -> bool:
    """Return whether the model can be called; one with only a `train_step` cannot."""
    return type(model).call not in (keras.Layer.call, keras.Model.call)


def trained(model: keras.Model) -> list[keras.Variable]:
    """Return all variables that take part, in the order of the flat vector.

    The scales of a float8 layer are each worker's own: a step replaces them, and a sum of their
    changes would fit no worker's data.

    Raises ValueError for a variable that cannot be trained together.
    """
    chosen = []
    for variable in [*model.trainable_weights, *model.non_trainable_weights]:
        if "complex" in variable.dtype and variable.trainable:
            raise ValueError(f"variable {variable.path} is {variable.dtype}, but wbsp trains real "
                             "numbers: keep its real and imaginary parts in two variables")
        if "float" in variable.dtype and not variable.overwrite_with_gradient:
            chosen.append(variable)
    return chosen


def frozen(model: keras.Model) -> set[int]:
    """Return the ids of the variables that no step changes, as Keras declares them.

    These are weights that the optimizer may not change, and all variables of a frozen
    BatchNormalization, which keeps its statistics. Other variables may change by themselves.
    """
    still: set[int] = set()
    for layer in every_layer(model):
        mine = [*layer._trainable_variables]  # no public attribute tells them from layer state
        if (isinstance(layer, keras.layers.BatchNormalization) and not layer.trainable
                and type(layer).call is keras.layers.BatchNormalization.call):
            mine += layer._non_trainable_variables
        still.update(id(variable) for variable in mine if not variable.trainable)
    return still


def derive(model: keras.Model) -> None:
    """Have layers recompute what they derive from variables that a version has set.

    After `adapt`, Normalization computes with constants derived from its variables. Functions
    compiled with old constants are compiled again.
    """
    stale = False
    for layer in _adapted(model):
        before = _constants(layer)
        layer.finalize_state()
        now = _constants(layer)
        stale = stale or before is None or now is None or not all(map(np.array_equal, before, now))
    if stale:
        for one in every_layer(model):
            if isinstance(one, keras.Model):
                for kind in ("train", "test", "predict"):
                    if getattr(one, f"{kind}_function", None) is not None:
                        getattr(one, f"make_{kind}_function")(force=True)


def statistics(model: keras.Model) -> list[Statistics]:
    """Return the statistics of all layers that were adapted to data."""
    found = [_statistics(layer) for layer in _adapted(model)]
    return [one for one in found if one.mean.any() or (one.variance != 1).any()]


def makes_averages(model: keras.Model) -> bool:
    """Return whether the model's optimizer makes averages, which Keras puts into it after `fit`."""
    optimizer = getattr(model, "optimizer", None)  # a user's own loop may need none
    return optimizer is not None and any(getattr(one, "use_ema", False)
                                         for one in _optimizers(optimizer))


def finalize(model: keras.Model, stepped: bool, averaged: bool, say: Callable[[str], None]) -> bool:
    """Turn the run's final version into what Keras leaves at the end of `fit`.

    Returns True if the model holds the optimizer's averages.

    Args:
        stepped: this worker has trained.
        averaged: the optimizer's averages, if it makes any, are available.
    """
    for line in settle(model):
        say(line)
    if not stepped or not makes_averages(model):
        return False
    if averaged:
        model.optimizer.finalize_variable_values(model.trainable_weights)
        say("the optimizer has use_ema: fit leaves the averages of this worker's steps, as it does "
            "without a server; the run's final version, which all workers share, is in the "
            "server's checkpoint")
    else:
        say("the optimizer has use_ema, but Keras keeps no averages if training ends before its "
            "last epoch under SwapEMAWeights(swap_on_epoch=True): fit leaves the run's final "
            "version")
    return averaged


def settle(model: keras.Layer) -> Iterator[str]:
    """Let layers and constraints apply their part to the run's final version; yield what the user
    should know about it, a line each."""
    derive(model)
    if broken := constrain(model):
        more = f" and {len(broken) - 1} more" if broken[1:] else ""
        yield (f"the final version breaks the constraint of {broken[0].path}{more}, because "
               "versions are sums of updates. The constraint was applied to this model; the "
               "server's checkpoint still breaks it")


def constrain(model: keras.Model) -> list[keras.Variable]:
    """Apply the constraints that variables break, as a step does; return those variables."""
    broken = []
    for variable in model.trainable_weights:
        if variable.constraint is not None:
            kept = variable.constraint(variable)
            was, now = (keras.ops.convert_to_numpy(keras.ops.cast(v, "float32"))
                        for v in (variable, kept))
            if np.abs(was - now).max(initial=0) > _BROKEN * np.abs(was).max(initial=0):
                variable.assign(kept)
                broken.append(variable)
    return broken


def remarks(model: keras.Model) -> Iterator[str]:
    """Yield what a user should know about training this model together, a line each."""
    weights = [*model.trainable_weights, *model.non_trainable_weights]
    if names := [v.path for v in weights if v.dtype == "float64"]:
        yield (f"{_some(names)} float64, but versions are float32: adopting a version rounds to "
               "float32, also at the end")
    if names := [v.path for v in weights if "complex" in v.dtype]:
        yield f"{_some(names)} complex: each worker keeps its own values"
    if names := [layer.name for layer in every_layer(model)
                 if type(layer).__name__ == "TorchModuleWrapper" and [*layer.module.buffers()]]:
        yield (f"{_some(names, 'layer')} of PyTorch with buffers, such as the statistics of a "
               "BatchNorm: versions do not carry them, and each worker keeps its own")


def differing(adapted: Sequence[Statistics]) -> Iterator[str]:
    """Yield a line for each layer whose statistics a version has changed."""
    for one in adapted:
        if one.differ:
            yield (f"layer {one.layer.name} was adapted to other data than the run's, and now "
                   "computes with the run's mean and variance: adapt it to the same data on all "
                   "workers")


def _some(names: Sequence[str], kind: str = "variable") -> str:
    """"variable a is", "variable a and 2 more are"."""
    return f"{kind} {subject(names)}"


def _adapted(model: keras.Model) -> list[keras.layers.Normalization]:
    """Return the layers whose mean and variance are variables."""
    return [layer for layer in every_layer(model) if isinstance(layer, keras.layers.Normalization)
            and layer.built and layer.input_mean is None]


def _statistics(layer: keras.layers.Normalization) -> Statistics:
    return Statistics(layer, *map(_numbers, (layer.adapt_mean, layer.adapt_variance)))


def _constants(layer: keras.layers.Normalization) -> list[np.ndarray] | None:
    """Return the constants; None: they have no values, as the layer was built inside a graph."""
    try:
        return [_numbers(value) for value in (layer.mean, layer.variance)]
    except Exception:  # of another type on each back end
        return None


def _numbers(value: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(keras.ops.cast(value, "float32")))


def scheduled(model: keras.Layer) -> str | None:
    """Return the name of a schedule that sets the learning rate by this worker's steps, or None."""
    for one in optimizers(model):
        rate = getattr(one, "_learning_rate", None)  # the public one is the current number
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return type(rate).__name__
    return None


def optimizers(model: keras.Layer) -> list[Any]:
    """Return the optimizer of a model and those in its attributes, as a GAN has several, with those
    that they wrap."""
    held = [getattr(model, "optimizer", None), *vars(model).values()]
    return list({id(one): one for top in held if isinstance(top, keras.optimizers.Optimizer)
                 for one in _optimizers(top)}.values())


def _optimizers(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and those that it wraps."""
    yield optimizer
    for inner in [getattr(optimizer, "inner_optimizer", None),
                  *getattr(optimizer, "_inner_optimizers", ())]:
        if inner is not None:
            yield from _optimizers(inner)
