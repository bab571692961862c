"""Processes that need not start Python, nor import what they all import: they are forked.

`python forked.py WHAT`, with one end of a socket as its standard input, imports that once. Then it
forks a process for each order it gets: the process takes its arguments, folder, environment and
outputs from the order, and is from there on what Python would have made of the same command line,
to the end of its interpreter. Only what an import itself prints, or reads of the environment, is
not as there.
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
from collections.abc import Sequence
from pathlib import Path

WBSP = "wbsp"  # what is imported: by servers, shards and integer workers
KERAS = "keras"  # by workers with Keras on TensorFlow
AVAILABLE = sys.platform == "linux"  # a fork behind the back of macOS's libraries is not safe
_MOST = 1 << 20  # bytes of an order
_NUMBER = 16  # bytes of a number in what is said of a process: its id, then its exit code
_PATIENCE = 120.0  # seconds for the imports
_NETWORK = 0x40000000  # CLONE_NEWNET


class Forked:
    """A process of its own, with what the tests use of `subprocess.Popen`."""

    _lines: dict[str, socket.socket] = {}  # to the parents, by what they have imported
    _lock = threading.Lock()

    def __init__(self, what: str, arguments: Sequence[str], output: Path, cwd: Path,
                 env: dict[str, str], space: str | None = None):
        """`what`: WBSP or KERAS; `arguments`: of Python, ["-m", module, ...] or [script, ...];
        `space`: the network namespace that the process lives in."""
        with Forked._lock:
            if what not in Forked._lines:
                Forked._lines[what] = _parent(what, env)
        self._said, theirs = os.pipe()
        order = {"arguments": arguments, "output": str(output), "cwd": str(cwd), "env": env,
                 "space": space}
        socket.send_fds(Forked._lines[what], [json.dumps(order).encode()], [theirs])
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


def _parent(what: str, env: dict[str, str]) -> socket.socket:
    """The line to a new process that forks others; it ends with this process."""
    line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen([sys.executable, __file__, what], stdin=theirs, env=env)
    theirs.close()

    def end() -> None:
        line.close()
        process.wait(_PATIENCE)

    atexit.register(end)
    return line


# The parent's side.


def _orders() -> dict:
    """Fork a process for each order, and say when one ends; return, in such a process, its order.
    """
    line = socket.socket(fileno=os.dup(0))
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests decide
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    reports: dict[int, int] = {}  # process -> where its end is said
    while True:
        select.select([line, woken], [], [])
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)
        _tell_ends(reports)
        if not select.select([line], [], [], 0)[0]:
            continue
        text, (*fds,), _, _ = socket.recv_fds(line, _MOST, 1)
        if not text:
            sys.exit()
        (report,) = fds
        if child := os.fork():
            reports[child] = report
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _say(report, os.getpid())  # from here on it hears signals
        for fd in (woken, wakes, report, *reports.values()):
            os.close(fd)
        line.close()
        return json.loads(text)


def _tell_ends(reports: dict[int, int]) -> None:
    while reports:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            return
        report = reports.pop(ended)
        _say(report, os.waitstatus_to_exitcode(status))
        os.close(report)


def _say(report: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(report, f"{number:{_NUMBER}}".encode())


def _become(order: dict) -> None:
    """What Python does with a command line."""
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    if order["space"] is not None:
        _enter(order["space"])
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, place in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, place)
    os.close(nothing)
    os.close(output)
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
