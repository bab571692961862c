"""What a worker needs of the model that it trains, and what a replica needs of a back end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import LayerState, TensorSpec


class Vector(Protocol):
    """float32 [size], perhaps still being computed, perhaps in the memory of a device.

    `np.asarray` waits for it and brings it to the host; any thread may ask for that.
    """

    def __array__(self) -> np.ndarray: ...


class Replica(Protocol):
    """The live model x and its anchor, as flat vectors of float32 [size].

    For the compute thread alone, but for `bring`.
    """

    @property
    def layout(self) -> Sequence[TensorSpec]: ...

    def read(self) -> np.ndarray:
        """x; callers must not write to the array."""

    def hold(self) -> None:
        """Until the next `stepped` or `adopt`, x is what it is now, whatever other code writes to
        the variables."""

    def put_back(self) -> bool:
        """Set the variables to x, where it is held, whatever other code has written to them.

        Returns True if they were different, by more than a swap there and back makes by rounding.
        """

    def stepped(self) -> None:
        """Note that a step has changed x."""

    def cut(self) -> Vector:
        """Return x - anchor; anchor = x. The array of it is the caller's, unless it is read-only.
        """

    def bring(self, vector: np.ndarray) -> Any:
        """A version on its way to where the model lives, for `adopt`; any thread may call this."""

    def adopt(self, vector: Any, how: str) -> None:
        """`replace`: x = W; `rebase`: x = W + (x - anchor); anchor = W.

        Where variables hold fewer digits than float32, x is rounded to theirs, and the anchor is
        what leaves x - anchor as it was.

        vector: W, from `bring`. It is kept; where it is a numpy array, and not read-only, a later
                cut writes to it.
        """


class Variables(ABC):
    """The variables that make up x. V: a flat vector, float32 [size], of numpy or the back end."""

    @abstractmethod
    def gather(self) -> Any:
        """x, a new V."""

    @abstractmethod
    def scatter(self, vector: Any) -> None:
        """x = vector, a V, which is not written to, now or later."""

    @abstractmethod
    def bring(self, vector: np.ndarray) -> Any:
        """The same vector as a V; any thread may call this."""

    def cut(self, anchor: Any) -> tuple[Any, Any]:
        """(x - anchor, x), for `send` and a V. The memory of `anchor` may be used again."""
        x = self.gather()
        return self.difference(x, anchor), x

    def difference(self, x: Any, anchor: Any) -> Any:
        """x - anchor for an x that is known. The memory of `anchor` may be used again."""
        return x - anchor

    def rebase(self, vector: Any, anchor: Any) -> Any:
        """x = vector + (x - anchor), both V; return x. The memory of `anchor` may be used again."""
        x = vector + (self.gather() - anchor)
        self.scatter(x)
        return x

    def send(self, update: Any) -> Vector:
        """A V, or what `cut` has made, on its way to the host."""
        return update


class Held(NamedTuple):
    """A variable of floats, as its back end holds it.

    type:   what it is made of: "float32", "bfloat16", ...
    frozen: by what its framework says, no step changes it
    """

    spec: TensorSpec
    type: str
    it: Any
    frozen: bool = False


class Part:
    """Variables of one kind, among all that a worker trains.

    layout: those of the vector
    frozen: the others, which no step changes
    """

    def __init__(self, held: Sequence[Held]):
        self._held = held
        self.freeze(None)

    def freeze(self, names: Sequence[str] | None) -> None:
        """Say what is frozen: variables of these names, or with names that begin so; None: those of
        which the framework says it."""
        self.frozen = [held for held in self._held if
                       (held.frozen if names is None else begins(held.spec.name, names))]
        still = {id(held) for held in self.frozen}
        self._moving = [held for held in self._held if id(held) not in still]
        self.layout = [held.spec for held in self._moving]

    @property
    def types(self) -> set[str]:
        """Of those of the vector."""
        return {held.type for held in self._moving}

    def variables(self, pool: BufferPool) -> Variables:
        """Those of the vector, as they are now. `pool`: source of memory for vectors on a CPU."""
        return self._open([held.it for held in self._moving], self.layout, pool)

    def _open(self, chosen: list[Any], layout: list[TensorSpec], pool: BufferPool) -> Variables:
        raise NotImplementedError

    def read(self, it: Any) -> np.ndarray:
        """Values of a variable, float32 in its shape."""
        raise NotImplementedError

    def write(self, it: Any, value: np.ndarray) -> None:
        """Set a variable to values, float32 in its shape, in memory that is the variable's from
        here on."""
        raise NotImplementedError

    def states(self) -> list[LayerState] | None:
        """What is beside them, and must be the same on all workers; None: not known."""
        return None

    def remarks(self) -> Iterator[str]:
        """What a user should know of variables that are trained together, a line each."""
        if wide := [held.spec.name for held in self._moving if held.type == "float64"]:
            more = f" and {len(wide) - 1} more are" if wide[1:] else " is"
            yield (f"{wide[0]}{more} of float64: versions are float32, so that each adoption "
                   "rounds to float32, and so does the final version")

    def adopted(self) -> None:
        """A version was put into them."""

    def finish(self) -> Iterator[str]:
        """They hold the run's last version; yield what a user should know, a line each."""
        yield from ()

    def check(self) -> None:
        """Raises ValueError where a step has made variables that are not among them."""


def begins(name: str, names: Sequence[str]) -> bool:
    """True if a variable's name, which has parts behind "/" or ".", is or begins with one of these.
    """
    return any(name == one or (name.startswith(one) and (
        name[len(one)] in "/." or one[-1:] in ("/", "."))) for one in names)


def rounds(types: Iterable[str]) -> bool:
    """True if variables of such types hold fewer digits than float32."""
    return not {*types} <= {"float32", "float64"}
