"""SIGINT and SIGTERM at a server: the first asks it to end the run, the second ends it at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

from wbsp.process.host import HOST, Host

SIGNALS = signal.SIGINT, signal.SIGTERM


class Interrupts:
    """Signals that have come; used by the main thread.

    Python may run a handler between any two of its instructions: within a lock, while a thread is
    started, in its own exit. An exception raised there leaves half of something done, and a thread
    that is not known keeps Python from ending. So nothing is raised: the first signal is kept
    for the event loop to see, and the second ends the process without Python's own exit.
    """

    def __init__(self, on: Host = HOST):
        self._on = on
        self.first: int | None = None
        self.at_once: list[Callable[[], object]] = []  # called before the end; must not wait

    def install(self) -> Interrupts:
        """Take the process's signals from here on."""
        for signum in SIGNALS:
            self._on.scheduler.signal(signum, self.take)
        return self

    def take(self, signum: int, frame: Any = None) -> None:
        """Handle a signal; the second ends the process with code 128 + signum."""
        if self.first is None:
            self.first = signum
            return
        for act in self.at_once:
            with contextlib.suppress(Exception):
                act()
        self._on.scheduler.exit(128 + signum)
