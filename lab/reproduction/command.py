"""What the commands that carry out many runs have in common: their budget, their ends."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Sequence

from reproduction.work import Failure

from wbsp import units


def run_command(name: str, run: Callable[[], int], argv: Sequence[str]) -> int:
    """Return the exit code of `run`; what it raises of bad input and files becomes one line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        if len(argv) > 1:
            raise ValueError(f"unknown argument {argv[1]!r}; flags are written --name=value")
        return run()
    except (ValueError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1


def budget(text: str | None) -> float:
    """Seconds after which nothing new begins, of the flag --budget. Raises ValueError."""
    seconds = units.of_flag("budget", text, units.seconds)
    return math.inf if seconds is None else seconds


def exit_code(name: str, failures: Sequence[Failure], stopped: bool) -> int:
    """Print the failures, a line each; return the exit code of a command that has ended."""
    for job, part, last_line in failures:
        print(f"{name}: {job.name}, {part} failed: {last_line} (see {job.folder}/log.txt)",
              file=sys.stderr)
    return 130 if stopped else 1 if failures else 0
