"""Evaluation and checkpoints: slow work on immutable snapshots that never delays a push."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy as np

from wbsp.core.engine import Engine
from wbsp.core.store import Snapshot, Whole
from wbsp.process.host import HOST, Host
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.tensors.layout import TensorSpec

CHECKPOINT_SHARE = 0.1  # at most this part of the time goes into writing checkpoints
CHECKPOINT = "checkpoint.safetensors"
_GRAIN = 0.1  # seconds between two looks whether a wait still makes sense
HANGS = 300.0  # seconds without a sign of work after which an evaluator counts as hanging
_NOTICE = 20.0  # seconds between two lines about that
_LOOK = 1.0  # seconds between two looks, at most


class Evaluation(NamedTuple):
    """What the test set says of one version: mean loss, top-1 and top-5 accuracy (0..1)."""

    loss: float
    accuracy: float
    top5: float


class EvaluatorError(RuntimeError):
    """The evaluator could not do its work; the message says why, in one line."""


class Evaluator(Protocol):
    """Knows the network and the test set; called in a thread, one call at a time."""

    def initial(self) -> tuple[np.ndarray, list[TensorSpec]] | None: ...

    def evaluate(self, snapshot: Snapshot) -> Evaluation: ...

    def save(self, snapshot: Snapshot, path: pathlib.Path) -> None: ...

    def signs(self) -> int | None:
        """Number of signs so far that it works at what it was asked for; None: it has no work."""

    def kill(self) -> None:
        """End its process without waiting; also called in a signal handler."""

    def close(self) -> None: ...


class EvaluatorWatch:
    """Tells an evaluator that takes its time from one that hangs: nothing waits for that for ever.
    """

    def __init__(self, evaluator: Evaluator, say: Callable[[str], None], on: Host = HOST):
        self._evaluator, self._say, self._on = evaluator, say, on
        self._signs: int | None = None
        self._silent, self._notice = 0.0, _NOTICE
        self._looked = on.clock.monotonic()

    def look(self, work: str) -> None:
        """See whether it still works at `work`. Raises EvaluatorError once it counts as hanging.

        Time between two looks does not count: this process, too, may have been stopped.
        """
        now, signs = self._on.clock.monotonic(), self._evaluator.signs()
        passed, self._looked = min(now - self._looked, _LOOK), now
        if signs is None or signs != self._signs:
            self._signs, self._silent, self._notice = signs, 0.0, _NOTICE
            return
        self._silent += passed
        if self._silent > HANGS:
            raise EvaluatorError(f"the evaluator hangs: it has not worked at {work} for {HANGS:g} "
                                 "s; its process was ended")
        if self._silent > self._notice:
            self._notice += _NOTICE
            self._say(f"the evaluator has not worked at {work} for {self._silent:.0f} s; it is "
                      f"ended after {HANGS:g} s")


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
                 period: float, state: Callable[[float], dict[str, Any]],
                 say: Callable[[str], None], alone: Callable[[], bool] = lambda: True,
                 on: Host = HOST):
        self._alone, self.wanted, self._on = alone, False, on
        self._folder, self._layout, self._engine = folder, layout, engine
        self._period, self._state, self._say = period, state, say
        self._pool = on.scheduler.pool("wbsp-checkpoint")
        self._writing: Future | None = None
        # as of `Engine.newest`
        self._written = engine.store.latest.version, engine.gathering.ended
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
        due = now >= self._write_at or not (self._limited or self.failed)
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
        self._engine.ledger.mark += 1  # whatever is decided from here on is not in this one
        self._submit(now)

    def _submit(self, now: float) -> None:
        self._mark, self._written_next = self._engine.ledger.mark, self._engine.newest
        self._writing = self._pool.submit(self._write, self._engine.store.whole(),
                                          self._state(now))

    def _take_written(self, writing: Future, now: float) -> None:
        """What became of the checkpoint that was begun; the previous one stays if it failed."""
        path, self._writing = self._folder / CHECKPOINT, None
        try:
            took = writing.result()
        except OSError as error:
            if not self.failed:
                self._say(f"cannot write {path}: {error.strerror}; the one before it stays, trying "
                          f"again every {self._period:g} s")
            self.failed, took = True, 0.0
        else:
            if self.failed:
                self._say(f"{path} is written again")
            self.failed, self._written = False, self._written_next
            if self._alone():
                ledger = self._engine.ledger
                ledger.durable = max(ledger.durable, self._mark)
        self._write_at = now + max(self._period, took / CHECKPOINT_SHARE)

    def _write(self, whole: Future[Whole], state: dict) -> float:
        snapshot, outer = whole.result()
        start = self._on.clock.monotonic()
        assert snapshot.vector is not None, "a real server's store holds tensors"
        checkpoint.save(self._folder / CHECKPOINT,
                        checkpoint.Checkpoint(snapshot.vector, self._layout, state, outer))
        return self._on.clock.monotonic() - start


class _UnderWay(NamedTuple):
    time: float
    version: int
    result: Future

    @property
    def work(self) -> str:
        return f"the evaluation of version {self.version}"


class Evaluations:
    """Every `period` seconds: the newest version is evaluated.

    take: hears of each evaluation: the time of the snapshot, its version, the result
    lost: hears why there will be no more, when the evaluator fails in mid-run
    say:  hears of an evaluator that seems to hang
    """

    def __init__(self, engine: Engine, evaluator: Evaluator | None, period: float,
                 take: Callable[[float, int, Evaluation], None], lost: Callable[[str], None],
                 say: Callable[[str], None], on: Host = HOST):
        self._watch = evaluator and EvaluatorWatch(evaluator, say, on)
        self._engine, self._evaluator, self._period = engine, evaluator, period
        self._take, self._lost, self._on = take, lost, on
        self.newest: Evaluation | None = None
        self.missing: str | None = None  # why the final version is not evaluated and saved
        self._pool = on.scheduler.pool("wbsp-evaluation")
        self._under_way: _UnderWay | None = None
        self._evaluated = -1  # newest version that was
        self._due = 0.0

    def poll(self, now: float) -> None:
        """Collect finished evaluations; start the next if due."""
        if self._evaluator is None:
            return
        try:
            if self._under_way and self._under_way.result.done():
                self._finish(self._under_way)
            if self._under_way and self._watch:
                self._watch.look(self._under_way.work)
            if not self._under_way and now >= self._due and self._newer:
                self._due = now + self._period
                self._start(self._evaluator, now)
        except EvaluatorError as error:
            self.stop(str(error))
            self._lost(str(error))

    def complete(self, now: float, path: pathlib.Path, wanted: Callable[[], bool]) -> None:
        """Evaluate the newest version, save it at `path` as a Keras model, and wait for both.

        `wanted` is asked all the time; False ends the wait. `missing` says what came of it.
        """
        if self._evaluator is None:
            return
        try:
            while self._under_way or self._newer:
                under_way = self._under_way or self._start(self._evaluator, now)
                self._wait(under_way.result, under_way.work, wanted)
                self._finish(under_way)
            saving = self._pool.submit(self._evaluator.save,
                                       self._engine.store.whole().result().snapshot, path)
            self._wait(saving, f"the file {path.name}", wanted)
            saving.result()
        except EvaluatorError as error:
            self.stop(str(error))

    def stop(self, reason: str) -> None:
        """End the evaluator, whatever it is doing."""
        if self._evaluator is not None:
            self._evaluator.close()
            self.missing = reason
        self._evaluator = self._under_way = None

    def accuracy_of(self, version: int) -> float | None:
        """The accuracy of this version, 0..1, if it was the last to be evaluated."""
        return self.newest.accuracy if self.newest and version == self._evaluated else None

    @property
    def _newer(self) -> bool:
        return self._engine.store.latest.version > self._evaluated

    def _start(self, evaluator: Evaluator, now: float) -> _UnderWay:
        store = self._engine.store
        whole, version = store.whole(), store.latest.version
        self._under_way = _UnderWay(now, version, self._pool.submit(
            lambda: evaluator.evaluate(whole.result().snapshot)))
        return self._under_way

    def _finish(self, under_way: _UnderWay) -> None:
        self._under_way = None
        self.newest, self._evaluated = under_way.result.result(), under_way.version
        self._take(under_way.time, self._evaluated, self.newest)

    def _wait(self, future: Future, work: str, wanted: Callable[[], bool]) -> None:
        """Wait until `future` is done. Raises EvaluatorError once it is no longer `wanted`, or the
        evaluator hangs."""
        while not self._on.scheduler.done(future, _GRAIN):
            if not wanted():
                raise EvaluatorError("interrupted")
            if self._watch:
                self._watch.look(work)
