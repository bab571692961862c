"""Reader of files of JSON lines, which may grow: each call gives what is new, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

BLOCK = 1 << 22  # bytes that are decoded at once: more do not fit into the processor's caches


class Replaced(Exception):
    """A file is not the one that was read before, or shorter: all of the run must be read again."""


class Tail:
    """The JSON lines of `path`, each decoded once by `decoder`.

    A line counts when it ends: what is being written, or was torn by a kill, is left for later.
    """

    def __init__(self, path: Path, decoder: msgspec.json.Decoder):
        self.path, self._decoder = path, decoder
        self._offset = 0  # bytes read so far, which end with a line
        self._lines = 0
        self._inode: int | None = None

    def blocks(self) -> Iterator[tuple[bytes, list[Any]]]:
        """New lines as they stand in the file, and decoded; in blocks of about `BLOCK` bytes.

        Raises Replaced; ValueError, in one line, for a line that the decoder does not take.
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
