"""Checkpoints: slow work on immutable snapshots that never delays a push."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from concurrent.futures import Future

from wbsp.core.engine import Engine
from wbsp.core.rendezvous import LEAP
from wbsp.core.store import Whole
from wbsp.process.host import HOST, Host
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.ps.checkpoint.state import RunState
from wbsp.tensors.frozen import NOTHING, FrozenValues
from wbsp.tensors.layout import TensorSpec

CHECKPOINT_SHARE = 0.1  # at most this part of the time goes into writing checkpoints
CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"  # the best version by evaluations


class Checkpoints:
    """Write the newest version every `period` seconds, or more rarely if that takes long.

    Without a standby, written versions are durable. With one, replicated versions are durable; then
    a checkpoint is made from a snapshot for the standby, so that both have one mark.

    Attributes:
        state: state(now) returns the server's state at `now` seconds, with the engine at rest.
        say: called when a checkpoint cannot be written; it is tried again after a period.
        alone: returns whether no standby holds a snapshot.
        wanted: a checkpoint of the next snapshot is due.
    """

    def __init__(self, folder: pathlib.Path, layout: list[TensorSpec], engine: Engine,
                 period: float, state: Callable[[float], RunState],
                 say: Callable[[str], None], alone: Callable[[], bool] = lambda: True,
                 on: Host = HOST, frozen: FrozenValues = NOTHING):
        self._alone = alone
        self.wanted = False
        self._on = on
        self._folder = folder
        self._layout = layout
        self._frozen = frozen
        self._engine = engine
        self._period = period
        self._state = state
        self._say = say
        self._pool = on.scheduler.pool("wbsp-checkpoint")
        self._writing: Future | None = None
        # as of `Engine.newest`
        self._written = engine.store.latest.version, engine.rendezvous.ended
        self._written_next = self._written  # once the running write is done
        self._write_at = 0.0
        self._mark = 0  # of the running write
        self._limited = True
        self.failed = False  # to write the newest
        self._demanded = -1  # decisions under this mark are to be durable at once

    def hurry(self) -> None:
        """Ignore period and share from here on, because the process may be killed soon."""
        self._limited = False

    def write_soon(self) -> None:
        """Write without waiting for the rest of the period."""
        self._write_at = 0.0

    def demand(self, mark: int) -> None:
        """Write at once what was decided under this mark of the ledger, unless it is durable, even
        if its version is written; after a failure, at the next attempt."""
        self._demanded = mark

    @property
    def writing(self) -> bool:
        """True while a checkpoint is being written."""
        return self._writing is not None

    @property
    def saved(self) -> tuple[int, bool] | None:
        """The version in the file, and whether it is the run's last; None while one is written."""
        return None if self.writing else self._written

    @property
    def settled(self) -> bool:
        """True if the newest version, and that it is the last, is written or cannot be written."""
        return self._writing is None and (self.failed or self._written >= self._engine.newest)

    def write(self, now: float) -> None:
        """Write the newest version, with nothing pending, and wait for it.

        This writes W_0 before any decision, because without it no restarted server could use the
        workers' resend buffers.
        """
        self._engine.at_rest(self._start_writing, now)
        if self._writing:
            self._take_written(self._writing, now)

    def poll(self, now: float) -> None:
        """Start a checkpoint if one is due."""
        if self._writing and self._writing.done():
            self._take_written(self._writing, now)
        many = self._engine.newest[0] - self._written[0] > LEAP // 2 and not self.failed
        due = many or now >= self._write_at or not (self._limited or self.failed)
        due = due and self._engine.newest > self._written
        urgent = self._engine.ledger.durable <= self._demanded
        due = due or (urgent and (not self.failed or now >= self._write_at))
        due = due and not self._writing
        self.wanted = due and not self._alone()
        if due and not self.wanted:
            self._engine.at_rest(self._start_writing, now)

    def write_copy(self, now: float) -> None:
        """Write the snapshot that is sent to a standby now, if a checkpoint is due."""
        if self.wanted:
            self.wanted = False
            self._submit(now)

    def finish(self, now: float) -> None:
        """Wait until the newest version is written.

        A thread writes here, too, because the main thread handles signals only while it waits.
        """
        if self._writing:
            self._take_written(self._writing, now)
        self._alone = lambda: True  # no further snapshot follows
        self.write(now)
        if self.failed:
            self._say(f"version {self._engine.store.latest.version} could not be saved in "
                      f"{self._folder / CHECKPOINT}")

    def abandon(self) -> None:
        """Stop writing; wait for a running write, so that none meets the next server's."""
        self._pool.shutdown(cancel_futures=True)

    def _start_writing(self, now: float) -> None:
        if self._writing or not self._alone():
            return  # since it was asked for
        self._engine.ledger.next_mark()
        self._submit(now)

    def _submit(self, now: float) -> None:
        self._mark = self._engine.ledger.mark
        self._written_next = self._engine.newest
        self._writing = self._pool.submit(self._write, self._engine.store.whole(),
                                          self._state(now))

    def _take_written(self, writing: Future, now: float) -> None:
        """Handle the result of a write; the previous checkpoint stays if it failed."""
        path = self._folder / CHECKPOINT
        self._writing = None
        try:
            took = writing.result()
        except OSError as error:
            if not self.failed:
                self._say(f"cannot write {path}: {error.strerror}; the one before it stays, trying "
                          f"again every {self._period:g} s")
            self.failed = True
            took = 0.0
        else:
            if self.failed:
                self._say(f"{path} is written again")
            self.failed = False
            self._written = self._written_next
            if self._alone():
                self._engine.ledger.saved(self._mark)
        self._write_at = now + max(self._period, took / CHECKPOINT_SHARE)

    def _write(self, whole: Future[Whole], state: RunState) -> float:
        snapshot, outer = whole.result()
        start = self._on.clock.monotonic()
        assert snapshot.vector is not None, "a real server's store holds tensors"
        checkpoint.save(self._folder / CHECKPOINT,
                        checkpoint.Checkpoint(snapshot.vector, self._layout, state, outer,
                                              self._frozen))
        return self._on.clock.monotonic() - start
