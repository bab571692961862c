"""What a step of `fit` spends its time on: fetching its batch, computing, or other callbacks.

Keras tells callbacks when a step begins and ends. It fetches the batch in between, within the
model's `train_function`, but on PyTorch. So for a `fit` that public attribute is another function,
which fetches the batch itself, or times Keras's fetch of it. The computation stays the same. Where
the data are the run's, as a tf.data.Dataset, the thread that makes a batch says when it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras

from wbsp.core.stats import Phase
from wbsp.worker.share import Share

Enter = Callable[[Phase], object]  # what the compute thread goes on with
Function = Callable[..., Any]


class TimedSteps:
    """The steps of one `fit`, between its on_train_begin and `release`."""

    def __init__(self, model: keras.Model, enter: Enter, share: Share | None = None):
        """`share`: the data of the `fit` are those of this one, as they were made."""
        self._model = model
        self._function: Function = model.train_function
        model.train_function = self._timed = _timed(model, enter, share)

    @property
    def phase(self) -> Phase:
        """In which a step begins: with what other callbacks do, where the rest will be told."""
        told = self._model.train_function is self._timed  # a callback may have made it anew
        return "callbacks" if told else "data or compute"

    def release(self) -> None:
        """Give the model its own function back."""
        if self._model.train_function is self._timed:
            self._model.train_function = self._function


def _timed(model: keras.Model, enter: Enter, share: Share | None) -> Function:
    """The model's train_function, in phases `data` and `compute`, and `callbacks` behind it."""
    function: Function = model.train_function

    def opaque(*args: Any) -> Any:
        enter("data or compute")
        outputs = function(*args)
        enter("callbacks")
        return outputs

    if type(model).make_train_function is not keras.Model.make_train_function:
        return opaque  # it may fetch as it likes
    match keras.backend.backend():
        case "jax":
            return _on_jax(function, enter)
        case "torch":
            return _on_torch(function, enter)
        case "tensorflow" if share is not None:
            return _on_shared(function, enter, share)
        case "tensorflow" if model.steps_per_execution == 1:
            return _on_tensorflow(function, opaque, model.run_eagerly, enter)
    return opaque


def _on_shared(function: Function, enter: Enter, share: Share) -> Function:
    def told(iterator: Any) -> Any:  # one call of TensorFlow, as without: each takes two switches
        share.fetch(enter)           # between threads
        outputs = function(iterator)
        enter("callbacks")
        return outputs
    return told


def _on_tensorflow(function: Function, opaque: Function, eagerly: bool, enter: Enter) -> Function:
    import tensorflow as tf

    step: Function | None = None

    def fetched(batch: Any) -> Any:
        return function((batch,))

    def timed(iterator: Any) -> Any:
        nonlocal step
        if not isinstance(iterator, tf.data.Iterator):  # a strategy's, of several devices
            return opaque(iterator)
        if step is None:  # of batches of any size, as Keras's own
            step = fetched if eagerly else tf.function(
                fetched, input_signature=[iterator.element_spec])
        enter("data")
        batch = iterator.get_next()
        enter("compute")
        outputs = step(batch)
        enter("callbacks")
        return outputs
    return timed


def _on_jax(function: Function, enter: Enter) -> Function:
    import jax

    def told(iterator: Iterator[Any]) -> Iterator[Any]:
        while True:
            enter("data")
            try:
                batch = next(iterator)
            except StopIteration:
                return
            enter("compute")
            yield batch

    def timed(state: Any, iterator: Iterator[Any]) -> Any:
        outputs, state = function(state, told(iterator))
        jax.block_until_ready(outputs)  # it would be computed in a callback's time
        enter("callbacks")
        return outputs, state
    return timed


def _on_torch(function: Function, enter: Enter) -> Function:
    import torch

    def timed(data: Any) -> Any:
        enter("compute")
        outputs = function(data)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # as on JAX
        enter("callbacks")
        return outputs
    return timed
