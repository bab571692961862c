"""A process of a run, over all its starts; the workers of a machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from wbsp.process.restarts import Restarts
from wbsp.run.machine import of_worker
from wbsp.run.process import Keeper, Process
from wbsp.run.screen import Screen


class Command(NamedTuple):
    """How to start a process."""

    words: Sequence[str]
    environment: Mapping[str, str]


class Member:
    """The server or a worker, over all its starts.

    Attributes:
        name: before its lines.
        called: its name in a sentence.
        restarts: counts its deaths.
        heard: called with each line of its standard error.
        numbers: indices of the workers that it is, if they are known.
        process: its newest process; None: it was not started yet.
        due: when to start it; None: it runs, or has ended.
        code: its exit code, negative: of a signal; None: it runs, or will be started again.
    """

    def __init__(self, name: str, command: Callable[[bool], Command], most: int,
                 heard: Callable[[str], None] | None = None, numbers: Collection[int] = ()):
        """Prepare.

        Args:
            name: before its lines.
            command: returns how to start it; its argument: it has run before.
            most: restarts in a row until it is given up.
            heard, numbers: see above.
        """
        self.numbers = numbers
        self.name, self._command, self._heard = name, command, heard
        self.called = "the server" if name == "server" else name  # in a sentence
        self.restarts = Restarts(most)
        self.process: Process | None = None
        self.due: float | None = time.monotonic()
        self.code: int | None = None

    @property
    def over(self) -> bool:
        return self.code is not None

    def start(self, keeper: Keeper, screen: Screen) -> Process:
        """Start it; return the process."""
        def show(line: bytes, errors: bool) -> None:
            screen.show(self.name, line, errors)
            if errors and self._heard is not None:
                self._heard(line.decode(errors="replace"))

        words, environment = self._command(self.process is not None)
        self.due = None
        self.process = Process(words, environment, keeper, show)
        return self.process

    def signal(self, signum: int) -> None:
        """Send it a signal; if it waits for its next start, that is its end."""
        if self.due is not None:
            self.ends(0)
        elif self.process is not None:
            self.process.signal(signum)

    def ends(self, code: int) -> None:
        """Note that it has ended with this exit code, and is not started again."""
        self.due, self.code = None, code

    def starts_again(self, pause: float) -> None:
        """Start it again in `pause` seconds."""
        self.due = time.monotonic() + pause

    def loss(self, code: int) -> str | None:
        """Return what has happened if it ended by no decision of its own; None: it decided."""
        return f"{self.called} {how(code)}" if code < 0 else None

    def tell_over(self) -> None:
        """Let it end, because the run's server has ended."""


def workers_of(numbers: Sequence[int], indexed: bool, script: Sequence[str],
               task: dict[str, str], gpus: Sequence[str], most: int) -> list[Member]:
    """Return the workers of this machine.

    Args:
        numbers: of these workers in the run.
        indexed: these are their indices; otherwise the server gives each an index.
        script: the script and its arguments, as Python takes them.
        task: variables that name the server.
        gpus: this machine's.
        most: restarts in a row until one is given up.
    """
    def worker(place: int, number: int) -> Member:
        own = {"WBSP_WORKER_INDEX": str(number)} if indexed else {}
        command = Command([sys.executable, *script],
                          of_worker(place, len(numbers), gpus, os.environ) | task | own)
        return Member(name_of(number, indexed), lambda again: command, most,
                      numbers=[number] if indexed else [])

    return [worker(place, number) for place, number in enumerate(numbers)]


def name_of(number: int, indexed: bool) -> str:
    """Return a worker's name; `indexed`: its number is its index."""
    return f"{'worker' if indexed else 'process'} {number}"


def how(code: int) -> str:
    """Return how a process has ended, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def exit_code(code: int) -> int:
    """Return the code to exit with for a process's, which is negative for a signal."""
    return 128 - code if code < 0 else code
