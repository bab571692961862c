"""What happens to a machine in the middle of a run: KIND:MACHINE.

    slower       each of its steps lasts four times longer, from now on
    sleep        all its processes stop for 60 s
    crash        its training process is killed, as by a lack of memory
    kill         all its processes are killed, for ever
    back         the same, and after 10 s its user types the command again
    coordinator  the process that the tool depends on is killed (no machine is given)
    join         the last machine of the cell starts only now (no machine is given)
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

KINDS = ("slower", "sleep", "crash", "kill", "back", "coordinator", "join")
SLOWER, SLEEP, BACK = 4.0, 60.0, 10.0


class Event(NamedTuple):
    """A kind and the machine that it happens to."""

    kind: str
    machine: int = 0

    @staticmethod
    def read(text: str) -> Event:
        """Return the event of "sleep:1". Raises ValueError, in one line."""
        kind, _, machine = text.partition(":")
        if kind not in KINDS or (machine and not machine.isdecimal()):
            raise ValueError(f"event {text!r}: write KIND:MACHINE, such as sleep:1, of "
                             f"{', '.join(KINDS)}")
        return Event(kind, int(machine or 0))


class Processes:
    """The jobs of a run.

    Attributes:
        of: name of a job -> its process, the newest.
        start: starts a job by its name.
    """

    def __init__(self, folder: Path, entry: str, start: Callable[[str], psutil.Popen]):
        self.folder, self._entry, self._start = folder, entry, start
        self.of: dict[str, psutil.Popen] = {}

    def start(self, name: str) -> None:
        """Start a job."""
        self.of[name] = self._start(name)

    def all(self, name: str) -> list[psutil.Process]:
        """Return a job's processes, the first one first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self.of[name], *self.of[name].children(recursive=True)]
        return []

    def signal(self, name: str, number: int) -> None:
        """Send a signal to all processes of a job."""
        for one in self.all(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(one.pid, number)

    def happen(self, event: Event) -> None:
        """Let it happen; returns when it is over."""
        name = f"machine-{event.machine}"
        match event.kind:
            case "slower":
                (self.folder / f"slower-{event.machine}").write_text(str(SLOWER))
            case "sleep":
                self.signal(name, signal.SIGSTOP)
                time.sleep(SLEEP)
                self.signal(name, signal.SIGCONT)
            case "crash":
                self._kill_one(name, lambda words: self._trains(words))
            case "kill":
                self.signal(name, signal.SIGKILL)
            case "back":
                self.signal(name, signal.SIGKILL)
                time.sleep(BACK)
                self.start(name)
            case "coordinator" if self._entry == "wbsp":
                self._kill_one("machine-0", lambda words: "wbsp.ps" in words)
            case "coordinator":
                self.signal("lighthouse" if "lighthouse" in self.of else "machine-0",
                            signal.SIGKILL)
            case "join":
                self.start(f"machine-{len(self.of) - ('lighthouse' in self.of)}")

    def _trains(self, words: list[str]) -> bool:
        """Return whether these words start the training script, and no launcher of it."""
        return "-m" in words and words[words.index("-m") + 1].startswith("beside.entries.")

    def _kill_one(self, name: str, wanted: Callable[[list[str]], bool]) -> None:
        """Kill the first process of a job that is wanted."""
        for one in self.all(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                if wanted(one.cmdline()):
                    one.kill()
                    return
        raise ProcessLookupError(f"{name} has no such process")
