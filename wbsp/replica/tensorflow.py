"""Variables on TensorFlow, of a Keras model or the user's own, under any `tf.distribute` strategy
of this process. Keras is not needed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from wbsp.replica.base import Held, Part, Variables
from wbsp.replica.host import HostVariables
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import TensorSpec, total_size

if TYPE_CHECKING:
    import keras

_AS_IT_IS = tf.compat.v1.ConfigProto(graph_options={
    "rewrite_options": {"disable_meta_optimizer": True}}).SerializeToString()
SMALL = 1 << 16  # floats up to which copying all variables into one tensor pays
TOGETHER = 1 << 20  # floats written by one call, whose temporaries all lie in memory at once


def variables(model: keras.Model, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
              pool: BufferPool) -> Variables:
    """Return the `chosen` variables of `model`."""
    strategy = getattr(model, "distribute_strategy", None)  # a single layer has none
    return _of([variable.value for variable in chosen], strategy, layout, pool)


def _of(chosen: Sequence[tf.Variable], strategy: tf.distribute.Strategy | None,
        layout: Sequence[TensorSpec], pool: BufferPool) -> Variables:
    strategy = strategy or tf.distribute.get_strategy()
    if (strategy.num_replicas_in_sync > 1 or tf.config.list_logical_devices("GPU")
            or total_size(layout) <= SMALL):
        return OnDevices(chosen, layout, strategy)
    with strategy.scope():
        return OnHost(chosen, layout, pool)


def number(model: keras.Model, variable: keras.Variable) -> Callable[[], float]:
    """See `wbsp.replica.model.number`."""
    if (model.distribute_strategy or tf.distribute.get_strategy()).num_replicas_in_sync > 1:
        return lambda: float(variable.numpy())  # with replicas on all devices
    held = variable.value
    handle, dtype = held.handle, held.dtype
    # Python's own call of the operation takes four times as long.
    return lambda: float(np.asarray(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)))


def _call(made: Callable[..., Any], *given: tf.TensorSpec) -> Callable[..., Any]:
    """Return a graph of `made` that one operation calls.

    Python's own call, which checks for gradients, takes three times as long.

    Args:
        made: function of tensors like `given`, which may be called with numpy arrays; returns a
            tensor, a sequence of tensors or None.
    """
    graph = tf.function(made, autograph=False).get_concrete_function(*given)
    holds, types = graph.captured_inputs, [tensor.dtype for tensor in graph.outputs]
    # With one device no operation waits for another, so the calling thread may do everything: on
    # a busy machine another thread would be late.
    executor = "SINGLE_THREADED_EXECUTOR" if len(tf.config.list_logical_devices()) == 1 else ""
    alone = isinstance(graph.structured_outputs, tf.Tensor | tf.TensorSpec)

    def call(*tensors: Any) -> Any:
        results = tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *holds], Tout=types, f=graph, config_proto=_AS_IT_IS,
            executor_type=executor)
        return results[0] if alone else results

    return call


class OnHost(HostVariables):
    """Variables in this machine's own memory."""

    def __init__(self, chosen: Sequence[tf.Variable], layout: Sequence[TensorSpec],
                 pool: BufferPool):
        super().__init__(layout, pool)
        self._read = _call(lambda: [tf.cast(v, tf.float32) for v in chosen])
        self._writes = [_writing(some) for some in _groups(chosen)]

    def views(self) -> Iterator[np.ndarray]:
        return map(np.asarray, self._read())

    def write(self, values: Iterator[np.ndarray]) -> None:
        for count, write in self._writes:
            write(*islice(values, count))


def _groups(chosen: Sequence[tf.Variable]) -> Iterator[Sequence[tf.Variable]]:
    """Yield the variables in their order, in groups of up to `TOGETHER` floats, at least one."""
    group: list[tf.Variable] = []
    floats = 0
    for variable in chosen:
        size = math.prod(variable.shape)
        if group and floats + size > TOGETHER:
            yield group
            group, floats = [], 0
        group.append(variable)
        floats += size
    yield group


def _writing(some: Sequence[tf.Variable]) -> tuple[int, Callable[..., None]]:
    """Return the number of variables, and a function that sets them to copies of float32 values."""

    def write(*values: tf.Tensor) -> None:
        for variable, value in zip(some, values, strict=True):
            # The variable would adopt the memory of an aligned numpy array.
            variable.assign(tf.raw_ops.DeepCopy(x=value) if variable.dtype == tf.float32
                            else tf.cast(value, variable.dtype))

    return len(some), _call(write, *(tf.TensorSpec(v.shape, tf.float32) for v in some))


class OnDevices(Variables):
    """Variables on a GPU, on several devices with equal values, or small ones anywhere.

    `gather` reads the first device's copy, `scatter` writes all copies. A cut mostly follows a
    rebase at once, so a rebase computes its update as well: an operation of its own would take as
    long again.
    """

    def __init__(self, chosen: Sequence[tf.Variable], layout: Sequence[TensorSpec],
                 strategy: tf.distribute.Strategy):
        self._chosen = chosen
        self._layout = layout
        self._rebased: tuple[Any, Any, Any] | None = None  # x, anchor, and x - anchor
        flat = tf.TensorSpec([total_size(layout)], tf.float32)
        with strategy.scope():
            vars(self).update({  # the methods as graphs, which do not call each other
                "gather": _call(self.gather), "scatter": _call(self.scatter, flat),
                "cut": _call(self.cut, flat), "_rebase": _call(self._rebase, flat, flat)})
        x = self.gather()  # the first call of each takes milliseconds: not in a step
        self.cut(x)
        self.rebase(x, x)
        self.scatter(x)  # a rebase changes values that are not finite

    def gather(self) -> tf.Tensor:
        flat = [tf.reshape(tf.cast(v, tf.float32), [-1]) for v in self._chosen]
        return tf.concat(flat, 0)

    def scatter(self, vector: tf.Tensor) -> None:
        parts = tf.split(vector, [spec.size for spec in self._layout])
        for variable, part, spec in zip(self._chosen, parts, self._layout, strict=True):
            variable.assign(tf.cast(tf.reshape(part, spec.shape), variable.dtype))

    def bring(self, vector: np.ndarray) -> tf.Tensor:
        return tf.constant(vector)

    def rebase(self, vector: tf.Tensor, anchor: tf.Tensor) -> tf.Tensor:
        x, update = self._rebase(vector, anchor)
        self._rebased = x, vector, update
        return x

    def _rebase(self, vector: tf.Tensor, anchor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = vector + (self.gather() - anchor)
        self.scatter(x)
        return x, x - vector

    def difference(self, x: tf.Tensor, anchor: tf.Tensor) -> tf.Tensor:
        known, self._rebased = self._rebased, None
        if known is not None and x is known[0] and anchor is known[1]:
            return known[2]
        return x - anchor


class TfVariables(Part):
    """The user's own tf.Variables, named by their place among the values.

    Variables that are not of floats stay each worker's own.
    """

    def __init__(self, named: Sequence[tuple[str, tf.Variable]]):
        """Raises ValueError for a variable that cannot be trained together."""
        chosen: dict[int, tuple[str, tf.Variable]] = {}
        for name, variable in named:
            if variable.dtype.is_complex and variable.trainable:
                raise ValueError(f"variable {name} is {variable.dtype.name}, but wbsp trains real "
                                 "numbers: keep its real and imaginary parts in two variables")
            if not variable.shape.is_fully_defined():
                raise ValueError(f"variable {name} has shape {variable.shape}: wbsp trains "
                                 "variables whose shape is known")
            if variable.dtype.is_floating:
                chosen.setdefault(id(variable), (name, variable))
        super().__init__([
            Held(TensorSpec(name, tuple(variable.shape)), variable.dtype.name, variable)
            for name, variable in chosen.values()])

    def _open(self, chosen: list[Any], layout: list[TensorSpec], pool: BufferPool) -> Variables:
        strategy = getattr(chosen[0], "distribute_strategy", None)
        return _of(chosen, strategy, layout, pool)

    def read(self, it: tf.Variable) -> np.ndarray:
        return np.asarray(tf.cast(it, tf.float32))

    def write(self, it: tf.Variable, value: np.ndarray) -> None:
        it.assign(tf.cast(tf.constant(value), it.dtype))


def variables_of(module: tf.Module, name: str) -> list[tf.Variable]:
    """Return the variables of a module, in the order of its attributes' names.

    Raises ValueError for a module with Keras layers, whose variables it does not list.
    """
    for one in (module, *module.submodules):
        for attribute, value in vars(one).items():
            if not attribute.startswith("_self_") and any(
                    hasattr(part, "trainable_weights") for part in tf.nest.flatten(value)):
                raise ValueError(
                    f"{name}.{attribute} is of Keras, but a tf.Module does not list its variables: "
                    f'give {{"{attribute}": the model, "own": the other variables}}')
    return list(module.variables)
