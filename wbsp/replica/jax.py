"""Variables of a Keras model on JAX, or the leaves of a pytree. Keras is not needed here.

While Keras's trainer trains, it keeps the values outside of the model. Reading `Callback.model`
between two steps makes the trainer put them back, and the next step begins from the values assigned
then. A step's arrays are donated to the next step: none may be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from wbsp.replica.base import Held, Part, Variables
from wbsp.replica.host import OneByOne
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import TensorSpec, subject

if TYPE_CHECKING:
    import keras


class Variable(Protocol):
    """A variable of Keras's, or a leaf of a pytree."""

    dtype: Any

    @property
    def value(self) -> jax.Array: ...

    def assign(self, value: jax.Array) -> Any: ...


def variables(model: keras.Model, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
              pool: BufferPool) -> Variables:
    """Return the `chosen` variables of `model`."""
    return _of(chosen, layout, pool)


def _of(chosen: Sequence[Variable], layout: Sequence[TensorSpec], pool: BufferPool) -> Variables:
    devices = {device for variable in chosen for device in variable.value.devices()}
    if len(devices) > 1 or devices.pop().platform != "cpu":
        return OnDevices(chosen, layout)
    return OneByOne(chosen, layout, pool, _view, _write)


def _view(variable: Variable) -> np.ndarray:
    return np.asarray(variable.value).astype(np.float32, copy=False)


def _write(variable: Variable, value: np.ndarray) -> None:
    # `device_put` adopts memory that is aligned to 64 bytes, even with may_alias=False.
    variable.assign(jnp.array(value, copy=True))


class OnDevices(Variables):
    """Variables on an accelerator, or on several devices under a `keras.distribution`."""

    def __init__(self, chosen: Sequence[Variable], layout: Sequence[TensorSpec]):
        self._chosen = chosen
        self._layout = layout
        self._gather = jax.jit(_join)
        self._cut = jax.jit(_difference)
        self._part = jax.jit(self._split)
        self._rebase = jax.jit(lambda vector, values, anchor: vector + (_join(values) - anchor))
        self._sharding = self.gather().sharding

    def gather(self) -> jax.Array:
        return self._gather(self._values())

    def scatter(self, vector: jax.Array) -> None:
        for variable, value in zip(self._chosen, self._part(vector), strict=True):
            variable.assign(value)

    def cut(self, anchor: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._cut(self._values(), anchor)

    def rebase(self, vector: jax.Array, anchor: jax.Array) -> jax.Array:
        x = self._rebase(vector, self._values(), anchor)
        self.scatter(x)
        return x

    def bring(self, vector: np.ndarray) -> jax.Array:
        return jax.device_put(vector, self._sharding, may_alias=False)

    def _values(self) -> list[jax.Array]:
        return [variable.value for variable in self._chosen]

    def _split(self, vector: jax.Array) -> list[jax.Array]:
        ends = np.cumsum([spec.size for spec in self._layout])
        return [part.reshape(spec.shape).astype(variable.dtype) for variable, part, spec in
                zip(self._chosen, jnp.split(vector, ends[:-1]), self._layout, strict=True)]


def _difference(values: Sequence[jax.Array], anchor: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = _join(values)
    return x - anchor, x


def _join(values: Sequence[jax.Array]) -> jax.Array:
    return jnp.concatenate([value.astype(jnp.float32).ravel() for value in values])


class Leaf:
    """One array of a pytree; each step replaces it.

    Attributes:
        assigned: the array comes from a version, not from a step.
    """

    def __init__(self, name: str, value: jax.Array):
        self.name = name
        self.shape, self.dtype = value.shape, value.dtype
        self.held = value
        self.assigned = False

    @property
    def value(self) -> jax.Array:
        """The array. Raises ValueError if it was donated to a step."""
        if self.held.is_deleted():
            raise ValueError(f"{self.name} was donated to a step after the last w.step: call "
                             "params = w.step(loss, params) after each step")
        return self.held

    def step(self, value: jax.Array) -> None:
        """Take the array that a step has returned."""
        self.held = value

    def is_seen(self) -> None:
        """Note that the loop has the array of a version."""
        self.assigned = False

    def assign(self, value: jax.Array) -> None:
        """Replace the array by one of this leaf's type."""
        self.held = value.astype(self.dtype)
        self.assigned = True


class PyTree(Part):
    """The arrays of a pytree, which is never written to: a version makes a new pytree.

    Leaves that are not of floats stay unchanged.
    """

    def __init__(self, tree: Any):
        """Raises ValueError for a tree that cannot be trained together."""
        self._form: Any
        named, self._form = jax.tree_util.tree_flatten_with_path(tree)
        names = _named(tree)
        self._given = tree
        self._leaves: list[Any] = []  # a Leaf, or a value that is not trained
        for name, (_, value) in zip(names, named, strict=True):
            if isinstance(value, float | np.floating | np.ndarray):
                raise ValueError(f"{name or 'the value'} is of type {type(value).__name__}, but a "
                                 "step would return an array: make it a jax.numpy array")
            if not isinstance(value, jax.Array):
                self._leaves.append(value)
            elif jnp.issubdtype(value.dtype, jnp.complexfloating):
                raise ValueError(f"{name} is {value.dtype}, but wbsp trains real numbers: keep its "
                                 "real and imaginary parts in two arrays")
            elif jnp.issubdtype(value.dtype, jnp.floating):
                self._leaves.append(Leaf(name, value))
            else:
                self._leaves.append(value)
        self._chosen = [leaf for leaf in self._leaves if isinstance(leaf, Leaf)]
        super().__init__([Held(TensorSpec(leaf.name, tuple(leaf.value.shape)), str(leaf.dtype),
                               leaf) for leaf in self._chosen])

    def _open(self, chosen: list[Any], layout: list[TensorSpec], pool: BufferPool) -> Variables:
        return _of(chosen, layout, pool)

    def read(self, it: Any) -> np.ndarray:
        return _view(it)

    def write(self, it: Any, value: np.ndarray) -> None:
        _write(it, value)

    def take(self, tree: Any) -> None:
        """Take the tree of a step. Raises ValueError for another structure."""
        if any(leaf.assigned for leaf in self._chosen):
            raise ValueError("training begins with the run's version: take params = w.values at "
                             "the beginning of the block")
        form: Any
        values, form = jax.tree_util.tree_flatten(tree)
        if form != self._form:
            raise ValueError(f"w.step was given another pytree than this worker began with: "
                             f"{self._differs(tree)}; give it the pytree that the step has "
                             "returned")
        for place, (leaf, value) in enumerate(zip(self._leaves, values, strict=True)):
            if not isinstance(leaf, Leaf):
                self._leaves[place] = value
                if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating):
                    raise ValueError(f"{_named(tree)[place]} holds {value.dtype} now, but held no "
                                     "floats, so that versions do not carry it")
            elif isinstance(value, jax.core.Tracer):
                raise ValueError("w.step was called inside a function that JAX traces: call it "
                                 "after the step, with the arrays that the step has returned")
            elif getattr(value, "shape", None) != leaf.shape:
                raise ValueError(f"{leaf.name} has shape {getattr(value, 'shape', None)} now, but "
                                 f"had {leaf.shape}")
            elif value.dtype != leaf.dtype:
                raise ValueError(f"{leaf.name} is {value.dtype} now, but was {leaf.dtype}: give it "
                                 f"that type in the step, or {value.dtype} before the block")
            else:
                leaf.step(value)
        self._given = tree

    def _differs(self, tree: Any) -> str:
        """Return how another tree differs from this one."""
        here, there = _named(self._given), _named(tree)
        lost = [name or "the value" for name in here if name not in there]
        new = [name or "the value" for name in there if name not in here]
        said = [subject(names, was, were) for names, was, were in (
            (lost, "was removed", "were removed"), (new, "was added", "were added")) if names]
        return " and ".join(said) or "its containers are of other types"

    @property
    def tree(self) -> Any:
        """The tree of the last step, with the arrays of a version that came later."""
        if any(leaf.assigned for leaf in self._chosen):
            values = [leaf.held if isinstance(leaf, Leaf) else leaf for leaf in self._leaves]
            self._given = jax.tree_util.tree_unflatten(self._form, values)
            for leaf in self._chosen:
                leaf.is_seen()
        return self._given


def _named(tree: Any) -> list[str]:
    """Return the path of each leaf."""
    return [jax.tree_util.keystr(path, simple=True, separator="/")
            for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
