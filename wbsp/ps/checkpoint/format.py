"""Checkpoints: the named variables of one version, and the state that a server resumes from.

One safetensors file, readable elsewhere and free of pickle: float32 tensors in the order of the
flat vector, and the server's state as JSON metadata. This module writes the file itself, because
the vector is the file's data without a copy, and the library's temporary files would survive a
kill.
"""

from __future__ import annotations

import json
import pathlib
import struct
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from wbsp.core.outer_optimizer import SINGLE_NUMBERS
from wbsp.ps.checkpoint.state import RunState
from wbsp.runlog.files import write_whole
from wbsp.tensors.frozen import NOTHING, FrozenValues
from wbsp.tensors.layout import TensorSpec

_OUTER = "outer/"  # begins the names of the outer step's vectors
_FROZEN = "frozen/"  # begins the names of what is frozen


def _place(name: str) -> tuple[bool, int, str]:
    """Return a sort key: variables by their numbers, of any digits, then the outer step's."""
    number = name.removeprefix(_FROZEN).partition("/")[0]
    return not number.isdigit(), int(number) if number.isdigit() else 0, name


class Checkpoint(NamedTuple):
    """One version, and what is frozen beside it. `outer`: the outer step's state, name -> float32
    vector."""

    vector: np.ndarray  # float32 [size]
    layout: list[TensorSpec]
    state: RunState
    outer: dict[str, np.ndarray] = {}
    frozen: FrozenValues = NOTHING


def save(path: pathlib.Path, checkpoint: Checkpoint) -> None:
    """Write atomically: a crash or a full disk (OSError) leaves the previous file in place."""
    header: dict[str, Any] = {"__metadata__": {"wbsp": json.dumps(checkpoint.state.to_json())}}
    start = 0
    # numbered: Keras does not guarantee unique names, and the order must survive
    named = [(f"{index:05d}/{spec.name}", spec.shape, spec.size)
             for index, spec in enumerate(checkpoint.layout)]
    named += [(f"{_OUTER}{name}", (vector.size,), vector.size)
              for name, vector in checkpoint.outer.items()]
    named += [(f"{_FROZEN}{index:05d}/{spec.name}", spec.shape, spec.size)
              for index, spec in enumerate(checkpoint.frozen.layout)]
    for name, shape, size in named:
        end = start + 4 * size
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write_whole(path, struct.pack("<Q", len(text)), text,
                np.ascontiguousarray(checkpoint.vector, "<f4"),
                *(np.ascontiguousarray(vector, "<f4") for vector in (
                    *checkpoint.outer.values(), checkpoint.frozen.vector)))


def load(path: pathlib.Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        FileNotFoundError: it does not exist; one line.
        ValueError: it is damaged; one line.
    """
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}, so no run can be resumed; start without "
                                "--resume")
    try:
        with safe_open(path, "numpy") as file:
            said = json.loads((file.metadata() or {}).get("wbsp", "null"))
            found = {name: file.get_tensor(name) for name in sorted(file.keys(), key=_place)}
        outer, still = ({name.removeprefix(begin): found.pop(name) for name in [*found]
                         if name.startswith(begin)} for begin in (_OUTER, _FROZEN))
        if not (isinstance(said, dict) and isinstance(said.get("version"), int)):
            raise ValueError("its state has no version")
        for name, tensor in (*found.items(), *still.items()):
            if tensor.dtype != np.float32 or not name.partition("/")[0].isdigit():
                raise ValueError(f"it holds {name!r} of type {tensor.dtype}, which checkpoints do "
                                 "not have")
        state = RunState.from_json(said)
        size = sum(tensor.size for tensor in found.values())
        for name, vector in outer.items():
            due = 1 if name in SINGLE_NUMBERS else size
            if vector.dtype != np.float32 or vector.shape != (due,):
                raise ValueError(f"its {name!r} is {vector.dtype}{list(vector.shape)}, and not "
                                 f"float32[{due}]")
    except (SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a wbsp checkpoint: {error}") from None
    layout, vector = _flat(found)
    return Checkpoint(vector, layout, state, outer, FrozenValues(*_flat(still)))


def _flat(found: dict[str, np.ndarray]) -> tuple[list[TensorSpec], np.ndarray]:
    """Return the layout of these variables, and a vector of them."""
    return ([TensorSpec(name.partition("/")[2], one.shape) for name, one in found.items()],
            np.concatenate([np.empty(0, np.float32), *(one.ravel() for one in found.values())]))
