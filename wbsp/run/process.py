"""A process of a run: in a group of its own, ended with this process, its output read as lines."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from wbsp import timeouts
from wbsp.run.lines import Lines

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class Keeper:
    """Ends all processes of the run if this one ends without having done so, as by kill -9.

    On Linux the kernel ends a process whose parent has died, but not the processes that it has
    started itself. `keeper.py` ends both, and on macOS, too.
    """

    def __init__(self) -> None:
        self._me = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0)
        assert self._process.stdin is not None
        self._pipe: int = self._process.stdin.fileno()

    def adopt(self) -> None:
        """Announce this process; called in a child between its fork and its program."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"+%d\n" % os.getpid())
        if _prctl is not None:
            _prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._me:
            os._exit(1)

    def forget(self, pid: int) -> None:
        """Note that a process and its group have ended."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"-%d\n" % pid)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Process:
    """A process that was started, and its children.

    Attributes:
        pid: its id, and its group's.
        code: its exit code, negative: of a signal; None: it runs.
        lived: seconds from its start to its end, or until now.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], keeper: Keeper,
                 show: Callable[[bytes, bool], None], given: bytes | None = None):
        """Start it.

        Args:
            command: its words.
            environment: its variables.
            keeper: ends it if this process is killed.
            show: called with each line of its output, and whether it is one of standard error.
            given: what it reads on standard input, which then stays open; None: nothing.

        Raises:
            OSError: the system cannot start it.
        """
        self._keeper, self._show = keeper, show
        self._since = time.monotonic()
        self._ended: float | None = None
        self._killed = False
        self.code: int | None = None
        self._popen = subprocess.Popen(
            command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE, bufsize=0,
            start_new_session=True, preexec_fn=keeper.adopt)
        self.pid = self._popen.pid
        assert self._popen.stdout is not None and self._popen.stderr is not None
        self.streams: dict[IO[bytes], Lines] = {}  # that are open
        for stream in (self._popen.stdout, self._popen.stderr):
            os.set_blocking(stream.fileno(), False)
            self.streams[stream] = Lines()
        if self._popen.stdin is not None:
            os.set_blocking(self._popen.stdin.fileno(), False)
            self.tell(given or b"")

    @property
    def lived(self) -> float:
        return (time.monotonic() if self._ended is None else self._ended) - self._since

    def read(self, stream: IO[bytes]) -> bool:
        """Show what can be read of a stream now; return whether there may be more."""
        try:
            data = os.read(stream.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        lines = self.streams[stream]
        errors = stream is self._popen.stderr
        for line in lines.feed(data, time.monotonic()) if data else lines.rest():
            self._show(line, errors)
        if not data:
            del self.streams[stream]
            stream.close()
        return bool(data)

    def drain(self) -> None:
        """Show all that can be read now."""
        for stream in list(self.streams):
            while self.read(stream):
                pass

    def tell(self, data: bytes) -> None:
        """Send it a few bytes; one that has ended, or does not read, is ignored."""
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._popen.stdin.write(data)

    def poll(self) -> bool:
        """Return whether it has ended; then end what it has left running."""
        if self._ended is None and self._popen.poll() is not None:
            self.code = self._popen.returncode
            self._ended = time.monotonic()
            self._signal_group(signal.SIGTERM)
        return self._ended is not None

    def gone(self) -> bool:
        """Return whether it and its children have ended; kill the children if they take too long.
        """
        if not self.poll():
            return False
        assert self._ended is not None
        waited = time.monotonic() - self._ended
        if not self._signal_group(0) or waited > timeouts.CHILDREN_LEFT + 1:
            self.drain()
            for stream, lines in self.streams.items():  # that a process outside the group holds
                for line in lines.rest():
                    self._show(line, stream is self._popen.stderr)
                stream.close()
            self.streams.clear()
            if self._popen.stdin is not None:
                self._popen.stdin.close()
            self._keeper.forget(self.pid)
            return True
        if waited > timeouts.CHILDREN_LEFT and not self._killed:
            self._killed = True
            self._signal_group(signal.SIGKILL)
        return False

    def signal(self, signum: int) -> None:
        """Send it a signal; its children decide with it."""
        if self.code is None:
            self._popen.send_signal(signum)

    def kill(self) -> None:
        """Kill it and its children."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, signum: int) -> bool:
        """Send a signal to it and its children; return whether one of them runs."""
        try:
            os.killpg(self.pid, signum)
        except OSError:
            return False
        return True
