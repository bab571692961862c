"""A task of one's own: a file with four functions, in any framework.

    make(seed)                          -> values, n: the first values, and the number of examples
    make_state()                        -> a worker's own state, such as its optimizer
    step(values, state, indices, rate)  -> values, state, loss
    evaluate(values)                    -> metrics by name
    schedule(done)                      -> factor of the rate; may be left out: 1

Values are an array or a tensor, or lists and dicts of them; all their floats are what travels.
Other numbers, such as BatchNorm's counts of batches, stay with each worker. A step is given copies.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from wbsp.tensors.layout import TensorSpec, statistics

FUNCTIONS = "make", "make_state", "step", "evaluate"
ROUNDS, FEWEST = 50, 3  # of measured steps
LEAVES = "an array, a tensor, or a list or dict of these"


class _Leaf(NamedTuple):
    """One array of the values.

    Attributes:
        path: of keys and places, such as `['layer'][0]`.
        shape: of the array.
        floats: it travels.
        back: flat array -> an array or tensor of the task's framework.
    """

    path: str
    shape: tuple[int, ...]
    floats: bool
    back: Callable[[np.ndarray], Any]


class _State(NamedTuple):
    """A worker's state: the task's, and the values that do not travel."""

    own: Any
    still: tuple[Any, ...]


class OwnTask:
    """The task in a file, with flat vectors in place of its values; see `Task`.

    Args:
        path: of the file.
        batch: examples of the step with which the functions are tried at once.
        rate: its learning rate.

    Attributes:
        name: of the file.
        size: number of examples.
        statistics: ranges of a vector that no gradient changes, by the names of its values.
        schedule: part of the run's examples, 0..1 -> factor of the learning rate.

    Raises:
        ValueError: the file or what a function returns is not a task's; one line.
        FileNotFoundError: the file does not exist; one line.
    """

    def __init__(self, path: str | os.PathLike[str], batch: int, rate: float):
        self._path = Path(path)
        self.name = self._path.name
        module = self._load()
        if missing := [one for one in FUNCTIONS if not callable(getattr(module, one, None))]:
            raise self._lacks(missing)
        self._module, self._rate = module, rate
        self.schedule: Callable[[float], float] = self._scheduled
        self._form: Any = None
        self._leaves: list[_Leaf] = []
        self.statistics: Sequence[slice] = ()
        first, self.size = self.make(0)
        if not 1 <= batch <= self.size:
            raise ValueError(f"--batch_size={batch}: make of {self.name} says that there are "
                             f"{self.size} examples; give 1 to {self.size}")
        self._first, _ = self.make(0)
        if not np.array_equal(first, self._first, equal_nan=True):
            raise self._wrong("make", "returned other values for the same seed; draw them from it, "
                                      "as by torch.manual_seed(seed)")
        self._try(batch)
        self._costs: tuple[float, float] | None = None

    # A task, as the workload calls it.

    def make(self, seed: int) -> tuple[np.ndarray, int]:
        """Return W_0, float32 [size], and the number of examples."""
        values, n = self._several("make", self._call("make", seed), "values, n")
        if isinstance(n, bool) or not hasattr(n, "__index__") or n.__index__() < 1:
            raise self._wrong("make", f"returned n={n!r}; n is the number of examples, a whole "
                                      "number of 1 or more")
        leaves = list(_walk(values, ""))
        described = []
        for place, leaf in leaves:
            found = _describe(place, leaf)
            if found is None:
                raise self._wrong("make", f"returned values{place} of type "
                                          f"{type(leaf).__name__}; give {LEAVES}")
            described.append(found)
        if not any(one.floats for one in described):
            raise self._wrong("make", f"returned values without floats; give {LEAVES}")
        self._form, self._leaves = values, described
        self.statistics = statistics([TensorSpec(one.path, one.shape) for one in described
                                      if one.floats])
        self._still = tuple(_copy(leaf) for one, (_, leaf) in zip(described, leaves, strict=True)
                            if not one.floats)
        return self._flat("make", values)[0], n.__index__()

    def make_state(self) -> _State:
        """Return a worker's state before its first step."""
        return _State(self._call("make_state"), self._still)

    def step(self, values: Any, state: _State, indices: np.ndarray,
             rate: float) -> tuple[np.ndarray, _State, float]:
        """Train one step; return the new values, float32 [size], the state and the loss."""
        found, own, loss = self._step(self._tree(values, state.still), state.own, indices, rate)
        flat, still = self._flat("step", found)
        return flat, _State(own, still), loss

    def evaluate(self, values: np.ndarray) -> dict[str, float]:
        """Return the metrics of a version, by name."""
        metrics = self._call("evaluate", self._tree(values, self._still))
        if not isinstance(metrics, Mapping) or not metrics:
            raise self._wrong("evaluate", f"returned {_shown(metrics)}; give metrics by name, such "
                                          "as {'loss': 2.3}")
        return {str(name): self._number("evaluate", f"metric {name!r}", value)
                for name, value in metrics.items()}

    def seconds(self, batches: Sequence[int], most: float = 3.0) -> list[float]:
        """Return the seconds of a step on this machine with each number of examples: the fastest of
        `ROUNDS`, of which the last are left out where they take more than `most` seconds.

        A machine that others use as well is slower now and then, and never faster.
        """
        state, took = self.make_state(), [list[float]() for _ in batches]
        order = np.random.default_rng(0).permutation(self.size)
        began = math.inf  # the first round may compile
        for number in range(1 + ROUNDS):
            for batch, found in zip(batches, took, strict=True):
                tree = self._tree(self._first, state.still)
                indices = np.resize(np.roll(order, -number * batch), batch)
                start = time.perf_counter()
                values, own, _ = self._step(tree, state.own, indices, self._rate)
                _wait(values)
                found.append(time.perf_counter() - start)
                state = state._replace(own=own)
            began = min(began, time.perf_counter())
            if number >= FEWEST and time.perf_counter() - began > most:
                break
        return [min(found[1:]) for found in took]

    def costs(self, batch: int) -> tuple[float, float]:
        """Return the mean seconds of a step with `batch` examples and of an evaluation, here and
        now: those of a machine that others use as well are longer."""
        if self._costs is None:
            state, order = self.make_state(), np.random.default_rng(0).permutation(self.size)
            self.evaluate(self._first)  # may compile, like the first step
            began = time.perf_counter()
            self.evaluate(self._first)
            look = time.perf_counter() - began
            for number in range(1 + ROUNDS):
                if number == 1:
                    began = time.perf_counter()
                self.step(self._first, state, order[:batch], self._rate)
                if number >= FEWEST and time.perf_counter() - began > 1.0:
                    break
            self._costs = (time.perf_counter() - began) / number, look
        return self._costs

    # Its functions, and what they return.

    def _try(self, batch: int) -> None:
        """Call each function once.

        Raises:
            ValueError: one returns what no task may; one line.
        """
        self._finite("make", self._first)
        indices = np.random.default_rng(0).permutation(self.size)[:batch]
        found, _, loss = self.step(self._first, self.make_state(), indices, self._rate)
        if not math.isfinite(loss):
            raise self._wrong("step", f"returned the loss {loss} for the first {batch} examples at "
                                      f"rate {self._rate:g}; check the data, or give a lower --lr")
        self._finite("step", found)
        other, _, _ = self.step(self._first, self.make_state(), indices, 2 * self._rate)
        if np.array_equal(found, other) and not np.array_equal(found, self._first):
            raise self._wrong("step", f"returned the same values at rate {self._rate:g} and at "
                                      f"{2 * self._rate:g}; train with its argument rate, as by "
                                      "optimizer.param_groups[0]['lr'] = rate")
        for name, value in self.evaluate(self._first).items():
            if not math.isfinite(value):
                raise self._wrong("evaluate", f"returned {name}={value} for the values of make(0)")
        self._scheduled(0.0)

    def _step(self, tree: Any, own: Any, indices: np.ndarray,
              rate: float) -> tuple[Any, Any, float]:
        found = self._call("step", tree, own, indices, rate)
        values, own, loss = self._several("step", found, "values, state, loss")
        return values, own, self._number("step", "loss", loss)

    @property
    def has_schedule(self) -> bool:
        """True if the file has a function `schedule`."""
        return hasattr(self._module, "schedule")

    def _scheduled(self, done: float) -> float:
        if not self.has_schedule:
            return 1.0
        return self._number("schedule", "factor", self._call("schedule", done))

    def _flat(self, name: str, values: Any) -> tuple[np.ndarray, tuple[Any, ...]]:
        """Return the floats of the values as a new vector, and copies of all other values."""
        try:
            found = list(_ordered(self._form, values, ""))
        except _DiffersError as error:
            raise self._wrong(name, f"returned other values than make did: {error}") from None
        for one, leaf in zip(self._leaves, found, strict=True):
            shape = tuple(getattr(leaf, "shape", ()))
            if shape != one.shape:
                raise self._wrong(name, f"returned values{one.path} of shape {_shape(shape)}; "
                                        f"make's have shape {_shape(one.shape)}")
        pairs = list(zip(self._leaves, found, strict=True))
        floats = [_host(leaf).ravel() for one, leaf in pairs if one.floats]
        return (np.concatenate(floats),
                tuple(_copy(leaf) for one, leaf in pairs if not one.floats))

    def _tree(self, vector: Any, still: tuple[Any, ...]) -> Any:
        """Return values like make's, with these floats and the other numbers."""
        vector, begin = np.array(vector, np.float32), 0  # a copy, which the task may write to
        rest, leaves = iter(still), []
        for one in self._leaves:
            if one.floats:
                end = begin + math.prod(one.shape)
                leaves.append(one.back(vector[begin:end].reshape(one.shape)))
                begin = end
            else:
                leaves.append(_copy(next(rest)))
        return _rebuilt(self._form, iter(leaves))

    def _several(self, name: str, found: Any, what: str) -> tuple[Any, ...]:
        count = what.count(",") + 1
        if not isinstance(found, tuple | list) or len(found) != count:
            raise self._wrong(name, f"returned {_shown(found)}; return {what}")
        return tuple(found)

    def _number(self, name: str, what: str, value: Any) -> float:
        try:
            return float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError):
            raise self._wrong(name, f"returned {_shown(value)} as {what}, which is no number"
                              ) from None

    def _finite(self, name: str, vector: np.ndarray) -> None:
        if np.isfinite(vector).all():
            return
        begin = 0
        for one in self._leaves:
            end = begin + (math.prod(one.shape) if one.floats else 0)
            if not np.isfinite(vector[begin:end]).all():
                raise self._wrong(name, f"returned values{one.path} with NaN or infinity")
            begin = end

    def _load(self) -> ModuleType:
        if not self._path.is_file():
            raise FileNotFoundError(f"--task={self._path} does not exist; give a Python file with "
                                    f"{', '.join(FUNCTIONS[:-1])} and {FUNCTIONS[-1]}")
        if missing := [one for one in FUNCTIONS if one not in _defined(self._path, FUNCTIONS)]:
            raise self._lacks(missing)
        spec = importlib.util.spec_from_file_location(self._path.stem, self._path)
        if spec is None or spec.loader is None:
            raise ValueError(f"--task={self._path} is no Python file; its name ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(self._path.resolve().parent))  # as `python my_task.py` has it
        given, sys.argv = sys.argv, [str(self._path)]
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise self._raised("the import", error) from error
        finally:
            sys.argv = given
        return module

    def _lacks(self, missing: Sequence[str]) -> ValueError:
        return ValueError(f"{self.name} has no function {' and no '.join(missing)}; a task has "
                          "make(seed), make_state(), step(values, state, indices, rate) and "
                          "evaluate(values)")

    def _call(self, name: str, *given: Any) -> Any:
        try:
            return getattr(self._module, name)(*given)
        except (Exception, SystemExit) as error:
            raise self._raised(name, error) from error

    def _wrong(self, name: str, what: str) -> ValueError:
        return ValueError(f"{self.name}: {name} {what}")

    def _raised(self, name: str, error: BaseException) -> ValueError:
        """Return the line on an error of the task's, with the newest line of its file."""
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__)
                 if Path(one.filename).name == self.name]
        if isinstance(error, SyntaxError):
            lines = [error.lineno]
        where = f", line {lines[-1]}" if lines else ""
        said = (str(error).strip().splitlines() or [""])[0]
        return ValueError(f"{self.name}{where}: {name} raised {type(error).__name__}"
                          + (f": {said}" if said else ""))


def _defined(path: Path, names: Sequence[str]) -> Collection[str]:
    """Return which of these names a file seems to define, without running it: a script that is no
    task yet would train. All, where that cannot be told."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return names  # the import reports what is wrong
    found = set[str]()
    for one in ast.walk(tree):
        match one:
            case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Import(names=some) | ast.ImportFrom(names=some):
                found.update(alias.asname or alias.name for alias in some)
    return names if "*" in found else found


class _DiffersError(Exception):
    """Values have another form than make's."""


def _walk(values: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and leaf of each leaf."""
    if isinstance(values, Mapping):
        for key in values:
            yield from _walk(values[key], f"{path}[{key!r}]")
    elif isinstance(values, list | tuple):
        for place, one in enumerate(values):
            yield from _walk(one, f"{path}[{place}]")
    else:
        yield path, values


def _ordered(form: Any, values: Any, path: str) -> Iterator[Any]:
    """Yield the leaves of `values` in the order of `form`.

    Raises:
        _DiffersError: they have another form.
    """
    if isinstance(form, Mapping):
        if not isinstance(values, Mapping):
            raise _DiffersError(f"values{path} is of type {type(values).__name__}, not a dict")
        for key in [*form, *(key for key in values if key not in form)]:
            if key not in values or key not in form:
                raise _DiffersError(f"values{path}[{key!r}] is "
                                    + ("missing" if key in form else "new"))
            yield from _ordered(form[key], values[key], f"{path}[{key!r}]")
    elif isinstance(form, list | tuple):
        if not isinstance(values, list | tuple):
            raise _DiffersError(f"values{path} is of type {type(values).__name__}, not a list")
        if len(values) != len(form):
            raise _DiffersError(f"values{path} has {len(values)} entries, not {len(form)}")
        for place, (one, other) in enumerate(zip(form, values, strict=True)):
            yield from _ordered(one, other, f"{path}[{place}]")
    elif isinstance(values, Mapping | list | tuple) or not hasattr(values, "shape"):
        raise _DiffersError(f"values{path} is of type {type(values).__name__}, no array or tensor")
    else:
        yield values


def _rebuilt(form: Any, leaves: Iterator[Any]) -> Any:
    """Return values of this form with these leaves."""
    if isinstance(form, Mapping):
        return {key: _rebuilt(form[key], leaves) for key in form}
    if isinstance(form, list | tuple):
        found = [_rebuilt(one, leaves) for one in form]
        if isinstance(form, list):
            return found
        return type(form)(*found) if hasattr(form, "_fields") else tuple(found)
    return next(leaves)


def _describe(path: str, leaf: Any) -> _Leaf | None:
    """Return the description of a leaf; None: it is no array or tensor of real numbers."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return None
    kind, shape = type(leaf).__module__.partition(".")[0], tuple(leaf.shape)
    dtype = leaf.dtype
    name = getattr(dtype, "name", str(dtype)).removeprefix("torch.")
    if not (floats := "float" in name) and not name.startswith(("int", "uint", "bool")):
        return None
    if kind == "torch":
        torch, device = sys.modules["torch"], leaf.device
        return _Leaf(path, shape, floats,
                     lambda part: torch.from_numpy(part).to(device=device, dtype=dtype))
    if kind in ("jax", "jaxlib"):
        numpy = sys.modules["jax"].numpy
        return _Leaf(path, shape, floats, lambda part: numpy.asarray(part, dtype))
    if kind == "tensorflow":
        tensorflow = sys.modules["tensorflow"]
        return _Leaf(path, shape, floats, lambda part: tensorflow.constant(part, dtype))
    plain = np.asarray(leaf).dtype  # also of a variable of Keras's
    return _Leaf(path, shape, floats, lambda part: part.astype(plain, copy=False))


def _host(leaf: Any) -> np.ndarray:
    """Return the floats of a leaf as an array of numpy's, which may share its memory."""
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu().float()
    with np.errstate(over="ignore"):  # of a float64 that diverges
        return np.asarray(leaf, np.float32)


def _copy(leaf: Any) -> Any:
    if hasattr(leaf, "detach"):
        return leaf.detach().clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _wait(values: Any) -> None:
    """Wait for values that a device still computes."""
    for _, leaf in _walk(values, ""):
        if hasattr(leaf, "block_until_ready"):
            leaf.block_until_ready()
        elif getattr(leaf, "is_cuda", False):
            sys.modules["torch"].cuda.synchronize()
            return


def _shown(found: Any) -> str:
    if isinstance(found, tuple | list):
        return f"{len(found)} things"
    if found is None or isinstance(found, bool | int | float | str):
        return repr(found)[:60]
    return f"a {type(found).__name__}"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
