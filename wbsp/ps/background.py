"""Evaluation and checkpoints: slow work on immutable snapshots that never delays a push."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from wbsp.layout import TensorSpec
from wbsp.ps import checkpoint
from wbsp.ps.engine import Engine
from wbsp.ps.store import Snapshot

CHECKPOINT_SHARE = 0.1  # at most this part of the time goes into writing checkpoints
CHECKPOINT = "checkpoint.safetensors"


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

    def close(self) -> None: ...


class Background:
    """Every `period` seconds: evaluate the newest version and write a checkpoint of it.

    state: of the server at the time (seconds) it is called with, when the engine is at rest
    say:   hears when a checkpoint cannot be written; it is tried again after a period
    """

    def __init__(self, folder: pathlib.Path, layout: list[TensorSpec], engine: Engine,
                 period: float, evaluator: Evaluator | None,
                 state: Callable[[float], dict[str, Any]], say: Callable[[str], None]):
        self._folder, self._layout, self._engine = folder, layout, engine
        self._period, self._evaluator = period, evaluator
        self._state, self._say = state, say
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="wbsp-background")
        self._evaluating: tuple[float, Snapshot, Future] | None = None
        self._writing: Future | None = None
        self._evaluated = -1  # newest version that was
        self._written = engine.store.latest.version
        self.failed = False  # to write the newest checkpoint
        self._evaluate_at = self._write_at = 0.0

    def poll(self, now: float) -> tuple[float, int, Evaluation] | None:
        """Start what is due; return (time of the snapshot, version, evaluation) once it is there.

        Raises what the evaluator raised.
        """
        result = None
        if self._evaluating and self._evaluating[2].done():
            result = self._take()
        snapshot = self._engine.store.latest
        if (self._evaluator and not self._evaluating and now >= self._evaluate_at
                and snapshot.version > self._evaluated):
            self._evaluate_at = now + self._period
            self._start(snapshot, now)
        if self._writing and self._writing.done():
            self._take_written(now)
        if not self._writing and now >= self._write_at and snapshot.version > self._written:
            self._engine.at_rest(self._start_writing, now)
        return result

    def finish(self, now: float, final: bool) -> list[tuple[float, int, Evaluation]]:
        """End what runs, write the newest version; with `final` also evaluate and save it."""
        results = [self._take()] if self._evaluating else []
        if self._writing:
            self._take_written(now)
        self._engine.at_rest(self._start_writing, now)
        if self._writing:
            self._take_written(now)
        snapshot = self._engine.store.latest
        if self.failed:
            self._say(f"version {snapshot.version} could not be saved in "
                      f"{self._folder / CHECKPOINT}")
        if final and self._evaluator:
            if snapshot.version > self._evaluated:
                self._start(snapshot, now)
                results.append(self._take())
            self._evaluator.save(snapshot, self._folder / "model.keras")
        self._pool.shutdown()
        return results

    def _start(self, snapshot: Snapshot, now: float) -> None:
        future = self._pool.submit(self._evaluator.evaluate, snapshot)
        self._evaluating = now, snapshot, future

    def _take(self) -> tuple[float, int, Evaluation]:
        started, snapshot, future = self._evaluating
        self._evaluating = None
        self._evaluated = snapshot.version
        return started, snapshot.version, future.result()

    def _start_writing(self, now: float) -> None:
        self._writing = self._pool.submit(self._write, self._engine.store.latest, self._state(now))

    def _take_written(self, now: float) -> None:
        """What became of the checkpoint that was begun; the previous one stays if it failed."""
        path, writing, self._writing = self._folder / CHECKPOINT, self._writing, None
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
            self.failed = False
        self._write_at = now + max(self._period, took / CHECKPOINT_SHARE)

    def _write(self, snapshot: Snapshot, state: dict) -> float:
        start = time.monotonic()
        checkpoint.save(self._folder / CHECKPOINT,
                        checkpoint.Checkpoint(snapshot.vector, self._layout, state))
        self._written = snapshot.version
        return time.monotonic() - start
