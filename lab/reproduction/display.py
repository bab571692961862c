"""Display of how far many runs have come, on standard error."""

from __future__ import annotations

import math
import shutil
import sys
import time

LINE_SECONDS = 30.0  # between two lines where there is no terminal


class Display:
    """Display of the progress: one line on a terminal, else a line every `LINE_SECONDS`."""

    def __init__(self):
        self._begin = time.monotonic()
        self._due = 0.0
        self._terminal = sys.stderr.isatty()

    def show(self, done: int, total: int, seconds: float, names: str) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (0 if self._terminal else LINE_SECONDS)
        left = "" if math.isnan(seconds) else f", about {_clock(seconds)} left"
        line = f"{done} of {total} runs, {_clock(now - self._begin)} gone{left}; now {names}"
        if self._terminal:
            line = "\r\x1b[K" + line[:shutil.get_terminal_size().columns - 1]
        print(line, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            print(file=sys.stderr)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
