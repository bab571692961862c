"""Workers on other machines: `ssh` starts a supervisor of them there (`remote.py`).

Each side knows of the other by that connection alone. From here go the job, one line, and then a
line now and then: an empty one, as a sign of life, or a word. When the connection ends, however, or
is silent, the other side ends its workers. From there come the lines to show, and signs of life:
if this side is gone, its machine's answer to them ends the connection there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from wbsp import timeouts
from wbsp.run.member import Command, Member, how
from wbsp.run.process import Keeper, Process
from wbsp.run.screen import Screen

HERE = "localhost"
ALIVE = b""  # a line from there that is not shown
READY = b"wbsp run: ready"  # the first line from there
_OWN = re.compile(rb"(worker|process) \d+ *\| |wbsp run on ")  # begins each of the lines from there
_OPTIONS = {"BatchMode": "yes", "ConnectTimeout": f"{timeouts.HOST_CONNECT:.0f}",
            "ServerAliveInterval": f"{timeouts.HOST_BEAT:.0f}",
            "ServerAliveCountMax": f"{timeouts.HOST_LOST // timeouts.HOST_BEAT:.0f}",
            "ControlMaster": "no"}
_LOST = 255  # exit code of ssh itself


class Place(NamedTuple):
    """A machine, and how many workers it has."""

    name: str  # as ssh knows it
    workers: int


def parse_hosts(text: str) -> list[Place]:
    """Return the machines of "fast:2,old:1,me@other".

    Raises:
        ValueError: the text is something else; one line.
    """
    places = []
    for one in text.split(","):
        found = re.fullmatch(r"\s*(\[[^]]*\]|[^:\s\[\]]+)(?::(\d+))?\s*", one)
        if not found or found[1].startswith("-") or found[2] == "0":
            raise ValueError(f"--hosts={text}: {one!r} is not HOST or HOST:WORKERS; give machines "
                             "that ssh reaches, such as --hosts=fast:2,old:1")
        places.append(Place(found[1].strip("[]"), int(found[2] or 1)))
    names = [place.name for place in places]
    if double := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"--hosts={text} names {double[0]} twice")
    return places


class Host(Member):
    """The workers of another machine.

    Attributes:
        reached: it has answered, now or before.
    """

    def __init__(self, place: Place, job: Callable[[], dict[str, Any]], most: int,
                 numbers: Collection[int]):
        """Prepare.

        Args:
            place: the machine.
            job: returns what `remote.py` reads, fit for JSON.
            most: connections in a row that may fail once one has been made.
            numbers: indices of its workers, if they are known.
        """
        there = f"cd {shlex.quote(os.getcwd())} && exec {shlex.quote(sys.executable)} -m " \
            "wbsp.run.remote"
        command = Command(["ssh", "-T", *(f"-o{name}={value}" for name, value in _OPTIONS.items()),
                           "--", place.name, there], os.environ)
        super().__init__(place.name, lambda again: command, most, numbers=numbers)
        self._job = job
        self.reached = self._ready = self._begun = False
        self._said = ""  # the newest line before it was ready
        self._beat = 0.0

    def start(self, keeper: Keeper, screen: Screen) -> Process:
        def show(line: bytes, errors: bool) -> None:
            if line == READY:
                self.reached = self._ready = True
            elif _OWN.match(line):
                screen.pass_on(line, errors)
            elif self.reached and line != ALIVE:
                screen.show(self.name, line, errors)
            elif line.strip():
                self._said = line.decode(errors="replace").strip()

        self.due, self._ready, self._begun = None, False, False
        words, environment = self._command(False)
        self.process = Process(words, environment, keeper, show, given=b"")
        return self.process

    def go_on(self) -> None:
        """Send the job, once, or a sign of life if one is due; the server listens."""
        if self.process is None or not self._ready:
            return
        if not self._begun:
            self._begun = True
            self.process.tell(json.dumps(self._job()).encode() + b"\n")
        if (now := time.monotonic()) >= self._beat:
            self._beat = now + timeouts.HOST_BEAT
            self.process.tell(b"\n")

    def signal(self, signum: int) -> None:
        if self._begun and self.due is None and self.process is not None:
            self.process.tell(b"signal %d\n" % signum)
        else:
            super().signal(signum)

    def tell_over(self) -> None:
        if self.process is not None:
            self.process.tell(b"over\n")

    def loss(self, code: int) -> str | None:
        return f"the connection to {self.name} was lost" if code < 0 or code == _LOST else None

    def refusal(self, code: int) -> str:
        """Return why it has never answered."""
        return f"cannot use {self.name}: {self._said or f'ssh {how(code)}'}"
