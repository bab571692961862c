"""Start real processes for tests: each ends with its test, and every wait is bounded."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forked

ROOT = Path(__file__).parents[2]
# Under every outer step that a model has, a version is W_0 plus the accepted updates, in integers.
PLAIN = ("--outer=identity", "--wire=float32")
PATIENCE = 300.0  # seconds; only there so that nothing hangs for ever
INTEGER_WORKER = Path(__file__).with_name("integer_worker.py")
KILL_POINTS = Path(__file__).with_name("kill_points.py")


def _ports() -> Iterator[int]:
    """Yield ports that no other process of this pytest run is given, and that the system does not
    assign by itself: it might assign one before its server starts.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    mine = range(12_000 + 2_000 * process, 14_000 + 2_000 * process)
    for number in itertools.count(7 * os.getpid()):  # another pytest begins elsewhere
        yield mine[number % len(mine)]


_candidates = _ports()


def free_port() -> int:
    """Return a TCP port of the loopback interface on which no process listens."""
    while True:
        port = next(_candidates)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def surroundings() -> dict[str, str]:
    """Return the environment in which `python` is this Python with this checkout."""
    return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
            "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def until(condition: Callable[[], object], what: str, patience: float = PATIENCE):
    """Wait until `condition` returns something true, and return that."""
    end, pause = time.monotonic() + patience, 0.01
    while not (result := condition()):
        assert time.monotonic() < end, f"waited {patience:g} s for {what}"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.1)  # a check may cost more than the awaited event
    return result


def both(*calls: tuple) -> list:
    """Call these functions at once, each in a thread, and return their results.

    A call is (function, *arguments), with an optional dict of named arguments at the end.
    """
    def made(function, *arguments):
        named = arguments[-1] if arguments and isinstance(arguments[-1], dict) else {}
        return function(*arguments[:len(arguments) - bool(named)], **named)

    with ThreadPoolExecutor(len(calls)) as threads:
        return [job.result(120) for job in [threads.submit(made, *call) for call in calls]]


class Job:
    """A running process; both its outputs go to one file."""

    def __init__(self, name: str, command: list[str], output: Path, cwd: Path,
                 env: dict[str, str], fork: str = "", space: str | None = None):
        """Start a process.

        Args:
            fork: fork the process instead of starting Python: what its parent has imported, see
                `forked`.
            space: the network namespace that the process lives in.
        """
        self.name, self._output = name, output
        self.process: subprocess.Popen | forked.Forked
        with open(output, "wb") as file:
            if fork and forked.AVAILABLE:
                self.process = forked.Forked(fork, command[1:], output, cwd, env, space)
            else:
                command = [*(["ip", "netns", "exec", space] if space else []), *command]
                self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT,
                                                stdin=subprocess.DEVNULL, cwd=cwd, env=env)

    @property
    def text(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def newest_lines(self) -> list[str]:
        """Return the last few whole lines of an output that may be long."""
        with open(self._output, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2000))
            return file.read().decode(errors="replace").split("\n")[size > 2000:-1]

    def show(self) -> None:
        """Print the end of the output, and what the process does."""
        print(f"{self.name} (exit code {self.process.poll()}), its last words:",
              *self.newest_lines, sep="\n  ")

    def find(self, pattern: str) -> list[str]:
        """Return the lines that match the regular expression."""
        return [line for line in self.lines if re.search(pattern, line)]

    def until(self, pattern: str, patience: float = PATIENCE) -> str:
        """Wait until the process has printed a line with `pattern`; return the first."""
        def found():
            if lines := self.find(pattern):
                return lines[0]
            assert self.process.poll() is None, (
                f"{self.name} ended with {self.process.returncode} before it said {pattern!r}:\n"
                f"{self.text}")
            return None
        return until(found, f"{self.name} to say {pattern!r}", patience)

    def ends(self, patience: float = PATIENCE) -> int:
        """Wait for the process's end; return its exit code (negative: a signal)."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {patience:g} s:\n{self.text}"
                                 ) from None

    def ends_well(self, patience: float = PATIENCE) -> None:
        code = self.ends(patience)
        assert code == 0, f"{self.name} ended with {code}:\n{self.text}"
        self.was_clean()

    def was_clean(self) -> None:
        """Assert that the process showed no traceback at the terminal."""
        assert "Traceback" not in self.text, self.text

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def kill(self) -> None:
        """kill -9"""
        self.process.kill()
        self.process.wait()


class ServerJob(Job):
    """A parameter server and the files of its run."""

    address: str
    cwd: Path

    def listens(self) -> ServerJob:
        self.until("listening on port")
        return self

    @property
    def folder(self) -> Path:
        return self.cwd / self.until("the files of this run are in").rpartition(" are in ")[2]

    def events(self, kind: str) -> list[dict]:
        """Return the run's events of this kind so far."""
        with open(self.folder / "events.jsonl", "rb") as file:
            events = [json.loads(line) for line in file if line.endswith(b"\n")]
        return [event for event in events if event["kind"] == kind]


class Jobs(contextlib.AbstractContextManager):
    """Start processes that work in `folder`, and kill those that are left."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._jobs: list[Job] = []
        self._names = itertools.count()

    def __exit__(self, *_):
        for job in self._jobs:
            job.show()  # pytest passes it on where the test has failed
            job.kill()

    def start(self, name: str, *arguments: object, kind: type[Job] = Job,
              space: str | None = None, fork: str = "", **environment: str) -> Job:
        """Start Python with these arguments; `fork` and `space`: see `Job`."""
        return self.run(name, sys.executable, *arguments, kind=kind, space=space, fork=fork,
                        **environment)

    def run(self, name: str, *command: object, kind: type[Job] = Job, fork: str = "",
            space: str | None = None, **environment: str) -> Job:
        """Start a program for which `python` is this Python, with this checkout to import from."""
        job = kind(name, [str(word) for word in command],
                   self.folder / f"{next(self._names):02d}-{name}.log", self.folder,
                   {**os.environ, **surroundings(), **environment}, fork, space)
        self._jobs.append(job)
        return job

    def server(self, *flags: str, workers: int = 2, sync: str = "pcc", port: int | None = None,
               space: str | None = None, dies: tuple[str, int] | None = None,
               series: bool = False, **environment: str) -> ServerJob:
        """Start `python -m wbsp.ps`; relative files of its run are in this folder's runs/.

        Args:
            dies: the point of the protocol at which it kills itself, and at which time there; see
                `kill_points.py`.
            series: serve a run for each fit; otherwise the server ends with its first run.
        """
        port = port or free_port()
        fork = "" if environment else forked.WBSP  # its imports may be what a test looks at
        server = self.start("server", *_program(dies), f"--worker_num={workers}",
                            *([] if series else ["--one_run"]),
                            f"--sync={sync}", f"--port_base={port}", *flags, kind=ServerJob,
                            space=space, fork=fork, **environment)
        server.address = f"localhost:{port}"
        server.cwd = self.folder
        return server

    def shard(self, port: int, *flags: str, space: str | None = None,
              dies: tuple[str, int] | None = None) -> Job:
        """Start `python -m wbsp.ps --shard`."""
        return self.start("shard", *_program(dies), "--shard", f"--port_base={port}", *flags,
                          space=space, fork=forked.WBSP)

    def integer_worker(self, address: str, worker: int | None, space: str | None = None,
                       **plan: object) -> Job:
        """Start a worker of `integer_worker.py`; `plan` has the fields of its `Plan`."""
        plan = {"address": address, "worker": worker, "record": str(self.folder), **plan}
        return self.start(f"worker{worker}", INTEGER_WORKER, json.dumps(plan),
                          space=space, fork=forked.WBSP)


def _program(dies: tuple[str, int] | None) -> list[object]:
    return ["-m", "wbsp.ps"] if dies is None else [KILL_POINTS, *dies]


def interrupted(job: Job, signum: signal.Signals, patience: float = PATIENCE) -> None:
    """Assert that the process ends as after a signal: exit code 128 + signum, no traceback."""
    code = job.ends(patience)
    assert code == 128 + signum, f"{job.name} ended with {code}:\n{job.text}"
    job.was_clean()
