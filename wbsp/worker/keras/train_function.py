"""The phases of a step of `fit`: fetching its batch, computing, or other callbacks.

Keras calls callbacks at a step's beginning and end. It fetches the batch in between, within the
model's `train_function`, except on PyTorch. So a `fit` replaces this public attribute by a function
that fetches the batch itself, or times Keras's fetch. The computation stays the same. If the data
are the run's, as a tf.data.Dataset, the thread that makes a batch marks when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras

from wbsp.core.stats import Phase
from wbsp.worker.share import Share

Enter = Callable[[Phase], object]  # called by the compute thread with its next phase
Function = Callable[..., Any]


class TimedSteps:
    """Times the steps of one `fit`, from its on_train_begin to `release`."""

    def __init__(self, model: keras.Model, enter: Enter, share: Share | None = None):
        """`share`: the data that this `fit` was given, if they are the run's."""
        self._model = model
        self._function: Function = model.train_function
        model.train_function = self._timed = _timed(model, enter, share)

    @property
    def phase(self) -> Phase:
        """Phase in which a step begins: `callbacks` if the timed function marks the others."""
        told = self._model.train_function is self._timed  # a callback may have compiled it again
        return "callbacks" if told else "data or compute"

    def release(self) -> None:
        """Restore the model's own function."""
        if self._model.train_function is self._timed:
            self._model.train_function = self._function


def _timed(model: keras.Model, enter: Enter, share: Share | None) -> Function:
    """Return the train_function in phases `data` and `compute`, and then `callbacks`."""
    function: Function = model.train_function

    def opaque(*args: Any) -> Any:
        enter("data or compute")
        outputs = function(*args)
        enter("callbacks")
        return outputs

    if type(model).make_train_function is not keras.Model.make_train_function:
        return opaque  # it may fetch at any time
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
    def told(iterator: Any) -> Any:  # one call of TensorFlow, as without it: each costs two
        share.fetch(enter)           # switches of threads
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
        if not isinstance(iterator, tf.data.Iterator):  # of a strategy with several devices
            return opaque(iterator)
        if step is None:  # accepts batches of any size, like Keras's own
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
        jax.block_until_ready(outputs)  # otherwise it is computed during callbacks
        enter("callbacks")
        return outputs, state
    return timed


def _on_torch(function: Function, enter: Enter) -> Function:
    import torch

    def timed(data: Any) -> Any:
        enter("compute")
        outputs = function(data)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # otherwise it is computed during callbacks
        enter("callbacks")
        return outputs
    return timed
