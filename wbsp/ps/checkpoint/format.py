"""Checkpoints: the named variables of one version, and the state that a server resumes from.

One safetensors file, readable elsewhere and free of pickle: float32 tensors in the order of the
flat vector, and the server's state as JSON metadata. This module writes the file itself, because
the vector is the file's data without a copy, and the library's temporary files would survive a
kill. It reads the file itself, too, because the library trusts a header's sizes.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import struct
from typing import IO, Annotated, Any, NamedTuple

import msgspec
import numpy as np

from wbsp.core.outer_optimizer import SINGLE_NUMBERS
from wbsp.limits import DIMENSIONS, MAX_FLOATS, NAME, Count, Total, one_line
from wbsp.process.disk import disk_of
from wbsp.ps.checkpoint.state import RunState, Snapshot
from wbsp.runlog.files import shown, write_whole
from wbsp.tensors.frozen import NOTHING, FrozenValues
from wbsp.tensors.layout import TensorSpec, check_layout, total_size

_OUTER = "outer/"  # begins the names of the outer step's vectors
_FROZEN = "frozen/"  # begins the names of what is frozen
_FLOAT = "F32"  # type of all tensors
_MOST_HEADER = 100_000_000  # bytes; safetensors reads no more, either
_MOST_NAME = NAME + 40  # characters: with what begins it
_MOST_SAID = 2000  # characters of an error
# What reading a damaged file raises.
_DAMAGED = ValueError, TypeError, ArithmeticError, RecursionError, MemoryError


class _Tensor(msgspec.Struct):
    """A tensor of a header."""

    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[list[Total], msgspec.Meta(max_length=DIMENSIONS)]
    data_offsets: tuple[Count, Count]


_PARTS, _TENSOR = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(_Tensor)


def _place(name: str) -> tuple[bool, int, str]:
    """Return a sort key: variables by their numbers, of any digits, then the outer step's."""
    number = name.removeprefix(_FROZEN).partition("/")[0]
    numbered = number.isascii() and number.isdigit()
    return not numbered, int(number) if numbered else 0, name


class Checkpoint(NamedTuple):
    """One version, and the frozen values. `outer`: the outer step's state, name -> float32
    vector."""

    vector: np.ndarray  # float32 [size]
    layout: list[TensorSpec]
    state: RunState
    outer: dict[str, np.ndarray] = {}
    frozen: FrozenValues = NOTHING


def of_snapshot(snapshot: Snapshot) -> Checkpoint:
    """Return a snapshot as the content of a file, once its tensors are here; blocks."""
    (_, vector, _), outer = snapshot.whole.result()
    assert vector is not None, "a real server's store holds tensors"
    return Checkpoint(vector, snapshot.layout, snapshot.state, outer, snapshot.frozen)


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
    """Read a checkpoint, which another process or user may have written.

    The header is compared with the file's size before any of its tensors is read.

    Raises:
        FileNotFoundError: it does not exist; one line.
        OSError: it cannot be read.
        ValueError: it is damaged, or no regular file; one line.
    """
    try:
        with disk_of(path).regular(path) as file:
            return _read(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"no checkpoint at {shown(path)}, so no run can be resumed; start "
                                "without --resume") from None
    except _DAMAGED as error:
        raise _damaged(shown(path), error) from None


def read(file: IO[bytes], name: str) -> Checkpoint:
    """Read an open checkpoint. Raises ValueError, in one line that begins with `name`, if it is
    damaged."""
    try:
        return _read(file)
    except _DAMAGED as error:
        raise _damaged(name, error) from None


def _damaged(name: str, error: Exception) -> ValueError:
    reason = one_line(str(error), _MOST_SAID) or type(error).__name__
    return ValueError(f"{name} is not a wbsp checkpoint: {reason}")


class _Header(NamedTuple):
    """The parts of a file in the order of the vector, and its state as text."""

    found: dict[str, _Tensor]  # of the vector
    outer: dict[str, _Tensor]
    still: dict[str, _Tensor]
    state: str


def _read(file: IO[bytes]) -> Checkpoint:
    """Read an open file. Raises ValueError and the like for a damaged one."""
    header, start = _header(file)
    said = json.loads(header.state)
    if not (isinstance(said, dict) and isinstance(said.get("version"), int)):
        raise ValueError("its state has no version")
    for name, tensor in (*header.found.items(), *header.still.items()):
        if tensor.dtype != _FLOAT or _place(name)[0]:
            raise ValueError(f"it holds {name!r} of type {tensor.dtype}, which checkpoints do not "
                             "have")
    layout, still = ([TensorSpec(name.partition("/")[2], tuple(tensor.shape))
                      for name, tensor in of.items()] for of in (header.found, header.still))
    check_layout(layout, still)
    size = total_size(layout)
    for name, tensor in header.outer.items():
        due = 1 if name in SINGLE_NUMBERS else size
        if tensor.dtype != _FLOAT or tensor.shape != [due]:
            raise ValueError(f"its {name!r} is {tensor.dtype}{tensor.shape}, and not {_FLOAT}"
                             f"[{due}]")
    state = RunState.from_json(said)
    vector, frozen = (_floats(file, start, [*of.values()])
                      for of in (header.found, header.still))
    outer = {name: _floats(file, start, [one]) for name, one in header.outer.items()}
    return Checkpoint(vector, layout, state, outer, FrozenValues(still, frozen))


def _header(file: IO[bytes]) -> tuple[_Header, int]:
    """Return the header of a file, and the offset of its tensors.

    Raises:
        ValueError: it does not fit the file.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, _MOST_HEADER):
        raise ValueError(f"it has {size:,} bytes, and a header of {length:,}")
    first = file.read(1)
    raw = _PARTS.decode(first + file.read(length - 1) if first == b"{" else first)
    about = msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=dict[str, str])
    tensors = {name: _TENSOR.decode(one) for name, one in raw.items()}
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if len(name) > _MOST_NAME:
            raise ValueError(f"the name {name[:40]!r}... has {len(name):,} characters")
        begin, then = tensor.data_offsets
        if begin != end or then < begin:
            raise ValueError(f"{name!r} is at bytes {begin:,} to {then:,}, and {end:,} was due")
        if math.prod(max(n, 1) for n in tensor.shape) > MAX_FLOATS:
            raise ValueError(f"{name!r} has the shape {tensor.shape}")
        if tensor.dtype == _FLOAT and then - begin != 4 * math.prod(tensor.shape):
            raise ValueError(f"{name!r} of {tensor.shape} has {then - begin:,} bytes")
        end = then
    if end != size - 8 - length:
        raise ValueError(f"its tensors have {end:,} bytes, and the file {size - 8 - length:,}")
    outer, still = ({name.removeprefix(begins): tensors.pop(name) for name in sorted(
        [name for name in tensors if name.startswith(begins)], key=_place)}
        for begins in (_OUTER, _FROZEN))
    found = {name: tensors[name] for name in sorted(tensors, key=_place)}
    return _Header(found, outer, still, about.get("wbsp", "null")), 8 + length


def _floats(file: IO[bytes], start: int, tensors: list[_Tensor]) -> np.ndarray:
    """Read tensors, one after the other, into one vector."""
    vector = np.empty(sum(math.prod(one.shape) for one in tensors), "<f4")
    into, at = vector.view(np.uint8).data, 0
    for one in tensors:
        begin, end = one.data_offsets
        file.seek(start + begin)
        if _fill(file, into[at:at + end - begin]) < end - begin:
            raise ValueError("it has become shorter")
        at += end - begin
    return vector.astype(np.float32, copy=False)


def _fill(file: IO[bytes], part: memoryview) -> int:
    """Read as many bytes as `part` has; return how many there were."""
    done = 0
    while done < len(part) and (count := file.readinto(part[done:])):  # type: ignore[attr-defined]
        done += count
    return done
