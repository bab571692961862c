"""Progress of simulations: a bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich import progress

LINE_SECONDS = 10.0
BAR_SECONDS = 0.2


class Progress:
    """Display of several runs, one after another, on `stream` (default: standard error)."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._bar: progress.Progress | None = None
        self._due = 0.0
        self._name, self._began = "", 0.0
        if self._stream.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"), progress.BarColumn(),
                progress.TaskProgressColumn(), progress.TextColumn("{task.fields[state]}"),
                progress.TimeElapsedColumn(), console=Console(file=self._stream),
                redirect_stdout=False, redirect_stderr=False)
            self._bar.start()

    def begin(self, name: str) -> None:
        """Start the next run, called `name`."""
        self._name, self._began = name, time.monotonic()
        self._due = self._began + LINE_SECONDS
        if self._bar is not None:
            self._task = self._bar.add_task(name, total=1.0, state="")
            self._due = 0.0

    def update(self, now: float, done: float, state: str) -> None:
        """Show virtual second `now` and the part that is done, 0..1; cheap to call often."""
        if time.monotonic() < self._due:
            return
        self._show(f"{now:,.1f} s, {state}", done)

    def end(self, now: float, state: str) -> None:
        """Show the end of the run at virtual second `now`."""
        self._show(f"{now:,.1f} s, {state}", 1.0)

    def close(self) -> None:
        """Leave the newest bar on the terminal and give the terminal back."""
        if self._bar is not None:
            self._bar.stop()

    def _show(self, state: str, done: float) -> None:
        self._due = time.monotonic() + (BAR_SECONDS if self._bar else LINE_SECONDS)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, state=state)
        else:
            took = time.monotonic() - self._began
            print(f"{self._name}: {done:.0%}, virtual {state} ({took:.0f} s of real time)",
                  file=self._stream, flush=True)
