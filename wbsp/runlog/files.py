"""Writers of a run's files: lines that survive a kill, and documents that are never torn; and the
reader of such documents, whoever has written them.

A user may read the files of a long run while it trains, and the run may be killed at any moment. So
lines reach the disk within about a second of the run's own time, and a document is written to a
file next to it and renamed. A full disk costs lines, never the run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from wbsp.limits import one_line
from wbsp.process.disk import disk_of

FLUSH_SECONDS = 1.0  # of the run's time
MIB = 1 << 20  # bytes
BUFFER = 1 << 16  # bytes of lines that are written at once
KEPT = MIB  # bytes of lines while they cannot be written
SEPARATOR = ", "
_DEPTH = 50  # of a document
_NAMED = 1000  # characters of a path in a line
MOST = 1 << 24  # bytes of a document that is read


def _plain(value: Any) -> Any:
    """Convert values that JSON lacks: numpy's scalars and arrays, paths."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}, which a log line cannot hold")


to_json = msgspec.json.Encoder(enc_hook=_plain).encode  # NaN and infinity become null
from_json = msgspec.json.Decoder().decode


def columns(*values: float) -> bytes:
    """Return one line of a published text file; integers are exact, other numbers have 9 digits."""
    words = [format(v, ".9g") if isinstance(v, float) else str(v) for v in values]
    return (SEPARATOR.join(words) + "\n").encode()


class LineFile:
    """A file that grows by whole lines; any thread may write.

    While the file cannot be written, up to `KEPT` bytes of lines are kept; further lines are lost,
    and counted. The file on the disk always ends with a whole line.

    Args:
        path: the file to create.
        append: continue at the end of an existing file; a torn line is cut off first.
        say: called with one line when the file cannot be written, for example on a full disk, and
            when it can be written again.

    Raises:
        FileExistsError: the file exists, so that no run overwrites another.
        OSError: the file cannot be created; only the constructor raises this.
    """

    def __init__(self, path: str | os.PathLike[str], append: bool = False,
                 say: Callable[[str], None] = print):
        self.path, self._say = disk_of(path).path(path), say
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if append and self.path.exists():
            cut_torn_line(self.path)
        try:
            self._file = self.path.open("ab" if append else "xb", buffering=0)
        except FileExistsError:
            raise FileExistsError(f"{path} holds an earlier run; choose another folder, or resume "
                                  "that run") from None
        self._lock = threading.Lock()
        self._size = self._file.tell()  # bytes of the whole lines on the disk
        self._lines: list[bytes] = []  # to be written
        self._waiting = 0  # bytes of `_lines`
        self._tried = float("-inf")  # the run's time of the last attempt to write
        self._failing = False
        self._lost = 0  # lines, since writing fails

    @property
    def size(self) -> int:
        """Bytes of all lines so far."""
        return self._size + self._waiting

    def write(self, t: float, line: bytes) -> None:
        """Append `line` (ends in a newline) at `t` seconds since the run's start."""
        with self._lock:
            if self._failing and self._waiting + len(line) > KEPT:
                self._lost += 1
            else:
                self._lines.append(line)
                self._waiting += len(line)
            if (t - self._tried >= FLUSH_SECONDS
                    or (self._waiting >= BUFFER and not self._failing)):
                self._tried = t
                self._put()

    def flush(self) -> None:
        """Hand all lines to the operating system."""
        with self._lock:
            self._put()

    def cut(self, valid: Callable[[bytes], bool]) -> None:
        """Cut off the first line that is not `valid`, and all lines behind it."""
        with self._lock, self.path.open("rb") as file:
            self._truncate(sum(map(len, itertools.takewhile(valid, file))))

    def close(self) -> None:
        with self._lock:
            if self._file.closed:
                return
            self._put()
            if self._failing:
                self._say(f"{self.path} lacks {self._lost + len(self._lines):,} lines")
            try:
                self._file.close()
            except OSError as error:  # some file systems write only now
                self._say(f"{self.path} may lack its last lines: {error.strerror}")

    def _put(self) -> None:
        """Write either all waiting lines or none of them."""
        data, written = memoryview(b"".join(self._lines)), 0
        try:
            if self._failing:
                self._truncate(self._size)  # the truncation below may have failed
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                self._truncate(self._size)
            if not self._failing:
                self._failing = True
                self._say(f"cannot write {self.path}: {error.strerror}; continuing without it")
            return
        self._size += written
        self._lines.clear()
        self._waiting = 0
        if self._failing:
            self._say(f"{self.path} can be written again; {self._lost:,} lines were lost")
            self._failing, self._lost = False, 0

    def _truncate(self, size: int) -> None:
        self._file.truncate(size)
        self._file.seek(size)
        self._size = size


def write_whole(path: Path, *parts: Any, private: bool = False) -> None:
    """Write `parts` (bytes, arrays) to `path` atomically and durably.

    A reader finds either the whole file or the one before, also after a loss of power; after this
    call, the whole one. The parts are written to a file next to `path`, which a kill may leave
    behind and the next call overwrites. Only this user can read a `private` file.

    Raises:
        OSError: the file cannot be written; no other file is left next to `path`.
    """
    beside = beside_of(path)
    try:
        if private:
            beside.unlink(missing_ok=True)
            beside.touch(0o600)
        with beside.open("wb") as file:
            for part in parts:
                file.write(part)
            disk_of(path).sync(file)
        beside.replace(path)
        disk_of(path).sync_names(path.parent)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def beside_of(path: Path) -> Path:
    """Return the file next to `path` to which `write_whole` writes first."""
    return path.with_name(f".{path.name}.tmp")


def write_document(path: Path, content: dict[str, Any], private: bool = False) -> None:
    """Write `content` as indented JSON, whole and perhaps `private` as `write_whole` does."""
    write_whole(path, msgspec.json.format(to_json(content), indent=2) + b"\n", private=private)


# What decoding, or working with, a file's content raises that no process of wbsp has written.
UNREADABLE = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError,
              MemoryError)


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path for one line; its names may be another user's."""
    return one_line(str(path), _NAMED)


@contextlib.contextmanager
def undamaged(of: str) -> Iterator[None]:
    """Decode a file's content in the body: report what cannot be decoded as damaged.

    Raises:
        ValueError: the content is damaged; one line that begins with `of`.
    """
    try:
        yield
    except UNREADABLE as error:
        plain = str(error) if isinstance(error, ValueError | RecursionError) else repr(error)
        raise ValueError(f"{of} is damaged: {one_line(plain)}") from None


def decode_document(content: bytes, of: str) -> dict[str, Any]:
    """Decode the content of a document of `write_document`. Raises ValueError as `undamaged`."""
    with undamaged(of):
        document = msgspec.json.decode(content, type=dict)
        level: list[Any] = [document]
        for _ in range(_DEPTH):
            inside = [one.values() if isinstance(one, dict) else one for one in level]
            level = [one for some in inside for one in some if isinstance(one, dict | list)]
        if level:
            raise ValueError(f"it is nested more than {_DEPTH} deep")
        return document


def read_document(path: Path) -> dict[str, Any]:
    """Read a document of `write_document`, which another process or user may have changed.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, too large, or no regular file; one line.
    """
    with disk_of(path).regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size > MOST:
            raise ValueError(f"{shown(path)} is damaged: it has {size:,} bytes, and a document at "
                             f"most {MOST:,}")
        file.seek(0)
        return decode_document(file.read(size), shown(path))


def cut_torn_line(path: Path) -> None:
    """Cut off a torn last line, if any."""
    with path.open("rb+") as file:
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
