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
BEST = "best.safetensors"  # the version that was the best by what evaluations say


class Checkpoints:
    """Every `period` seconds, or more rarely if that takes long: the newest version is written.

    Without a standby, what is written is durable. With one, what that holds is; then a checkpoint
    is made of a copy for the standby, so that one mark is that of both.

    state:  of the server at the time (seconds) it is called with, when the engine is at rest
    say:    hears when a checkpoint cannot be written; it is tried again after a period
    alone:  whether no standby holds anything
    wanted: one is due, of the next copy
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
        self._written_next = self._written  # once what is being written is there
        self._write_at = 0.0
        self._mark = 0  # of what is being written
        self._limited = True
        self.failed = False  # to write the newest

    def hurry(self) -> None:
        """Write without regard to period and share from here on: the process may be killed soon."""
        self._limited = False

    def write_soon(self) -> None:
        """Write without waiting for the rest of the period."""
        self._write_at = 0.0

    @property
    def writing(self) -> bool:
        """True while a checkpoint is being written."""
        return self._writing is not None

    @property
    def saved(self) -> tuple[int, bool] | None:
        """Which version the file holds, and whether it is the run's last; None while another one is
        on its way."""
        return None if self.writing else self._written

    @property
    def settled(self) -> bool:
        """True if the newest version is written, or could not be; and that it is the last."""
        return self._writing is None and (self.failed or self._written >= self._engine.newest)

    def write(self, now: float) -> None:
        """Write what nothing is pending of, and wait for it.

        So W_0 is there before anything is decided: without it, no restarted server could make use
        of what workers keep.
        """
        self._engine.at_rest(self._start_writing, now)
        if self._writing:
            self._take_written(self._writing, now)

    def poll(self, now: float) -> None:
        """Start what is due."""
        if self._writing and self._writing.done():
            self._take_written(self._writing, now)
        many = self._engine.newest[0] - self._written[0] > LEAP // 2 and not self.failed
        due = many or now >= self._write_at or not (self._limited or self.failed)
        due = due and not self._writing and self._engine.newest > self._written
        self.wanted = due and not self._alone()
        if due and not self.wanted:
            self._engine.at_rest(self._start_writing, now)

    def write_copy(self, now: float) -> None:
        """Write what a standby is sent at this moment, if a checkpoint is due."""
        if self.wanted:
            self.wanted = False
            self._submit(now)

    def finish(self, now: float) -> None:
        """Wait until all that was counted is written, with the newest version.

        That is a thread's work here too: only who waits for one hears signals.
        """
        if self._writing:
            self._take_written(self._writing, now)
        self._alone = lambda: True  # there is nothing more to be copied
        self.write(now)
        if self.failed:
            self._say(f"version {self._engine.store.latest.version} could not be saved in "
                      f"{self._folder / CHECKPOINT}")

    def abandon(self) -> None:
        """What was begun is there or not, and nothing more will be written."""
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
        """What became of the checkpoint that was begun; the previous one stays if it failed."""
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
