"""Variables of a Keras model on PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch

from wbsp.replica.base import Variables, Vector
from wbsp.replica.host import OneByOne
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import TensorSpec


def variables(model: keras.Model, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec],
              pool: BufferPool) -> Variables:
    """The `chosen` variables of `model`."""
    if chosen[0].value.device.type == "cpu":
        return OneByOne(chosen, layout, pool, _view, _write)
    return OnDevices(chosen, layout)


def _view(variable: keras.Variable) -> np.ndarray:
    return variable.value.detach().to(torch.float32).numpy()


def _write(variable: keras.Variable, value: np.ndarray) -> None:
    memory = variable.value.detach()
    if memory.dtype == torch.float32:
        np.copyto(memory.numpy(), value)
    else:
        memory.copy_(torch.from_numpy(value.copy()))


class OnDevices(Variables):
    """Variables on a GPU. All that is computed here is put into PyTorch's one queue of it."""

    def __init__(self, chosen: Sequence[keras.Variable], layout: Sequence[TensorSpec]):
        self._chosen = chosen
        self._layout = layout
        self._device = chosen[0].value.device

    @torch.no_grad()
    def gather(self) -> torch.Tensor:
        return torch.cat([v.value.detach().to(torch.float32).reshape(-1) for v in self._chosen])

    @torch.no_grad()
    def scatter(self, vector: torch.Tensor) -> None:
        parts = torch.split(vector, [spec.size for spec in self._layout])
        for variable, part, spec in zip(self._chosen, parts, self._layout, strict=True):
            variable.value.copy_(part.reshape(spec.shape))

    def bring(self, vector: np.ndarray) -> torch.Tensor:
        return torch.tensor(vector, device=self._device)

    def send(self, update: torch.Tensor) -> Vector:
        return _ToHost(update)


class _ToHost:
    """A tensor that numpy may ask for."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._tensor.cpu().numpy()
