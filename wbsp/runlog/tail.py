"""Reader of growing files of JSON lines: each call returns the new lines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from wbsp.process.disk import DISK
from wbsp.runlog.files import shown, undamaged

BLOCK = 1 << 22  # bytes that are decoded at once: more do not fit into the processor's caches
_MOST = 1 << 22  # bytes of a line


class Replaced(Exception):
    """The file was replaced or has become shorter: the run must be read again."""


class Tail:
    """The JSON lines of `path`, each decoded once by `decoder`.

    A line counts when it is complete: one that is being written, or was torn by a kill, is not
    read.
    """

    def __init__(self, path: Path, decoder: msgspec.json.Decoder[Any]):
        self.path, self._decoder = path, decoder
        self._offset = 0  # bytes read so far, which end with a line
        self._lines = 0
        self._inode: int | None = None

    def blocks(self) -> Iterator[tuple[bytes, list[Any]]]:
        """Yield the new lines in blocks of about `BLOCK` bytes: their bytes, and decoded.

        Raises:
            OSError: the file cannot be read.
            Replaced: the file was replaced or is shorter.
            ValueError: the decoder rejects a line, or the file is no regular one; one line.
        """
        try:
            file = DISK.regular(self.path)
        except FileNotFoundError:
            if self._inode is None:
                return  # not there yet
            raise Replaced(f"{shown(self.path)} has gone") from None
        with file:
            status = os.fstat(file.fileno())
            if self._inode not in (None, status.st_ino) or status.st_size < self._offset:
                raise Replaced(f"{shown(self.path)} is another file than before")
            self._inode = status.st_ino
            file.seek(self._offset)
            torn = b""
            while data := file.read(BLOCK):
                whole, newline, torn = (torn + data).rpartition(b"\n")
                if len(torn) > _MOST:
                    raise ValueError(f"{shown(self.path)} is damaged: it has a line of more than "
                                     f"{_MOST:,} bytes")
                if newline:
                    lines = whole + newline
                    yield lines, self._decode(lines)
                    self._offset += len(lines)
                    self._lines += lines.count(b"\n")

    def _decode(self, lines: bytes) -> list[Any]:
        with contextlib.suppress(ValueError, RecursionError, MemoryError):
            return self._decoder.decode_lines(lines)
        for number, line in enumerate(lines.split(b"\n"), self._lines + 1):
            if line:
                with undamaged(f"{shown(self.path)}, line {number}"):
                    self._decoder.decode(line)
        raise ValueError(f"{shown(self.path)} is damaged")
