"""What a worker needs of the model that it trains, and what a replica needs of a back end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

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


class Part:
    """Variables of one kind, among all that a worker trains.

    layout: those of floats, by their names
    types:  name -> what it is made of: "float32", "bfloat16", ...
    """

    def __init__(self, layout: list[TensorSpec], types: dict[str, str]):
        self.layout = layout
        self.types = types

    def variables(self, pool: BufferPool) -> Variables:
        """As they are now. `pool`: source of memory for vectors on a CPU."""
        raise NotImplementedError

    def states(self) -> list[LayerState] | None:
        """What is beside them, and must be the same on all workers; None: not known."""
        return None

    def remarks(self) -> Iterator[str]:
        """What a user should know of variables that are trained together, a line each."""
        if wide := [name for name, kind in self.types.items() if kind == "float64"]:
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


def rounds(types: Iterable[str]) -> bool:
    """True if variables of such types hold fewer digits than float32."""
    return not {*types} <= {"float32", "float64"}
