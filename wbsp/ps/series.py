"""The runs that one server process serves, one after the other: one for each `fit` of its workers.

A worker whose process lives on says so when it has a run's final version, and introduces itself for
the next run at once, long before its next `fit` asks for it. So the server knows who may come, and
ends when all have gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_NAMED = 5  # workers in one line, at most


@dataclass
class Series:
    """What a server knows of the processes of its workers, between its runs and in them.

    single:   there is one run, whatever workers say
    id:       of the first run, by which all are known to belong together
    fit:      number of the run that is served, or waited for, from 1 on
    followed: this process has served a run of the series before
    living:   workers whose processes live on, and which have not introduced themselves since
    gone:     workers whose processes have ended in good order between two runs
    """

    single: bool = False
    id: str | None = None
    fit: int = 1
    followed: bool = False
    living: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)

    @property
    def goes_on(self) -> bool:
        """A run has ended well: whether another may follow."""
        return bool(self.living)

    @property
    def setting(self) -> str:
        """What workers are told of the server's runs."""
        return "one" if self.single else "one a fit"

    @property
    def awaited(self) -> str:
        """The workers in `living`, for a line: the first few indices."""
        return ", ".join(map(str, sorted(self.living)[:_NAMED]))

    def begin(self, before: dict[str, Any], run: str) -> dict[str, Any]:
        """A run of that id begins, or goes on: what run.json says of the series; `before`: what it
        said."""
        self.id = before.get("series") or self.id or run
        self.fit = before.get("fit", self.fit)
        return {"series": self.id, "fit": self.fit}

    def follow(self) -> None:
        """Another run is to come."""
        self.followed = True
        self.fit += 1

    def lives(self, worker: int) -> None:
        """A worker's part in a run, or its session before one, has ended, and not its process; or
        nobody knows, since its line has broken."""
        if not self.single:
            self.living.add(worker)

    def came(self, worker: int) -> None:
        """A worker has introduced itself."""
        self.living.discard(worker)
        self.gone.discard(worker)

    def left(self, worker: int) -> None:
        """A worker's process has ended in good order."""
        self.living.discard(worker)
        self.gone.add(worker)
