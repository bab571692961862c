"""Checkpoints: slow work on immutable snapshots that never delays a push."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from concurrent.futures import Future

from wbsp.core.engine import Engine
from wbsp.core.rendezvous import LEAP
from wbsp.core.state import Newest
from wbsp.process.host import HOST, Host
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.ps.checkpoint.state import Snapshot

CHECKPOINT_SHARE = 0.1  # at most this part of the time goes into writing checkpoints
CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"  # the best version by evaluations
_NOTHING = Newest(-1, False, False)  # before any version


class Checkpoints:
    """Write the newest version every `period` seconds, or more rarely if that takes long.

    A sink of `Snapshots`.

    Attributes:
        begins: called with the time and the version before a file is written.
        say: called when a checkpoint cannot be written; it is tried again after a period.
    """

    def __init__(self, folder: pathlib.Path, engine: Engine, period: float,
                 begins: Callable[[float, int], None], say: Callable[[str], None],
                 on: Host = HOST):
        self._on = on
        self._folder = folder
        self._engine = engine
        self._period = period
        self._begins = begins
        self._say = say
        self._pool = on.scheduler.pool("wbsp-checkpoint")
        self._writing: tuple[Future[float], Snapshot] | None = None
        # of a run that begins, none: a standby may hold its first version
        self._written = engine.newest if engine.rendezvous.resumed else _NOTHING
        self._write_at = 0.0
        self._limited = True
        self.failed = False  # to write the newest
        self.made: float | None = None  # seconds of the run of the version in the file, if known
        self._demanded = -1  # decisions under this mark are to be durable at once

    def hurry(self) -> None:
        """Ignore period and share from here on, because the process may be killed soon."""
        self._limited = False

    def write_soon(self) -> None:
        """Write without waiting for the rest of the period."""
        self._write_at = 0.0

    def demand(self, mark: int) -> None:
        """Write the decisions under this mark of the ledger at once, unless they are durable.

        That happens even if their version is written. After a failure the next attempt writes them.
        """
        self._demanded = mark

    @property
    def writing(self) -> bool:
        """True while a checkpoint is being written."""
        return self._writing is not None

    @property
    def saved(self) -> Newest | None:
        """What the file holds; None while one is written, and before the first is."""
        return None if self.writing or self._written == _NOTHING else self._written

    @property
    def settled(self) -> bool:
        """True if the newest version, and that it is the last, is written or cannot be written."""
        return self._writing is None and (self.failed or self._written >= self._engine.newest)

    def wants(self, now: float) -> bool:
        """Return whether a checkpoint is due, and none is being written."""
        engine, failed = self._engine, self.failed
        many = engine.newest.version - self._written.version > LEAP // 2 and not failed
        due = many or now >= self._write_at or not (self._limited or failed)
        due = due and engine.newest > self._written
        urgent = engine.ledger.durable <= self._demanded
        due = due or (urgent and (not failed or now >= self._write_at))
        return due and not self.writing

    def take(self, snapshot: Snapshot) -> None:
        """Start to write a snapshot."""
        self._begins(snapshot.t, snapshot.newest.version)
        self._writing = self._pool.submit(self._write, snapshot), snapshot

    def poll(self, now: float) -> int | None:
        """Return the mark of the snapshot that has been written since the last call, or None."""
        return self.wait(now) if self._writing and self._writing[0].done() else None

    def wait(self, now: float) -> int | None:
        """Return as `poll`, once no file is being written.

        A thread writes it even then, because the main thread handles signals only while it waits.
        """
        if self._writing is None:
            return None
        path = self._folder / CHECKPOINT
        (writing, snapshot), self._writing = self._writing, None
        took, mark = 0.0, None
        try:
            took = writing.result()
        except OSError as error:
            if not self.failed:
                self._say(f"cannot write {path}: {error.strerror}; " + (
                    f"the one before it stays, trying again every {self._period:g} s"
                    if path.exists() else "trying again"))
            self.failed = True
        else:
            if self.failed:
                self._say(f"{path} is written again")
            self.failed = False
            self._written, self.made, mark = snapshot.newest, snapshot.t, snapshot.mark
        del writing  # its error's traceback would hold it, and with it the snapshot's memory
        self._write_at = now + max(self._period, took / CHECKPOINT_SHARE)
        return mark

    def abandon(self) -> None:
        """Stop writing; wait for a running write, so that none meets the next server's."""
        self._pool.shutdown(cancel_futures=True)

    def _write(self, snapshot: Snapshot) -> float:
        """Write the file in a thread; return the seconds that it took."""
        content = checkpoint.of_snapshot(snapshot)
        start = self._on.clock.monotonic()
        checkpoint.save(self._folder / CHECKPOINT, content)
        return self._on.clock.monotonic() - start
