"""Equal processes that make round trips when told to, each behind a pipe.

This file and those of the peers run under other Pythons than wbsp's as well: here nothing is
imported that not every Python has.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

VALUE = 2.0**-10  # of all floats of an update, so that sums are exact
PATIENCE = 300.0  # seconds more than it should take, after which a process counts as stuck
_ROOT = Path(__file__).parents[3]


class Team:
    """Equal processes that work at the same time."""

    def __init__(self, pipes: list[Connection]):
        self._pipes = pipes
        self._trips = 0

    def block(self, seconds: float, least: int = 1) -> list[float]:
        """Let everyone make round trips for `seconds`, `least` at least; return the seconds of each
        trip."""
        for pipe in self._pipes:
            pipe.send((seconds, least))
        trips = [trip for answer in self.answers(seconds) for trip in answer]
        self._trips += len(trips)
        return trips

    def finish(self) -> None:
        """Let everyone check what it holds after all these trips, and end."""
        for pipe in self._pipes:
            pipe.send(None)
            pipe.send(self._trips)
        self.answers()

    def go(self) -> None:
        """Tell everyone what time it is, as the sign to begin."""
        now = time.monotonic()
        for pipe in self._pipes:
            pipe.send(now)

    def answers(self, seconds: float = 0.0) -> list:
        """The next answer of everyone, which should take so long; raises RuntimeError without."""
        return [_answer(pipe, seconds + PATIENCE) for pipe in self._pipes]


def _answer(pipe: Connection, seconds: float) -> Any:
    try:
        if pipe.poll(seconds):
            return pipe.recv()
    except EOFError:
        raise RuntimeError("a process of the benchmark failed; it says above why") from None
    raise RuntimeError(f"a process of the benchmark has not answered for {seconds:g} s")


@contextmanager
def start_team(target: Callable, arguments: list[tuple],
               python: str = sys.executable) -> Iterator[Team]:
    """Start a process of target(pipe, *arguments[i]) for each i; wait until all are up.

    target: a function of a module; python: the interpreter that runs it

    Killed in the end, they leave temporary files: their folder goes after them.
    """
    pipes, processes = [], []
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    name = target.__module__
    if name == "__main__" and (spec := sys.modules[name].__spec__):
        name = spec.name
    try:
        for args in arguments:
            mine, theirs = Pipe()
            with theirs:
                processes.append(subprocess.Popen(
                    [python, "-m", __name__, name, target.__name__, str(theirs.fileno())],
                    cwd=_ROOT, pass_fds=[theirs.fileno()],
                    env={**os.environ, "TMPDIR": folder.name}))
            pipes.append(mine)
            mine.send(args)
        started = Team(pipes)
        started.answers()
        yield started
    finally:
        for process in processes:
            process.kill()
            process.wait()
        folder.cleanup()


def serve(pipe: Connection, trip: Callable[[], None],
          again: Callable[[bool], bool] = lambda more: more, each: int = 1) -> None:
    """Make round trips as told until there are no more.

    trip: what is timed; each: round trips of a worker that it makes
    again: called before each, untimed; is told whether one is due, and says whether it is made
    """
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        seconds, least = order
        trips: list[float] = []
        end = time.perf_counter() + seconds
        while again(len(trips) < least or time.perf_counter() < end):
            start = time.perf_counter()
            trip()
            trips.append((time.perf_counter() - start) / each)
        pipe.send(trips)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, in whatever way."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _main(module: str, function: str, descriptor: str) -> None:
    """What a process of a team does."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    pipe = Connection(int(descriptor))
    getattr(importlib.import_module(module), function)(pipe, *pipe.recv())


if __name__ == "__main__":
    _main(*sys.argv[1:])
