"""The runs that one server process serves, one after the other: one for each `fit` of its workers.

A worker whose process lives on says so when it has a run's final version, and introduces itself for
the next run at once, long before its next `fit` asks for it. So the server knows who may come, and
ends when all have gone.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wbsp.runlog.folder import numbered_folders, read_settings


@dataclass
class Series:
    """What a server knows of the processes of its workers, between its runs and in them.

    single:   there is one run, whatever workers say
    id:       of the first run, by which all are known to belong together
    fit:      number of the run that is served, or waited for, from 1 on
    followed: this process has served a run of the series before
    living:   workers whose processes live on, or may
    gone:     workers whose processes have ended in good order between two runs
    readers:  processes that have read versions of the run before
    standby:  the run before had one at its end
    secret:   of all its runs: who has followed one proves itself to the server of the next
    folders:  of the runs so far, as far as they are known, by their numbers
    """

    single: bool = False
    id: str | None = None
    fit: int = 1
    followed: bool = False
    living: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    readers: int = 0
    standby: bool = False
    secret: str = ""
    folders: dict[int, Path] = field(default_factory=dict)

    @property
    def goes_on(self) -> bool:
        """A run has ended well: whether another may follow."""
        return bool(self.living)

    @property
    def setting(self) -> str:
        """What workers are told of the server's runs."""
        return "one" if self.single else "one a fit"

    def begin(self, before: dict[str, Any], run: str, folder: Path) -> dict[str, Any]:
        """A run of that id begins, or goes on: what run.json says of the series; `before`: what it
        said."""
        self.id = before.get("series") or self.id or run
        self.fit = before.get("fit", self.fit)
        self.folders[self.fit] = folder
        for path in numbered_folders(folder.parent) if len(self.folders) < self.fit else ():
            with contextlib.suppress(OSError, ValueError):
                settings = read_settings(path)
                if settings.get("series") == self.id and settings.get("ended"):
                    self.folders.setdefault(settings["fit"], path)
        return {"series": self.id, "fit": self.fit}

    def passes(self, series: str | None, fit: int) -> int:
        """Number of the run that a process's `fit` was to be in, and that has ended; 0: it is the
        one that is served. `series`: of the run that the process was in last."""
        due = fit if series == self.id else min(fit, 1)
        return due if due < self.fit and due in self.folders else 0

    def follow(self) -> None:
        """Another run is to come."""
        self.followed = True
        self.fit += 1

    def lives(self, worker: int) -> None:
        """A worker's part in a run, or its session before one, has ended, and not its process; or
        nobody knows, since its line has broken."""
        if not self.single:
            self.living.add(worker)
            self.gone.discard(worker)

    def left(self, worker: int) -> None:
        """A worker's process has ended in good order."""
        self.living.discard(worker)
        self.gone.add(worker)
