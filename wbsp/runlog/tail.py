"""Reader of growing files of JSON lines: each call returns the new lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

BLOCK = 1 << 22  # bytes that are decoded at once: more do not fit into the processor's caches


class Replaced(Exception):
    """The file was replaced or has become shorter: the run must be read again."""


class Tail:
    """The JSON lines of `path`, each decoded once by `decoder`.

    A line counts when it is complete: one that is being written, or was torn by a kill, is not
    read.
    """

    def __init__(self, path: Path, decoder: msgspec.json.Decoder):
        self.path, self._decoder = path, decoder
        self._offset = 0  # bytes read so far, which end with a line
        self._lines = 0
        self._inode: int | None = None

    def blocks(self) -> Iterator[tuple[bytes, list[Any]]]:
        """Yield the new lines in blocks of about `BLOCK` bytes: their bytes, and decoded.

        Raises:
            Replaced: the file was replaced or is shorter.
            ValueError: the decoder rejects a line; one line.
        """
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            if self._inode is None:
                return  # not there yet
            raise Replaced(f"{self.path} has gone") from None
        with file:
            status = self.path.stat()
            if self._inode not in (None, status.st_ino) or status.st_size < self._offset:
                raise Replaced(f"{self.path} is another file than before")
            self._inode = status.st_ino
            file.seek(self._offset)
            torn = b""
            while data := file.read(BLOCK):
                whole, newline, torn = (torn + data).rpartition(b"\n")
                if newline:
                    lines = whole + newline
                    yield lines, self._decode(lines)
                    self._offset += len(lines)
                    self._lines += lines.count(b"\n")

    def _decode(self, lines: bytes) -> list[Any]:
        try:
            return self._decoder.decode_lines(lines)
        except msgspec.MsgspecError:
            for number, line in enumerate(lines.split(b"\n"), self._lines + 1):
                try:
                    self._decoder.decode(line or b"{}")
                except msgspec.MsgspecError as error:
                    raise ValueError(f"{self.path}, line {number} is damaged: {error}") from None
            raise
