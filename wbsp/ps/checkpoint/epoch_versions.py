"""The version of each epoch of the run's shared data: the first that holds all of the epoch.

While a process validates such versions, the newest one is kept in memory until a process requests
it. Then it is written to a file next to the checkpoint. So at most one version is in memory, and
one is being written, however long a validation takes.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from wbsp.core.engine import Engine
from wbsp.process.host import HOST, Host
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.ps.checkpoint.state import Snapshot

NAME = "version-{}.safetensors"  # of a file with a version that a process reads


@dataclass(eq=False)
class EpochVersion:
    """The version of one epoch.

    Attributes:
        epoch: 0, 1 ...
        t: seconds of the run at which it was made.
        snapshot: of the version, until it is written.
        problem: why its file cannot be written, or "".
    """

    epoch: int
    version: int
    t: float
    snapshot: Snapshot | None
    writing: Future[None] | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        return NAME.format(self.version)

    def begin(self, write: Callable[[str, Snapshot], Future[None]]) -> None:
        """Start to write the file, unless that has been started."""
        if self.snapshot is not None and self.writing is None:
            self.writing = write(self.name, self.snapshot)

    @property
    def written(self) -> bool:
        """Whether the file is written."""
        if self.writing is not None and self.writing.done():
            error = self.writing.exception()
            self.problem = "" if error is None else f"{self.name} cannot be written: {error}"
            self.writing = self.snapshot = None
        return self.snapshot is None and not self.problem


class EpochVersions:
    """The epochs' versions of one run; used by the event loop.

    Attributes:
        wanted: a process requests such versions; before, none is kept.
        newest: the newest one, or None.
    """

    def __init__(self, folder: pathlib.Path, engine: Engine, on: Host = HOST):
        self._folder = folder
        self._engine = engine
        self._on = on
        self._pool: Executor | None = None
        self.wanted = engine.measured is not None  # by a process before
        self.newest: EpochVersion | None = None
        self._due = False  # an epoch is complete since the last snapshot

    @property
    def _complete(self) -> int:
        """Number of the newest complete epoch, or -1."""
        work = self._engine.work
        return -1 if work is None else work.ledger.epoch - 1

    def trained(self) -> None:
        """Note that the newest version, or the next, completes one or several epochs."""
        self._due = self.wanted

    def wants(self, now: float) -> bool:
        """Return whether the version of an epoch is to be kept; a sink of `Snapshots`."""
        return self._due and self._complete > (-1 if self.newest is None else self.newest.epoch)

    def take(self, snapshot: Snapshot) -> None:
        """Keep a version."""
        self._due = False
        self.newest = EpochVersion(self._complete, snapshot.state.version, snapshot.t, snapshot)

    def there(self, one: EpochVersion) -> bool:
        """Return whether its file is written; start writing it unless it has a `problem`."""
        one.begin(self._submit)
        return one.written

    def want(self) -> None:
        """Keep such versions from here on."""
        self.wanted = True

    def close(self) -> None:
        """Write no more files, and keep none."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self.newest = None

    def _submit(self, name: str, snapshot: Snapshot) -> Future[None]:
        self._pool = self._pool or self._on.scheduler.pool("wbsp-epochs")
        return self._pool.submit(self._write, name, snapshot)

    def _write(self, name: str, snapshot: Snapshot) -> None:
        content = checkpoint.of_snapshot(snapshot)
        checkpoint.save(self._folder / name, content._replace(outer={}))
