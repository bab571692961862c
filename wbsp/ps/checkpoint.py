"""Checkpoints: the named variables of one version and what a server needs to go on from it.

One safetensors file, readable elsewhere and free of pickle: float32 tensors in the order of the
flat vector, and the server's state as JSON metadata. It is written under a temporary name, synced,
and renamed, so that a file of that name is always whole.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from wbsp.layout import TensorSpec


class Checkpoint(NamedTuple):
    """`state` is JSON: version, elapsed seconds, totals, and the ledger's next seq per worker."""

    vector: np.ndarray  # float32 [size]
    layout: list[TensorSpec]
    state: dict[str, Any]


def save(path: pathlib.Path, checkpoint: Checkpoint) -> None:
    """Write atomically; a crash leaves the previous file in place."""
    tensors: dict[str, np.ndarray] = {}
    offset = 0
    for index, spec in enumerate(checkpoint.layout):
        # numbered: Keras does not promise unique names, and the order must survive
        tensors[f"{index:05d}/{spec.name}"] = (
            checkpoint.vector[offset:offset + spec.size].reshape(spec.shape))
        offset += spec.size
    temporary = path.with_name(f".{path.name}.tmp")
    save_file(tensors, temporary, {"wbsp": json.dumps(checkpoint.state)})
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path: pathlib.Path) -> Checkpoint:
    """Read a checkpoint. Raises FileNotFoundError or ValueError in one clear line."""
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}: there is nothing to resume; start "
                                "without --resume")
    try:
        with safe_open(path, "numpy") as file:
            state = json.loads((file.metadata() or {}).get("wbsp", "null"))
            names = sorted(file.keys())
            tensors = [file.get_tensor(name) for name in names]
        if not (isinstance(state, dict) and isinstance(state.get("version"), int)):
            raise ValueError("its state names no version")
        for name, tensor in zip(names, tensors, strict=True):
            if tensor.dtype != np.float32 or not name.partition("/")[0].isdigit():
                raise ValueError(f"it holds {name!r} of type {tensor.dtype}, and no such thing is "
                                 "in one")
    except (SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a wbsp checkpoint: {error}") from None
    layout = [TensorSpec(name.partition("/")[2], tensor.shape)
              for name, tensor in zip(names, tensors, strict=True)]
    vector = np.concatenate([t.ravel() for t in tensors]) if tensors else np.empty(0, np.float32)
    return Checkpoint(vector, layout, state)
