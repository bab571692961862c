"""The actor that holds a server's process, on the node that Ray chooses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import ray

from wbsp import timeouts
from wbsp.process.ports import free_port
from wbsp.process.private import kept_in_file
from wbsp.ray.placement import RunError
from wbsp.runlog.files import read_document
from wbsp.runlog.folder import SETTINGS, read_settings

# Exit codes of a server whose run has ended cleanly: by itself, by SIGINT, by SIGTERM.
IN_ORDER = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)
_LISTENS = "listening on port"
# The server ends with the process at the other end of its standard input, however that ends: two
# servers of one run must not run side by side unknown to Ray.
_COMMAND = ("import runpy; from wbsp.process.imports import end_with_parent; end_with_parent(); "
            "runpy.run_module('wbsp.ps', run_name='__main__', alter_sys=True)")


class Ending(NamedTuple):
    """How a server's process has ended.

    Attributes:
        code: its exit code; negative: a signal.
        said: the last line of its output.
        folders: of the runs' files, one for each `fit`, in order.
        order: number and epoch of the last run in its folder: the later one of two servers is
            larger.
        summary: content of summary.json; None: this server did not see the run's end.
        best: path of the best version, if versions were evaluated.
    """

    code: int
    said: str
    folders: list[str]
    order: tuple[int, int]
    summary: dict[str, Any] | None
    best: str | None


class Server:
    """One start of a run's server, or of its standby.

    An actor, whose `wait` runs concurrently with other calls.

    Args:
        name: for messages, and of the file with its output.
        flags: of `python -m wbsp.ps`, except those about its address.
        folder: of the run's files; readable on all nodes on which it may be restarted.
    """

    def __init__(self, name: str, flags: list[str], folder: str, token: str):
        self._name, self._flags, self._token = name, flags, token
        self._folder = Path(folder)
        self._log = self._folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return self._name

    def start(self, port: int | None, again: bool) -> str:
        """Start the process; return the host:port at which it listens.

        Raises RunError, in one line.

        Args:
            port: None: any free one.
            again: this run has begun before.
        """
        if again and not any(self._folder.glob("*/run-*")):
            raise RunError(f"{socket.gethostname()} cannot read {self._folder}; give a storage "
                           "that all nodes can read, or a standby")
        self._folder.mkdir(parents=True, exist_ok=True)
        host = ray.util.get_node_ip_address()
        port = port or free_port(host)
        begin = self._log.stat().st_size if self._log.exists() else 0
        with open(self._log, "ab") as output, kept_in_file(self._token) as token_file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, *self._flags, "--resume",
                 f"--log_root={self._folder}", f"--host={host}", f"--port_base={port}",
                 f"--token_file={token_file}"],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"})
            deadline = time.monotonic() + timeouts.PROCESS_START
            while _LISTENS not in self._said(begin):
                if self._process.poll() is not None:
                    code = self._ended()
                    raise RunError(self._said(begin).strip().rpartition("\n")[2]
                                   or f"it ended with exit code {code} and printed nothing")
                if time.monotonic() > deadline:
                    self._process.kill()
                    self._ended()
                    raise RunError(f"it does not listen within {timeouts.PROCESS_START:g} s; its "
                                   f"output is in {self._log}")
                time.sleep(0.05)
        return f"{host}:{port}"

    def wait(self) -> Ending:
        """Wait for the process's end."""
        code = self._ended()
        runs: dict[Any, tuple[tuple[int, int], Path]] = {}  # id -> newest start and its folder
        summary = None
        for path in self._folder.glob(f"*/run-*/{SETTINGS}"):
            try:
                found = read_settings(path.parent)
            except (OSError, ValueError):  # another's, which holds nothing about this server's runs
                continue
            start = found.get("fit", 1), found.get("epoch", 0)
            if start >= runs.get(found.get("id"), (start,))[0]:
                runs[found.get("id")] = start, path.parent
        order, folder = max(runs.values(), default=((0, 0), self._folder))
        if code in IN_ORDER and (folder / "summary.json").exists():
            summary = read_document(folder / "summary.json")
        best = folder / "best.safetensors"
        return Ending(code, self._said(0).strip().rpartition("\n")[2],
                      [str(path) for _, path in sorted(runs.values())] or [str(folder)],
                      order, summary, str(best) if best.exists() else None)

    def stop(self, seconds: float) -> None:
        """End the run cleanly, as Ctrl-C does; return when that is done, or after `seconds`.
        """
        process = self._process  # another thread is in `wait`
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        process.wait()
        timer.cancel()

    def _ended(self) -> int:
        """Wait for the process and return its exit code.

        Its object is deleted before the actor ends: Ray ends that by a SIGTERM, and if Python
        deletes the object in the main thread then, it prints a meaningless traceback.
        """
        assert self._process is not None
        code = self._process.wait()
        self._process = None
        return code

    def _said(self, begin: int) -> str:
        """Return the log's text from `begin` on; at most its last lines."""
        with open(self._log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - 4096))
            return file.read().decode(errors="replace")
