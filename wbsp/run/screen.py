"""Standard output and standard error, shared by all processes of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import BinaryIO


class Screen:
    """Prints each line with the name of the process that it is from.

    A stream that cannot be written to any more is given up; the run continues.
    """

    def __init__(self, names: Iterable[str], place: str = ""):
        """Prepare.

        Args:
            names: of all processes, here and on other machines.
            place: this machine's name, where the lines of several machines meet.
        """
        self._width = max(map(len, names))
        self._title = f"wbsp run on {place}" if place else "wbsp run"
        self._streams: dict[bool, BinaryIO | None] = {
            False: sys.stdout.buffer, True: sys.stderr.buffer}

    def show(self, name: str, line: bytes, errors: bool) -> None:
        """Print a line of a process, on standard error if it is one of its errors."""
        self._write(errors, f"{name:<{self._width}} | ".encode() + line)

    def say(self, text: str) -> None:
        """Print a line of the command's own."""
        self._write(True, f"{self._title}: {text}".encode(errors="replace"))

    def pass_on(self, line: bytes, errors: bool) -> None:
        """Print a line of another machine, which has its name already."""
        self._write(errors, line)

    def _write(self, errors: bool, line: bytes) -> None:
        stream = self._streams[errors]
        if stream is not None:
            try:
                stream.write(line + b"\n")
                stream.flush()
            except (OSError, ValueError):
                self._streams[errors] = None
