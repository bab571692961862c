"""The runs that one server process serves, one after the other: one for each `fit` of its workers.

A worker whose process continues reports that when it has a run's final version, and introduces
itself for the next run at once, long before its next `fit` needs it. So the server knows which
workers may join, and ends when all their processes have ended.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wbsp.runlog.folder import numbered_folders, read_settings


@dataclass
class Series:
    """The series of a server's runs, and the processes of its workers.

    Attributes:
        single: the server serves one run only.
        id: of the first run, which identifies the series.
        fit: number of the run that is served, or waited for, from 1 on.
        followed: this process has served a run of the series before.
        living: workers whose processes continue, or may.
        gone: workers whose processes have ended in good order between two runs.
        readers: processes that have read versions of the run before.
        standby: the run before had a standby at its end.
        secret: of all its runs, with which a process of one run proves itself in the next.
        folders: known folders of the runs so far, by their numbers.
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
        """Return whether another run may follow one that has ended well."""
        return bool(self.living)

    @property
    def setting(self) -> str:
        """Return the setting on the server's runs for workers."""
        return "one" if self.single else "one a fit"

    def begin(self, before: dict[str, Any], run: str, folder: Path) -> dict[str, Any]:
        """Begin or resume a run; return the entries of run.json on the series.

        Args:
            before: the entries so far.
            run: the run's id.
            folder: the run's folder.
        """
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
        """Return the number of the ended run that a process's `fit` belongs to; 0: the present one.

        Args:
            series: of the run that the process was in last.
            fit: number of its `fit`.
        """
        due = fit if series == self.id else min(fit, 1)
        return due if due < self.fit and due in self.folders else 0

    def follow(self) -> None:
        """Expect another run."""
        self.followed = True
        self.fit += 1

    def lives(self, worker: int) -> None:
        """Note that a worker's session has ended, and that its process continues or may."""
        if not self.single:
            self.living.add(worker)
            self.gone.discard(worker)

    def left(self, worker: int) -> None:
        """Note that a worker's process has ended in good order."""
        self.living.discard(worker)
        self.gone.add(worker)
