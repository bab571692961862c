"""What a worker needs from the model that it trains, and what a replica needs from a back end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from wbsp import given
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import Entry, LayerState, TensorSpec, subject


class Vector(Protocol):
    """float32 [size], perhaps still being computed, perhaps in a device's memory.

    `np.asarray` waits for it and copies it to the host; any thread may call that.
    """

    def __array__(self) -> np.ndarray: ...


class Replica(Protocol):
    """The live model x and its anchor, as flat vectors of float32 [size].

    Only the compute thread uses it, except for `bring`.
    """

    @property
    def layout(self) -> Sequence[TensorSpec]: ...

    def read(self) -> np.ndarray:
        """Return x; callers must not write to the array."""

    def hold(self) -> None:
        """Keep x as it is until the next `stepped` or `adopt`, whatever other code writes to the
        variables."""

    def put_back(self) -> bool:
        """Set the variables to x, if it is held, whatever other code has written to them.

        Returns True if they differed by more than the rounding of a swap and its reverse.
        """

    def stepped(self) -> None:
        """Note that a step has changed x."""

    def cut(self) -> Vector:
        """Return x - anchor; anchor = x. The caller owns its array, unless it is read-only.
        """

    def bring(self, vector: np.ndarray) -> Any:
        """Start moving a version to the model's memory, for `adopt`; any thread may call this."""

    def adopt(self, vector: Any, how: str) -> None:
        """`replace`: x = W; `rebase`: x = W + (x - anchor); anchor = W.

        If variables hold fewer digits than float32, x is rounded to theirs, and the anchor is
        chosen such that x - anchor stays as it was.

        Args:
            vector: W, from `bring`. The replica keeps it; a later cut writes to it if it is a numpy
                array that is not read-only.
        """


class Variables(ABC):
    """The variables that form x. V: a flat vector, float32 [size], of numpy or the back end."""

    @abstractmethod
    def gather(self) -> Any:
        """Return x, a new V."""

    @abstractmethod
    def scatter(self, vector: Any) -> None:
        """x = vector, a V, which is never written to."""

    @abstractmethod
    def bring(self, vector: np.ndarray) -> Any:
        """Return the vector as a V; any thread may call this."""

    def cut(self, anchor: Any) -> tuple[Any, Any]:
        """Return (x - anchor, x), for `send` and as a V. May reuse the memory of `anchor`."""
        x = self.gather()
        return self.difference(x, anchor), x

    def difference(self, x: Any, anchor: Any) -> Any:
        """Return x - anchor, for a known x. May reuse the memory of `anchor`."""
        return x - anchor

    def rebase(self, vector: Any, anchor: Any) -> Any:
        """x = vector + (x - anchor), both V; return x. May reuse the memory of `anchor`."""
        x = vector + (self.gather() - anchor)
        self.scatter(x)
        return x

    def send(self, update: Any) -> Vector:
        """Start moving a V, or an update of `cut`, to the host."""
        started: Vector = update
        return started


class Held(NamedTuple):
    """A float variable, as its back end holds it.

    Attributes:
        type: of its elements: "float32", "bfloat16", ...
        frozen: its framework declares that no step changes it.
        device: that holds it, if other code may move it; else "".
    """

    spec: TensorSpec
    type: str
    it: Any
    frozen: bool = False
    device: str = ""


class Part:
    """Variables of one kind, among all that a worker trains.

    Attributes:
        held: all of them.
        layout: of the variables in the vector.
        frozen: the variables that no step changes.
        local: the variables that this worker keeps for itself.
    """

    def __init__(self, held: Sequence[Held]):
        self.held = held
        self.divide()

    def divide(self, frozen: Sequence[str] | None = None, local: Sequence[str] = ()) -> None:
        """Choose the local variables and, of the others, the frozen ones, by their names or the
        beginnings of these; frozen=None: those that the framework declares frozen."""
        self._local = local
        self.local = [held for held in self.held if begins(held.spec.name, local)]
        self.frozen = [held for held in self._but(self.local) if
                       (held.frozen if frozen is None else begins(held.spec.name, frozen))]
        self._moving = self._but(self.local + self.frozen)
        self.layout = [held.spec for held in self._moving]

    def _but(self, some: Sequence[Held]) -> list[Held]:
        """Return the others."""
        without = {id(held) for held in some}
        return [held for held in self.held if id(held) not in without]

    @property
    def types(self) -> set[str]:
        """Element types of the variables in the vector."""
        return {held.type for held in self._moving}

    def variables(self, pool: BufferPool) -> Variables:
        """Return the variables in the vector, as they are now.

        Args:
            pool: source of memory for vectors on a CPU.
        """
        return self._open([held.it for held in self._moving], self.layout, pool)

    def _open(self, chosen: list[Any], layout: list[TensorSpec], pool: BufferPool) -> Variables:
        raise NotImplementedError

    def read(self, it: Any) -> np.ndarray:
        """Return the values of a variable, float32 in its shape."""
        raise NotImplementedError

    def write(self, it: Any, value: np.ndarray) -> None:
        """Set a variable to values, float32 in its shape; the variable may keep their memory."""
        raise NotImplementedError

    def is_still(self, was: Any, now: Any) -> bool:
        """Return whether two variables that were found under one name are the same."""
        return was is now

    def states(self) -> list[LayerState] | None:
        """Return digests of the state outside the variables, which must be equal on all workers;
        None: unknown."""
        return None

    def entries(self) -> list[Entry]:
        """Return the further entries of a file of these variables, as in PyTorch's state_dict."""
        return []

    def remarks(self) -> Iterator[str]:
        """Yield what a user should know about training these variables together, a line each."""
        if wide := [held.spec.name for held in self._moving if held.type == "float64"]:
            yield (f"{subject(wide)} float64, but versions are float32: adopting a version rounds "
                   "to float32, also at the end")

    def adopted(self) -> None:
        """Note that a version was written to the variables."""

    def finish(self) -> Iterator[str]:
        """Finish a run, whose last version the variables hold; yield lines for the user."""
        yield from ()

    def check(self) -> None:
        """Raise ValueError if a step has created variables that are missing here."""


def divide(parts: Sequence[Part], frozen: Sequence[str] | None, local: Sequence[str]) -> None:
    """See `Part.divide`, for all parts. Raises ValueError for a name that no variable has."""
    known = [held.spec.name for part in parts for held in part.held]
    frozen, local = given.names("frozen", frozen), given.names("local", local) or []
    for argument, names in (("frozen", frozen), ("local", local)):
        for name in names or ():
            if not any(begins(one, [name]) for one in known):
                raise ValueError(f"{argument}=[{given.shown(name)}]: no variable has this name or "
                                 f"beginning of one; there are {', '.join(known[:3])} ...")
    for part in parts:
        part.divide(frozen, local)


def begins(name: str, names: Sequence[str]) -> bool:
    """Return whether one of `names` is this variable's name or its first components, which end
    with "/" or "."."""
    return any(name == one or (name.startswith(one) and (
        name[len(one)] in "/." or one[-1:] in ("/", "."))) for one in names)


def rounds(types: Iterable[str]) -> bool:
    """Return whether variables of such types hold fewer digits than float32."""
    return not {*types} <= {"float32", "float64"}
