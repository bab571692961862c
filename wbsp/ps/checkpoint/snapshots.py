"""Snapshots: the newest version with its state, who receives it, and what is durable.

A snapshot is made when nothing is pending, so that version and state are of one moment. It goes to
all sinks that want one then: the checkpoint's file, the standby, the versions of epochs, the
evaluator.

Durable is what the standby holds, if it holds a snapshot, and otherwise what the file holds. While
a standby holds a snapshot, the file is made of one that the standby takes, too: both have its mark,
so that workers keep all that either of them lacks. A standby that no part of a snapshot reaches at
the end of a run is left behind (`parting`); the file then holds the last version first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from wbsp.core.engine import Engine
from wbsp.ps.checkpoint.state import RunState, Snapshot
from wbsp.ps.checkpoint.writer import Checkpoints
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import TensorSpec


class Sink(Protocol):
    """A user of snapshots."""

    def wants(self, now: float) -> bool:
        """Return whether it would take a snapshot that is made `now`, in seconds of the run."""

    def take(self, snapshot: Snapshot) -> None: ...


class StandbySink(Sink, Protocol):
    """The standby, or its absence."""

    @property
    def alone(self) -> bool:
        """True if no standby holds a snapshot."""

    @property
    def free(self) -> bool:
        """True if a standby can be sent a snapshot now."""

    @property
    def parting(self) -> bool:
        """True if the run ends without its standby."""

    def named(self) -> bool:
        """Return whether a later server of the run would ask there; note it if possible."""


class Snapshots:
    """The snapshots of one run; used by the event loop.

    Args:
        state: state(now) returns the server's state at `now` seconds, with the engine at rest.
        layout, frozen: as in `Snapshot`.
        others: sinks that make nothing durable.
    """

    def __init__(self, engine: Engine, state: Callable[[float], RunState],
                 layout: list[TensorSpec], frozen: FrozenValues, file: Checkpoints,
                 standby: StandbySink, *others: Sink):
        self.engine = engine
        self.state = state
        self._layout, self._frozen = layout, frozen
        self._file = file
        self._standby = standby
        self._others = others
        self._ends = False  # no further snapshot for the standby follows
        self._in_file = 0  # mark of the newest snapshot that was written to the file

    @property
    def saved(self) -> bool:
        """True if the newest version is in the checkpoint, or cannot be written."""
        return self._file.settled

    def poll(self, now: float) -> None:
        """Handle a written file, and make a snapshot if one is wanted."""
        self._written(self._file.poll(now))
        self.request(now)

    def request(self, now: float) -> None:
        """Make a snapshot for the sinks that want one, as soon as nothing is pending."""
        if self._wanted(now):
            self.engine.at_rest(self._make, now)

    def write(self, now: float) -> None:
        """Write the newest version, with nothing pending, and wait for it."""
        self.engine.at_rest(self._write, now)
        self._written(self._file.wait(now))

    def finish(self, now: float) -> None:
        """Write the last version: no snapshot follows."""
        self._written(self._file.wait(now))
        self._ends = True
        self.write(now)

    def decides(self) -> None:
        """Note that the file decides what is durable, because the standby's snapshot is lost.

        The file's content is durable from here on, and the workers must learn that before the next
        mark: a worker keeps its unsaved pushes in two sums, and would otherwise merge pushes that
        the file has with pushes that it lacks. The file is written again soon.
        """
        self.engine.ledger.saved(self._in_file)
        self._file.write_soon()

    def held(self, mark: int) -> None:
        """Note that the standby holds the snapshot of this mark."""
        self.engine.ledger.saved(mark)

    def _written(self, mark: int | None) -> None:
        if mark is None:
            return
        self._in_file = mark
        if self._ends or self._standby.alone:
            self.engine.ledger.saved(mark)

    def _wanted(self, now: float) -> list[Sink]:
        """Return the sinks of a snapshot that is made `now`."""
        file, standby = self._file, self._standby
        written, copied = file.wants(now), False
        if standby.alone:
            copied = not (written or file.writing) and standby.free and standby.wants(now)
        elif not standby.parting:
            copied = standby.free and (written or standby.wants(now))
            written = written and copied
        sinks: list[Sink] = [one for one in self._others if one.wants(now)]
        return [*([standby] if copied else ()), *([file] if written else ()), *sinks]

    def _make(self, now: float) -> None:
        sinks = self._wanted(now)
        if self._standby in sinks and not self._standby.named():
            sinks.remove(self._standby)
        self._give(sinks, now)

    def _write(self, now: float) -> None:
        if not self._file.writing:
            self._give([self._file], now)

    def _give(self, sinks: list[Sink], now: float) -> None:
        if not sinks:  # no more, since the request
            return
        ledger = self.engine.ledger
        if self._file in sinks or self._standby in sinks:
            ledger.next_mark()
        snapshot = Snapshot(now, ledger.mark, self.engine.newest, self.state(now),
                            self.engine.store.whole(), self._layout, self._frozen)
        for sink in sinks:
            sink.take(snapshot)
