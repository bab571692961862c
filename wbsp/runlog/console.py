"""The display of a run in progress.

A file (nohup) gets one plain line every few seconds, a terminal a live table. Warnings are printed
at once on both. A terminal that goes away ends the display, never the run.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from wbsp.core.stats import Member, Report
from wbsp.runlog.files import MIB, LineFile
from wbsp.runlog.straggler import Score, StragglerScore

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LINE_SECONDS = 5.0  # between two plain lines, and between two measurements of speed
LIVE_SECONDS = 0.5  # between two pictures on a terminal
NAMED_WORKERS = 8  # a plain line summarizes more workers than these
MOST = 64 * MIB  # bytes of the file: some weeks of lines
_SHOW_CURSOR = b"\x1b[?25h\n"  # which a live table hides


def say(text: str, stream: TextIO | None = None) -> None:
    """Log `text` as a record of the logger "wbsp", level INFO; `stream` is where it is printed
    (default: standard error) unless the program has configured that logger."""
    _LOGGER.info(text, extra={"stream": stream}, stacklevel=2)


class DefaultHandler(logging.Handler):
    """Handler of the logger "wbsp" as long as the program has not configured that logger.

    It prints the bare line, and nothing once the logger has a handler of the program's own or
    propagates to the root logger. A stream that cannot be written to must not end the training.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if _LOGGER.handlers == [self] and not _LOGGER.propagate:
            stream = getattr(record, "stream", None) or sys.stderr
            if stream is not None:  # of a process without standard error; `print` would take output
                with contextlib.suppress(OSError, ValueError):
                    print(self.format(record), flush=True, file=stream)


def _library_logger() -> logging.Logger:
    """Return the logger "wbsp", with its default handler unless the program has given it one.

    It does not propagate: absl and TensorFlow put a handler of their own on the root logger, which
    would print each line once more.
    """
    logger = logging.getLogger("wbsp")
    if not logger.handlers:
        logger.addHandler(DefaultHandler())
        logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    return logger


_LOGGER = _library_logger()


@dataclass
class Status:
    """State of a run `t` seconds after its start."""

    t: float
    version: int  # newest
    members: Mapping[int, Member]
    reports: Mapping[int, Report]
    done: float | None = None  # part of the stop rule that is reached, 0..1; None without a rule
    training_loss: float | None = None  # of the newest steps
    evaluated: int | None = None  # version of the last evaluation
    loss: float | None = None  # of that version
    accuracy: float | None = None  # of that version, 0..1
    bits_per_byte: float | None = None  # of that version, of text
    # Seconds since a worker's last message, where known; called when it is shown.
    silence: Callable[[int], float | None] = lambda worker: None

    @property
    def steps(self) -> int:
        """Steps that the server has received, over all workers."""
        return sum(member.steps for member in self.members.values())


class Console:
    """Display of a run called `title` on `stream` (default: standard error). Used by one thread.

    Its lines are also in the file `path`, if that is given, which ends after `MOST` bytes. There a
    terminal's picture is a line, too.
    """

    def __init__(self, title: str, stream: TextIO | None = None, path: Path | None = None):
        """Start to show.

        Raises:
            OSError: the file cannot be created.
        """
        self.title = title
        self._file = None if path is None else LineFile(path, append=True, say=self._show_line)
        self._stream = stream or sys.stderr  # None: this process has no standard error
        self._t = 0.0  # of the newest status or line
        self._line_due = self._live_due = float("-inf")
        self._stragglers = StragglerScore()
        self._scores: dict[int, Score] = {}
        self._status: Status | None = None
        self._live: Live | None = None
        self._guard(self._start_live)

    def line(self, text: str, t: float | None = None) -> None:
        """Print `text` at once; `t` defaults to the time of the newest status."""
        if t is not None:
            self._t = t
        self._show_line(text)
        self._note_line(text)

    def result(self, text: str) -> None:
        """Print a text about the whole run on standard output, without a time."""
        say(text, sys.stdout)
        self.note(text)

    def note(self, text: str) -> None:
        """Write `text` into the file alone."""
        file = self._file
        if file is None or file.size >= MOST:
            return
        file.write(self._t, f"{text.rstrip()}\n".encode(errors="replace"))
        if file.size >= MOST:
            self._show_line(f"{file.path} has reached {MOST / MIB:,.0f} MiB, and ends here")
        file.flush()

    def update(self, status: Status) -> None:
        """Show `status` if a line or a picture is due; cheap to call after every message."""
        self._t, self._status = status.t, status
        line_due = status.t >= self._line_due
        if line_due:
            self._line_due = status.t + LINE_SECONDS
            active = {w: m for w, m in status.members.items() if m.active}
            self._scores = self._stragglers.update(active)
        if line_due:
            (self.line if self._live is None else self._note_line)(plain(status))
        if self._live is not None and status.t >= self._live_due:
            self._live_due = status.t + LIVE_SECONDS
            self._guard(self._refresh)

    def close(self) -> None:
        """Release the terminal and close the file."""
        self.release()
        if self._file is not None:
            self._file.close()
            self._file = None

    def release(self) -> None:
        """Leave the newest picture on the terminal and give it back."""
        if self._live is not None:
            self._guard(self._refresh)
            self._guard(self._live.stop)
            self._live = None

    def abandon(self) -> None:
        """Restore the terminal in one write; safe in a signal handler."""
        if self._live is not None and self._stream is not None:
            os.write(self._stream.fileno(), _SHOW_CURSOR)

    def _start_live(self) -> None:
        if self._stream is None or not self._stream.isatty():
            return
        from rich.console import Console as RichConsole
        from rich.live import Live

        console = RichConsole(file=self._stream)
        if console.is_dumb_terminal:
            return
        # If standard output were redirected, every print() would fail after the terminal went away.
        live = Live(console=console, auto_refresh=False, redirect_stdout=False,
                    redirect_stderr=False)
        live.start()
        self._live = live

    def _refresh(self) -> None:
        if self._status is not None and self._live is not None:
            self._live.update(picture(self.title, self._status, self._scores), refresh=True)

    def _show_line(self, text: str) -> None:
        self._guard(self._print, self._timed(text))

    def _note_line(self, text: str) -> None:
        self.note(self._timed(text))

    def _timed(self, text: str) -> str:
        return f"[{self._t:7.1f}s] {text}"

    def _print(self, text: str) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(text))
        elif self._stream is not None:
            print(text, file=self._stream, flush=True)

    def _guard(self, show: Callable[..., None], *args: Any) -> None:
        """Call show(*args); training continues if that fails.

        A closed terminal or a broken pipe ends the display; a full disk interrupts it.
        """
        try:
            show(*args)
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                self._live = self._stream = None


def plain(status: Status) -> str:
    """Return `status` in one line."""
    done = "" if status.done is None else f" ({status.done:.1%})"
    parts = [f"version {status.version:,}", f"steps {status.steps:,}{done}", *_quality(status)]
    members = sorted(status.members.items())
    if len(members) <= NAMED_WORKERS:
        parts += [f"worker {worker}: {member.steps:,} {_share(status, worker)}"
                  + ("" if member.active else " absent") for worker, member in members]
    else:
        steps = [member.steps for _, member in members]
        active = sum(member.active for _, member in members)
        parts.append(f"{active} of {len(members)} workers: {min(steps):,} to {max(steps):,} steps")
        shares = [report.share("compute") for report in status.reports.values()]
        if shares:
            parts.append(f"computing {min(shares):.0%} to {max(shares):.0%}")
    return " | ".join(parts)


def picture(title: str, status: Status, scores: Mapping[int, Score]) -> RenderableType:
    """Return `status` as a progress bar above a table of the workers, for rich to draw."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    totals = [f"{status.t:,.1f} s", f"version {status.version:,}", f"{status.steps:,} steps",
              *_quality(status)]
    head = Table.grid(padding=(0, 1))
    head.add_row(Text(title, "bold"), "  ".join(totals))
    if status.done is not None:
        head.add_row(f"{status.done:.1%}", ProgressBar(total=1.0, completed=status.done, width=50))
    workers = Table("worker", "steps", "samples/s", "of best", "of own best", "computing",
                    "last message")
    for column in workers.columns:
        column.justify = "right"
    for worker, member in sorted(status.members.items()):
        score = scores.get(worker)
        pace = (f"{score.speed:,.1f}", f"{score.vs_best:.0%}", f"{score.vs_own_best:.0%}") \
            if score else ("", "", "")
        silence = status.silence(worker)
        state = "finished" if member.finished else "absent" if not member.active \
            else "" if silence is None else f"{silence:.1f} s ago"
        workers.add_row(str(worker), f"{member.steps:,}", *pace, _share(status, worker), state)
    return Group(head, workers)


def _share(status: Status, worker: int) -> str:
    """Return a worker's share of computing, and its main phase if that is another one."""
    report = status.reports.get(worker)
    if report is None:
        return "-"
    most = max(report.seconds, key=report.share)
    return f"{report.share('compute'):.0%}" + (
        "" if most == "compute" else f", {most} {report.share(most):.0%}")


def _quality(status: Status) -> list[str]:
    """Return the model's known quality: the workers' loss now, and the newest evaluation, which is
    of an earlier version."""
    found = ", ".join(_known(loss=status.loss, accuracy=status.accuracy,
                              bits_per_byte=status.bits_per_byte))
    if found and status.evaluated is not None:
        found += f" of version {status.evaluated:,}"
    return [*_known(training_loss=status.training_loss), *[found] * bool(found)]


def _known(**values: float | None) -> list[str]:
    """Return names and values of the known ones."""
    return [f"{name.replace('_', ' ')} {value:.4f}" for name, value in values.items()
            if value is not None and not math.isnan(value)]
