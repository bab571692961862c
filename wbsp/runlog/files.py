"""How a run's files are written: lines that survive a kill, and documents that are never torn.

A long run is looked at while it goes on and may be killed at any moment. So lines reach the disk
within about a second of the run's own time, and what cannot be appended line by line is written
beside its place and moved there whole.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

FLUSH_SECONDS = 1.0  # of the run's time
MIB = 1 << 20  # bytes
SEPARATOR = ", "


def _plain(value: Any) -> Any:
    """What JSON has no word for: numpy's scalars and arrays, paths."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}, which a log line cannot hold")


to_json = msgspec.json.Encoder(enc_hook=_plain).encode  # NaN and infinity become null
from_json = msgspec.json.Decoder().decode


def columns(*values: float) -> bytes:
    """One line of a published text file; whole numbers stay whole, the rest has 9 digits."""
    words = [format(v, ".9g") if isinstance(v, float) else str(v) for v in values]
    return (SEPARATOR.join(words) + "\n").encode()


class LineFile:
    """A file that grows by whole lines; any thread may write.

    path:   made anew; FileExistsError if it is there, so that no run overwrites another
    append: go on at the end of a file that may be there. A line torn by a kill is cut off first.
    """

    def __init__(self, path: str | os.PathLike, append: bool = False):
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if append and path.exists():
            _cut_torn_line(path)
        try:
            self._file = open(path, "ab" if append else "xb", buffering=1 << 16)
        except FileExistsError:
            raise FileExistsError(f"{path} holds an earlier run; choose another folder, or resume "
                                  "that run") from None
        self._lock = threading.Lock()
        self._flushed = float("-inf")

    def write(self, t: float, line: bytes) -> None:
        """Append `line` (ends in a newline) at `t` seconds since the run's start."""
        with self._lock:
            self._file.write(line)
            if t - self._flushed >= FLUSH_SECONDS:
                self._file.flush()
                self._flushed = t

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path` such that a reader finds all of it or what was there before."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def write_document(path: Path, content: dict[str, Any]) -> None:
    """`write_whole` for JSON that people read, too."""
    write_whole(path, msgspec.json.format(to_json(content), indent=2) + b"\n")


def _cut_torn_line(path: Path) -> None:
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - (1 << 16))
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)
