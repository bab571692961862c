"""A process that a server starts on its machine, and that ends with the server, whatever ends that:
the pipe between the two does."""

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
    """The server's side. The process is given its settings in one line of JSON, and answers with
    one line."""

    def __init__(self, command: Sequence[str], settings: dict[str, Any]):
        """`command`: arguments of Python. Raises OSError where there can be no process."""
        self._process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)
        self.tell(json.dumps(settings).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, word: bytes) -> None:
        """Send it something; that it has ended is found out otherwise."""
        assert self._process.stdin is not None  # kept open: its end is the process's
        with contextlib.suppress(OSError):
            self._process.stdin.write(word)
            self._process.stdin.flush()

    def answer(self, patience: float) -> str | None:
        """Its line, "" where it has ended; None: none came within so many seconds."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        return self._process.stdout.readline().decode(errors="replace") if ready else None

    def port(self, patience: float) -> int:
        """The port on which it listens, which its line names. Raises OSError, for the end of a
        line, where it does not come up within so many seconds; it is ended then.

        It may answer 0 and a reason instead.
        """
        line = self.answer(patience)
        port, _, problem = (line or "").strip().partition(" ")
        if port.isdigit() and int(port):
            return int(port)
        code = self.kill()
        raise OSError(problem or "did not come up" + (
            f" within {patience:g} s" if line is None else f": it ended with exit code {code}"))

    def ended(self, patience: float = 0.0) -> int | None:
        """Its exit code; None: it runs, after so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience)
        return None

    def kill(self) -> int:
        """End it, whatever it is doing; its exit code."""
        self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code


def settings_from_server() -> Any:
    """The process's side: what it is to do; None: the server did not say.

    It hears no signals from here on: Ctrl-C is sent to it, too, and the server decides.
    """
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    ready, _, _ = select.select([0], [], [], timeouts.CHILD_SETTINGS)
    line = os.read(0, 1 << 16) if ready else b""
    return json.loads(line) if line else None
