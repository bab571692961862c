"""The values that a user trains, as one flat vector: models, modules, variables or arrays.

A value's class tells its framework, and a framework that is not imported has no values. So this
module imports no framework that the process does not already have.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from wbsp.replica.base import Held, Part, Variables, divide, rounds
from wbsp.replica.flat import FlatReplica
from wbsp.replica.frozen import Frozen
from wbsp.replica.mapped import Map, Mapped, Names
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import Entry, LayerState, check_layout, kept_entries

_TAKEN = ("a Keras model, a torch.nn.Module, tf.Variables or torch tensors in a list or dict, a "
          "pytree of JAX arrays, or a dict of several models")


class Values:
    """The values that a worker trains.

    Attributes:
        given: as the user holds them; of a pytree, the newest one.
        name: for messages.
        layout: of all float variables that steps change, each once; "key/name" if several values
            are given.
        frozen: those that no step changes.
        local: names of the variables that this worker keeps for itself.
    """

    def __init__(self, given: Any, frozen: Sequence[str] | None = None,
                 names: Names | None = None, local: Sequence[str] = ()):
        """`frozen`, `local`: see `Part.divide`. `names`: of the run's variables; None: they are
        equal.

        Raises ValueError, in one line, for values that cannot be trained together.
        """
        self._given = given
        self._tree: Any = None  # the PyTree, if one was given
        self._parts = list(_parts(given))
        if not self._parts:
            self._tree = _back_end("jax").PyTree(given)
            self._parts = [self._tree]
        divide(self._parts, frozen, local)
        self.frozen = Frozen(self._parts)
        self.local = [held.spec.name for part in self._parts for held in part.local]
        self.layout = [spec for part in self._parts for spec in part.layout]
        if not self.layout:
            still = (" that are neither frozen nor local"
                     if any(part.held for part in self._parts) else "")
            raise ValueError(f"{_said(given)} has no variables of floats{still}: there is nothing "
                             "to train together")
        self._map = None if names is None else Map(self.layout, names)
        if self._map is not None:
            if self.frozen.layout:
                raise ValueError(f"names= names only variables that are trained, but "
                                 f"{self.frozen.layout[0].name} is frozen: give frozen=[]")
            self.layout = self._map.layout
        check_layout(self.layout)
        self.name = getattr(given, "name", None) or _said(given)

    @property
    def given(self) -> Any:
        return self._given if self._tree is None else self._tree.tree

    def take(self, given: Any) -> None:
        """Take the values of a step; None: it has changed them in place.

        Raises ValueError for another structure.
        """
        if self._tree is not None:
            if given is None:
                raise ValueError("a step does not change JAX's arrays, but returns new ones: call "
                                 "params = w.step(loss, params)")
            self._tree.take(given)
        elif given is not None and given is not self._given:
            raise ValueError(f"w.step was given {_said(given)}, but this worker trains "
                             f"{_said(self._given)} in place: call w.step(loss)")

    def open(self, pool: BufferPool | None = None) -> FlatReplica:
        """Return the replica of the values as they are now."""
        pool = pool or BufferPool()
        parts = [part for part in self._parts if part.layout]
        each = [part.variables(pool) for part in parts]
        types = set().union(*(part.types for part in parts))
        together = each[0] if len(each) == 1 else Together(each, parts)
        if self._map is not None:
            together = Mapped(together, self._map)
        return FlatReplica(together, self.layout, rounds(types), self.adopted)

    def states(self) -> list[LayerState] | None:
        """See `Part.states`; of all parts whose states are known."""
        if self._map is not None:
            return None  # layers of another framework have other states
        known = [states for part in self._parts if (states := part.states()) is not None]
        return [state for states in known for state in states] if known else None

    def entries(self) -> list[Entry]:
        """See `Part.entries`; of all parts."""
        if self._map is not None:
            return []  # the run has other names
        return kept_entries([entry for part in self._parts for entry in part.entries()])

    def adopted(self) -> None:
        """Note that a version was written to the values."""
        for part in self._parts:
            part.adopted()

    def finish(self) -> Iterator[str]:
        """Finish a run, whose last version the values hold; yield lines for the user."""
        for part in self._parts:
            yield from part.finish()
        yield from self.frozen.finish()

    def remarks(self) -> Iterator[str]:
        """Yield what a user should know about training these values together, a line each."""
        for part in self._parts:
            yield from part.remarks()

    def check_first(self) -> None:
        """Raise ValueError if the first step has created variables that are missing here, or has
        changed frozen ones."""
        for part in self._parts:
            part.check()
        self.frozen.check()

    def check(self) -> None:
        """Raise ValueError if variables were added, removed or replaced since, or have another
        shape, type or device. Of a pytree `take` finds that.

        Versions would carry what was there before, and each worker would keep its own of the rest.
        """
        if self._tree is not None:
            return
        now = {held.spec.name: held for part in _parts(self._given) for held in part.held}
        found: list[tuple[str, str]] = []  # name, and what has happened to the variable
        for part in self._parts:
            for held in part.held:
                new = now.pop(held.spec.name, None)
                what = "was removed from the model" if new is None else _difference(part, held, new)
                if what:
                    found.append((held.spec.name, what))
        found += [(name, "was added to the model") for name in now]
        if found:
            (name, what), *more = found
            others = f", and {len(more)} more have changed" if more else ""
            raise ValueError(f"{name} {what} inside the block{others}: versions would not carry "
                             "that, and each worker would keep its own. Change the model before "
                             "the block, or leave the block and enter another one")


class Together(Variables):
    """Variables of several parts, one part after the other, in this machine's memory."""

    def __init__(self, each: Sequence[Variables], parts: Sequence[Part]):
        self._each = each
        ends = np.cumsum([0, *(sum(spec.size for spec in part.layout) for part in parts)])
        self._where = [slice(*pair) for pair in itertools.pairwise(ends)]

    def gather(self) -> np.ndarray:
        return np.concatenate([np.asarray(one.send(one.gather())) for one in self._each])

    def scatter(self, vector: np.ndarray) -> None:
        for one, where in zip(self._each, self._where, strict=True):
            one.scatter(one.bring(vector[where]))

    def bring(self, vector: np.ndarray) -> np.ndarray:
        return vector


def _parts(given: Any) -> Iterator[Part]:
    """Yield the parts that are trained in place; none if `given` has no values of that kind.

    Raises ValueError for a mixture with other things.
    """
    found = [(name, value, _kind(value)) for name, value in _leaves(given, "")]
    if not any(kind for _, _, kind in found):
        if not found:
            raise ValueError(f"cannot train {_said(given)}: give {_TAKEN}")
        if "jax" not in sys.modules:
            raise ValueError(f"{_said(found[0][1])} cannot be trained together: give {_TAKEN}")
        return
    torch, tensorflow = [], []
    for name, value, kind in found:
        at = f"{name}/" if name else ""
        match kind:
            case "keras":
                yield _back_end("model").KerasPart(value, at)
            case "torch module":
                torch += [(f"{at}{inner}", get) for inner, get in _back_end("torch").held(value)]
            case "torch tensor":
                torch.append((name, _back_end("torch").same(value)))
            case "tf module":
                tensorflow += [(f"{at}{number}", one) for number, one in enumerate(
                    _back_end("tensorflow").variables_of(value, name or "the module"))]
            case "tf variable":
                tensorflow.append((name, value))
            case _:
                raise ValueError(f"{name} is {_said(value)}, among values of other kinds: give "
                                 f"{_TAKEN}")
    if torch:
        yield _back_end("torch").Tensors(torch)
    if tensorflow:
        yield _back_end("tensorflow").TfVariables(tensorflow)


def _difference(part: Part, was: Held, now: Held) -> str | None:
    """Return what has happened to a variable whose name is still there; None: nothing."""
    before, shape = tuple(was.spec.shape), tuple(now.spec.shape)
    sizes = "" if before == shape else f" (its shape was {before} and is {shape})"
    if not part.is_still(was.it, now.it):
        return f"was replaced by another variable{sizes}"
    if sizes:
        return f"has changed its shape{sizes.replace('its shape', 'it')}"
    if was.type != now.type:
        return f"has changed its type from {was.type} to {now.type}"
    if was.device == "cpu" != now.device:  # the other way is only slow
        return f"was moved from cpu to {now.device}"
    return None


def _leaves(given: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of everything in dicts, lists and tuples at any depth."""
    inner: Iterator[tuple[Any, Any]]
    if isinstance(given, Mapping):
        inner = iter(given.items())
    elif isinstance(given, list | tuple):
        inner = enumerate(given)
    else:
        yield name, given
        return
    for key, value in inner:
        yield from _leaves(value, f"{name}/{key}" if name else str(key))


def rank_of(given: Any) -> int | None:
    """Return this process's rank in the group that trains a DistributedDataParallel; None: the
    values have no such module, or the group has no other process."""
    torch = sys.modules.get("torch")
    if torch is None or not any(type(value).__name__ == "DistributedDataParallel"
                                for _, value in _leaves(given, "")):
        return None
    group = torch.distributed
    return None if group.get_world_size() == 1 else group.get_rank()


def _kind(value: Any) -> str | None:
    """Return the kind of a value that is trained in place, else None. Raises ValueError."""
    keras, torch, tf = (sys.modules.get(name) for name in ("keras", "torch", "tensorflow"))
    if keras is not None and isinstance(value, keras.Layer):
        return "keras"  # on PyTorch, a Keras layer is also a torch module
    if keras is not None and isinstance(value, keras.Variable):
        raise ValueError(f"{value.path} is a variable of Keras: give the model or the layer that "
                         "it belongs to")
    if torch is not None and isinstance(value, torch.nn.Module):
        return "torch module"
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch tensor"
    if tf is not None and isinstance(value, tf.Variable):
        return "tf variable"
    if tf is not None and isinstance(value, tf.Module):
        return "tf module"
    return None


def _back_end(name: str) -> Any:
    return importlib.import_module(f"wbsp.replica.{name}")


def _said(value: Any) -> str:
    """Return the value's type for a message, with its article."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
