"""Variables in PyTorch's tensors: those of a Keras model, of a module, or the user's own.

Keras is not needed here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wbsp.replica.base import Held, Part, Variables, Vector
from wbsp.replica.host import OneByOne
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import MOST_ENTRY, Entry, TensorSpec

if TYPE_CHECKING:
    import keras

Get = Callable[[], torch.Tensor]  # of a tensor that other code may replace
_WRAPPERS = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module",
             "DataParallel": "module"}  # class -> its attribute with the wrapped module


def variables(model: keras.Model, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
              pool: BufferPool) -> Variables:
    """Return the `chosen` variables of `model`."""
    return _of([partial(getattr, variable, "value") for variable in chosen], layout, pool)


def _of(tensors: Sequence[Get], layout: Sequence[TensorSpec], pool: BufferPool) -> Variables:
    if all(get().device.type == "cpu" for get in tensors):
        return OneByOne(tensors, layout, pool, _view, _write)
    return OnDevices(tensors, layout)


def held(module: torch.nn.Module) -> Iterator[tuple[str, Get]]:
    """Yield (name, tensor) of a module's `state_dict`: parameters, also frozen ones, and buffers.

    If torch.compile or DistributedDataParallel has wrapped the module, it is unwrapped first.

    Raises ValueError for a module that is divided among processes.
    """
    while wrapped := _WRAPPERS.get(type(module).__name__):
        module = getattr(module, wrapped)
    for one in module.modules():
        if type(one).__name__ == "FullyShardedDataParallel":
            raise ValueError(_divided(f"{type(one).__name__}(...)"))
    owners = dict(module.named_modules(remove_duplicate=False))
    for path, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            name = path.replace("_orig_mod.", "")  # torch.compile has wrapped a part of it
            where, _, attribute = path.rpartition(".")
            owner = owners.get(where)
            # not found: its class uses another name in the state_dict
            found = owner is not None and getattr(owner, attribute, None) is tensor
            yield name, partial(getattr, owner, attribute) if found else _Shown(tensor)


def same(tensor: torch.Tensor) -> Get:
    """Return a getter of a tensor that is never replaced."""
    return lambda: tensor


class _Shown:
    """A getter of a tensor that a module's class shows in the state_dict, perhaps a new one each
    time."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor

    def __call__(self) -> torch.Tensor:
        return self._tensor


class Tensors(Part):
    """Tensors by name, each once; those that are not of floats stay each worker's own.

    Parameters without a gradient are frozen. Buffers change by themselves.
    """

    def __init__(self, named: Sequence[tuple[str, Get]]):
        """Raises ValueError for a tensor that cannot be trained together."""
        chosen: dict[int, tuple[str, Get]] = {}
        self._entries: list[Callable[[], Entry]] = []
        for name, get in named:
            if not _is_trained(name, get()):
                self._entries.append(partial(_entry, name, get))
                continue
            first, _ = chosen.setdefault(id(get()), (name, get))
            if first != name:
                self._entries.append(partial(Entry, name, first))
        super().__init__([
            Held(TensorSpec(name, tuple(get().shape)), str(get().dtype).removeprefix("torch."), get,
                 isinstance(get(), torch.nn.Parameter) and not get().requires_grad,
                 str(get().device))
            for name, get in chosen.values()])

    def entries(self) -> list[Entry]:
        return [entry() for entry in self._entries]

    def _open(self, chosen: list[Any], layout: list[TensorSpec], pool: BufferPool) -> Variables:
        return _of(chosen, layout, pool)

    def is_still(self, was: Get, now: Get) -> bool:
        return isinstance(was, _Shown) or was() is now()

    def read(self, it: Get) -> np.ndarray:
        return it().detach().to("cpu", torch.float32).numpy()

    def write(self, it: Get, value: np.ndarray) -> None:
        it().detach().copy_(torch.from_numpy(value))


def _entry(name: str, get: Get) -> Entry:
    """Return the entry of a tensor of other numbers than floats; of a small one with its values."""
    tensor = get().detach()
    data = b""
    if tensor.numel() * tensor.element_size() <= MOST_ENTRY:
        with contextlib.suppress(TypeError, RuntimeError):  # numpy has no such numbers
            values = tensor.cpu().contiguous().numpy()
            data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    return Entry(name, "", str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)


def _is_trained(name: str, tensor: torch.Tensor) -> bool:
    """Return whether the tensor takes part. Raises ValueError if it should but cannot."""
    kind = type(tensor).__name__
    if kind == "DTensor":
        raise ValueError(_divided(f"{name}, a DTensor,"))
    if kind.startswith("Uninitialized"):
        raise ValueError(f"{name} is of a lazy module and has no values yet: first call the model "
                         "on a batch of your data")
    if tensor.device.type == "meta":
        raise ValueError(f"{name} is on PyTorch's meta device and has no values: first give the "
                         "model some (to_empty, or load_state_dict(..., assign=True))")
    if tensor.is_complex() and tensor.requires_grad:
        raise ValueError(f"{name} is {tensor.dtype}, but wbsp trains real numbers: keep its real "
                         "and imaginary parts in two parameters")
    return tensor.is_floating_point()


def _divided(what: str) -> str:
    return (f"{what} is divided among processes, but each worker of wbsp holds the whole model: "
            "give the worker the unsharded module (DistributedDataParallel has one)")


def _view(get: Get) -> np.ndarray:
    return get().detach().to(torch.float32).numpy()


def _write(get: Get, value: np.ndarray) -> None:
    memory = get().detach()
    if memory.dtype == torch.float32:
        np.copyto(memory.numpy(), value)
    else:
        memory.copy_(torch.from_numpy(value.copy()))


class OnDevices(Variables):
    """Variables on a GPU. Operations are enqueued on PyTorch's one stream of it."""

    def __init__(self, tensors: Sequence[Get], layout: Sequence[TensorSpec]):
        self._tensors = tensors
        self._layout = layout
        self._device = tensors[0]().device
        # The driver copies page-locked memory by itself. Copying other memory occupies the
        # processor, and keeps all threads from the device and from Python meanwhile.
        self._locks = self._device.type == "cuda"

    @torch.no_grad()
    def gather(self) -> torch.Tensor:
        return torch.cat([get().detach().to(self._device, torch.float32).reshape(-1)
                          for get in self._tensors])

    @torch.no_grad()
    def scatter(self, vector: torch.Tensor) -> None:
        parts = torch.split(vector, [spec.size for spec in self._layout])
        for get, part, spec in zip(self._tensors, parts, self._layout, strict=True):
            get().copy_(part.reshape(spec.shape))

    def bring(self, vector: np.ndarray) -> torch.Tensor:
        staged = torch.empty(vector.size, dtype=torch.float32, pin_memory=self._locks)
        np.copyto(staged.numpy(), vector)
        return staged.to(self._device, non_blocking=True)

    def send(self, update: torch.Tensor) -> Vector:
        return _ToHost(update, self._locks)


class _ToHost:
    """A GPU tensor that numpy can read."""

    def __init__(self, tensor: torch.Tensor, locks: bool):
        self._tensor = tensor
        self._locks = locks

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        staged = torch.empty(self._tensor.shape, dtype=torch.float32, pin_memory=self._locks)
        return staged.copy_(self._tensor).numpy()
