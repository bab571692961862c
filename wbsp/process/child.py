"""A child process of a server on its machine.

It ends with the server, however that ends, because it reads from a pipe that the server holds open.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from wbsp import timeouts
from wbsp.process.signals import SIGNALS


class ChildProcess:
    """The server's side of a child process.

    The process reads its settings from one line of JSON, and answers with one line.
    """

    def __init__(self, command: Sequence[str], settings: dict[str, Any]):
        """Start the process.

        Args:
            command: arguments of Python.
            settings: for the process, fit for JSON.

        Raises:
            OSError: the system cannot start it.
        """
        self._process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)
        self.tell(json.dumps(settings).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, word: bytes) -> None:
        """Send bytes; a process that has ended is ignored here: see `ended`."""
        assert self._process.stdin is not None  # kept open: its end ends the process
        with contextlib.suppress(OSError):
            self._process.stdin.write(word)
            self._process.stdin.flush()

    def answer(self, patience: float) -> str | None:
        """Return its line; "" if it has ended; None after `patience` seconds without a line."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        return self._process.stdout.readline().decode(errors="replace") if ready else None

    def port(self, patience: float) -> int:
        """Return the port on which it listens, from its line "PORT" or "0 REASON".

        Raises:
            OSError: it did not listen within `patience` seconds, and was ended; the text completes
                a line.
        """
        line = self.answer(patience)
        port, _, problem = (line or "").strip().partition(" ")
        if port.isdigit() and int(port):
            return int(port)
        code = self.kill()
        raise OSError(problem or "did not start" + (
            f" within {patience:g} s" if line is None else f": it ended with exit code {code}"))

    def ended(self, patience: float = 0.0) -> int | None:
        """Return its exit code; None if it still runs after `patience` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience)
        return None

    def kill(self) -> int:
        """Kill it; return its exit code."""
        self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code


def settings_from_server() -> Any:
    """Return a child process's settings from its server; None: the server sent none.

    The process ignores signals from here on: the terminal sends Ctrl-C to it, too, and the server
    decides when it ends.
    """
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    ready, _, _ = select.select([0], [], [], timeouts.CHILD_SETTINGS)
    line = os.read(0, 1 << 16) if ready else b""
    return json.loads(line) if line else None


def answer_server(line: str) -> bool:
    """Answer a child process's server with one line; return whether the server still reads it."""
    try:
        os.write(1, f"{line}\n".encode())
    except BrokenPipeError:
        return False
    return True
