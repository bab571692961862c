"""Signals of a server. SIGINT and SIGTERM: the first asks it to end the run, the second ends it at
once. SIGUSR1: no other worker will come, so training begins with those that are there."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

from wbsp.process.host import HOST, Host

SIGNALS = signal.SIGINT, signal.SIGTERM
COMPLETE = signal.SIGUSR1


class Interrupts:
    """The received signals; used by the main thread.

    Python may run a handler between any two of its instructions: within a lock, while a thread
    starts, in its own exit. An exception there leaves an operation half done, and an unregistered
    thread keeps Python from ending. So the handler raises nothing: the event loop reads the first
    signal, and the second ends the process without Python's own exit.
    """

    def __init__(self, on: Host = HOST):
        self._on = on
        self.first: int | None = None
        self.complete = False  # no other worker will come
        self._at_once: list[Callable[[], object]] = []

    def end_with(self, act: Callable[[], object]) -> None:
        """Call `act`, which must not wait, before the second signal ends the process."""
        self._at_once.append(act)

    def end_without_acts(self) -> None:
        """Forget the function to call, because its object has ended."""
        self._at_once.clear()

    def install(self) -> Interrupts:
        """Install the handlers."""
        for signum in SIGNALS:
            self._on.scheduler.signal(signum, self.take)
        self._on.scheduler.signal(COMPLETE, self._take_complete)
        return self

    def take(self, signum: int, frame: Any = None) -> None:
        """Handle a signal; the second ends the process with code 128 + signum."""
        if self.first is None:
            self.first = signum
            return
        for act in self._at_once:
            with contextlib.suppress(Exception):
                act()
        self._on.scheduler.exit(128 + signum)

    def _take_complete(self, signum: int, frame: Any = None) -> None:
        self.complete = True
