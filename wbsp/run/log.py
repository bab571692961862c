"""A run as its server reports it: on its console, and in the files of the run."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

from wbsp.ps.checkpoint.writer import CHECKPOINT
from wbsp.runlog.files import read_document
from wbsp.runlog.folder import read_settings

_LISTENS = re.compile(r": listening on ")
_FOLDER = re.compile(r"\] the files of this run are in (.*)")
_JOINED = re.compile(r"\] worker (\d+) (joined|reconnected)")


class ServerLines:
    """What the server's console lines have reported so far.

    Attributes:
        listens: workers may connect.
        joined: a worker has joined a run.
        serves: number of runs so far, and of starts again.
        here: workers that have joined the newest of these -> when, in seconds of the monotonic
            clock.
    """

    def __init__(self) -> None:
        self.listens = self.joined = False
        self.serves = 0
        self.here: dict[int, float] = {}
        self._folders: list[Path] = []  # of its runs

    def hear(self, line: str) -> None:
        """Take a line."""
        if _LISTENS.search(line):
            self.listens = True
            self.serves += 1
            self.here.clear()
        if found := _JOINED.search(line):
            self.joined = True
            self.here[int(found[1])] = time.monotonic()
        if found := _FOLDER.search(line):
            self._folders.append(Path(found[1]))

    @property
    def folder(self) -> Path | None:
        """Folder of the newest run that has begun."""
        return next((folder for folder in reversed(self._folders) if folder.exists()), None)

    @property
    def summary(self) -> dict[str, Any] | None:
        """Summary of the newest run; None: it has not ended."""
        if self.folder is not None:
            with contextlib.suppress(OSError, ValueError):
                return read_document(self.folder / "summary.json")
        return None

    @property
    def resume(self) -> str:
        """The flag with which another server continues.

        A run is named, because its server's port may have had others, unless it has no checkpoint
        yet, or has ended.
        """
        folder = self.folder
        with contextlib.suppress(OSError, ValueError):
            if folder and (folder / CHECKPOINT).exists() and not read_settings(folder).get("ended"):
                return f"--resume={folder.name}"
        return "--resume"
