"""Fork processes that would otherwise start Python and import the same modules each time.

`python forked.py WHAT`, with a listening socket as standard input, imports these modules once for
all processes of a pytest run, and ends when the last of them has closed its connection. It forks a
process for each order. The process takes arguments, folder, environment and outputs from the order,
and then behaves as if Python had been started with this command line, to the end of the
interpreter. The one difference: what an import prints, or reads from the environment, is the
parent's.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

WBSP = "wbsp"  # imports of servers, shards and integer workers
KERAS = "keras"  # by workers with Keras on TensorFlow
AVAILABLE = sys.platform == "linux"  # a fork behind the back of macOS's libraries is not safe
_MOST = 1 << 20  # bytes of an order
_NUMBER = 16  # bytes of a number in the message on a process: its id, then its exit code
_HELLO = b"1"  # the parent's message to a process that has connected
_PATIENCE = 240.0  # seconds for the imports
_NETWORK = 0x40000000  # CLONE_NEWNET


class Forked:
    """A forked process, with the part of `subprocess.Popen` that the tests use."""

    _lines: dict[str, socket.socket] = {}  # to the parents, by their names
    _parents: list[subprocess.Popen] = []  # that this process has started
    _lock = threading.Lock()

    def __init__(self, what: str, arguments: Sequence[str], output: Path, cwd: Path,
                 env: dict[str, str], space: str | None = None, errors: Path | None = None):
        """Fork a process.

        Args:
            what: WBSP or KERAS.
            arguments: of Python: ["-m", module, ...] or [script, ...].
            space: the network namespace that the process lives in.
            errors: file for standard error, if it is not `output`.
        """
        name = _name(what, env)
        with Forked._lock:
            if name not in Forked._lines:
                Forked._lines[name] = _line(name, what, env)
        self._said, theirs = os.pipe()
        order = {"arguments": arguments, "output": str(output), "errors": str(errors or output),
                 "cwd": str(cwd), "env": env, "space": space}
        socket.send_fds(Forked._lines[name], [json.dumps(order).encode()], [theirs])
        os.close(theirs)
        self.returncode: int | None = None
        assert select.select([self._said], [], [], _PATIENCE)[0], "nothing is forked"
        self.pid = int(os.read(self._said, _NUMBER))

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._said], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(os.read(self._said, _NUMBER))
            os.close(self._said)
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended at this moment
                os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _name(what: str, env: dict[str, str]) -> str:
    """Return the parent's address, which is the same for all processes of a pytest run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    kind = f"{what} on {env.get('KERAS_BACKEND', 'tensorflow')}" if what == KERAS else what
    return f"\0wbsp {run} {kind}"


def _line(name: str, what: str, env: dict[str, str]) -> socket.socket:
    """Connect to the process that forks; start it if it does not run."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as place:
            with contextlib.suppress(OSError):  # another process has this place, or had it just now
                place.bind(name)
                place.listen()
                Forked._parents.append(subprocess.Popen([sys.executable, __file__, what],
                                                        stdin=place, env=env))
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.settimeout(_PATIENCE)
        with contextlib.suppress(OSError):  # it does not listen yet, or ends
            line.connect(name)
            if line.recv(len(_HELLO)):
                line.settimeout(None)
                atexit.register(line.close)
                return line
        line.close()
        time.sleep(0.01)
    raise AssertionError(f"no process has imported {what}")


# The parent's side.


def _orders() -> dict:
    """Fork a process for each order and report its end; in the forked process, return its order."""
    place = socket.socket(fileno=os.dup(0))
    lines: list[socket.socket] = []
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests decide
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    reports: dict[int, int] = {}  # process -> where its end is reported
    while True:
        ready = select.select([place, woken, *lines], [], [], None if lines else _PATIENCE)[0]
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)
        _tell_ends(reports)
        if not ready and not lines:
            sys.exit()  # the process that has started this one was killed
        if place in ready:
            lines.append(place.accept()[0])
            with contextlib.suppress(OSError):  # it has closed the connection: read below
                lines[-1].send(_HELLO)
        for line in [line for line in lines if line in ready]:
            text, fds = _read(line)
            if not text:
                lines.remove(line)
                line.close()
                if not lines:
                    sys.exit()
                continue
            (report,) = fds
            if child := os.fork():
                reports[child] = report
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _say(report, os.getpid())  # from here on it receives signals
            for fd in (woken, wakes, report, *reports.values()):
                os.close(fd)
            for one in (place, *lines):
                one.close()
            return json.loads(text)


def _read(line: socket.socket) -> tuple[bytes, list[int]]:
    """Receive an order and its file descriptor; nothing if the connection is closed."""
    try:
        return socket.recv_fds(line, _MOST, 1)[:2]
    except OSError:
        return b"", []


def _tell_ends(reports: dict[int, int]) -> None:
    while reports:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            return
        report = reports.pop(ended)
        _say(report, os.waitstatus_to_exitcode(status))
        os.close(report)


def _say(report: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # no test reads it
        os.write(report, f"{number:{_NUMBER}}".encode())


def _become(order: dict) -> None:
    """Run a command line as Python does."""
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    if order["space"] is not None:
        _enter(order["space"])
    for place, name in enumerate((os.devnull, order["output"], order["errors"])):
        fd = os.open(name, os.O_WRONLY | os.O_APPEND if place else os.O_RDONLY)
        os.dup2(fd, place)
        os.close(fd)
    first, *rest = order["arguments"]
    if first == "-m":
        module, *rest = rest
        sys.argv, sys.path[0] = [module, *rest], order["cwd"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *rest], str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


def _enter(space: str) -> None:
    """Move this process, which has one thread and no sockets, to a network namespace."""
    there = os.open(f"/run/netns/{space}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(there, _NETWORK):
        raise OSError(ctypes.get_errno(), f"no way into the network namespace {space}")
    os.close(there)


def _import(what: str) -> None:
    for module in ("absl.app", "integer_replica", "wbsp.ps.sharding.process", "wbsp.ps.launch",
                   "wbsp.ps.flags", "wbsp.worker.runtime", "wbsp.worker.comm.transport",
                   # what each of them imports later, when it writes its first event or draws
                   "tensorboard.compat.proto.event_pb2",
                   "tensorboard.summary.writer.record_writer", "numpy.random"):
        importlib.import_module(module)
    if what == KERAS:
        startup = importlib.import_module("wbsp.process.imports")
        with startup.heavy_imports():
            for module in ("tensorflow", "models.training", "wbsp.worker.keras.callback"):
                importlib.import_module(module)
    gc.collect()
    gc.freeze()  # no child looks through all this, and has a copy of it then, at its end at latest


if __name__ == "__main__":
    _import(sys.argv[1])
    _become(_orders())
