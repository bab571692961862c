"""Standard output and standard error, shared by all processes of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import BinaryIO


class Screen:
    """Prints each line with the name of the process that it is from.

    A stream that cannot be written to any more is given up; the run continues.
    """

    def __init__(self, names: Iterable[str]):
        """`names`: of all processes."""
        self._width = max(map(len, names))
        self._streams: dict[bool, BinaryIO | None] = {
            errors: stream and stream.buffer  # None: this process was started without it
            for errors, stream in ((False, sys.stdout), (True, sys.stderr))}

    def show(self, name: str, line: bytes, errors: bool) -> None:
        """Print a line of a process, on standard error if it is one of its errors."""
        self._write(errors, f"{name:<{self._width}} | ".encode() + line + b"\n")

    def say(self, text: str) -> None:
        """Print a line of the command's own."""
        self._write(True, f"wbsp run: {text}\n".encode(errors="replace"))

    def _write(self, errors: bool, data: bytes) -> None:
        stream = self._streams[errors]
        if stream is not None:
            try:
                stream.write(data)
                stream.flush()
            except (OSError, ValueError):
                self._streams[errors] = None
