"""Evaluation of versions, which never delays a push, and the evaluator: a separate process
with the network and the test set.

The parameter server itself never imports Keras; it requests W_0, the loss and accuracy of
snapshots, and the final `model.keras` from this process.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pathlib
import signal
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.store import Snapshot as Stored
from wbsp.core.store import Whole
from wbsp.process.host import HOST, Host
from wbsp.process.imports import heavy_imports
from wbsp.process.signals import SIGNALS
from wbsp.process.throttle import Throttle
from wbsp.ps.checkpoint.state import Snapshot
from wbsp.ps.full_disk import FullDisk
from wbsp.tensors.layout import TensorSpec, difference

_LEAST = 0.02  # seconds of processor time that count as progress
_GRAIN = 0.1  # seconds between two checks whether to continue a wait
_NOTICE = 20.0  # seconds between two lines about that
_LOOK = 1.0  # seconds between two checks, at most


class Evaluation(NamedTuple):
    """Results of one version on the test set: mean loss, top-1 and top-5 accuracy (0..1)."""

    loss: float
    accuracy: float
    top5: float


class EvaluatorError(RuntimeError):
    """The evaluator failed; the message has the reason, in one line."""


class Evaluator(Protocol):
    """An evaluator with the network and the test set; called in a thread, one call at a time."""

    def initial(self) -> tuple[np.ndarray, list[TensorSpec]] | None: ...

    def evaluate(self, snapshot: Stored) -> Evaluation: ...

    def save(self, snapshot: Stored, path: pathlib.Path) -> None:
        """Write this version as a model, whole or not at all. Raises OSError: the disk fails."""

    def signs(self) -> int | None:
        """Return the number of observed signs of progress; None: it has no work."""

    def kill(self) -> None:
        """End its process without waiting; also called in a signal handler."""

    def close(self) -> None: ...


class EvaluatorWatch:
    """Watchdog that distinguishes a slow evaluator from one that hangs."""

    def __init__(self, evaluator: Evaluator, say: Callable[[str], None], on: Host = HOST):
        self.evaluator = evaluator
        self.on = on
        self.pool = on.scheduler.pool("wbsp-evaluation")  # calls the evaluator
        self.say = say
        self._signs: int | None = None
        self._silent = 0.0
        self._notice = Throttle(_NOTICE, _NOTICE)  # in seconds of silence
        self._looked = on.clock.monotonic()

    def initial(self) -> tuple[np.ndarray, list[TensorSpec]] | None:
        """Return the evaluator's W_0 and layout, or None before they are ready.

        Raises:
            EvaluatorError: it failed, or hangs.
        """
        initial = self.evaluator.initial()
        if initial is None:
            self.look("the network and the test set")
        return initial

    def look(self, work: str) -> None:
        """Check that it still works at `work`.

        A long time between two checks does not count, because this process, too, may have been
        suspended.

        Raises:
            EvaluatorError: it hangs.
        """
        now = self.on.clock.monotonic()
        signs = self.evaluator.signs()
        passed = min(now - self._looked, _LOOK)
        self._looked = now
        if signs is None or signs != self._signs:
            self._signs = signs
            self._silent = 0.0
            self._notice.rest(0.0)
            return
        self._silent += passed
        if self._silent > timeouts.EVALUATOR_HANGS:
            raise EvaluatorError(f"the evaluator hangs: it has not worked at {work} for "
                                 f"{timeouts.EVALUATOR_HANGS:g} s; its process was ended")
        if self._notice.due(self._silent):
            self.say(f"the evaluator has not worked at {work} for {self._silent:.0f} s; ending it "
                     f"after {timeouts.EVALUATOR_HANGS:g} s")


class _UnderWay(NamedTuple):
    time: float
    version: int
    result: Future

    @property
    def work(self) -> str:
        return f"the evaluation of version {self.version}"


class Evaluations:
    """Evaluate the newest version every `period` seconds; a sink of `Snapshots`.

    Args:
        take: called with the time of the snapshot, its version and the result of each evaluation.
        lost: called with the reason if the evaluator fails in mid-run.
    """

    def __init__(self, engine: Engine, layout: list[TensorSpec], watch: EvaluatorWatch | None,
                 period: float, take: Callable[[float, int, Evaluation], None],
                 lost: Callable[[str], None]):
        self._engine = engine
        self._layout = layout
        self._watch = watch  # None: no evaluator, or it has failed
        self._period = period
        self._ready = False  # its network is built
        self._take = take
        self._lost = lost
        self.missing: str | None = None  # why the final version is not evaluated and saved
        self._under_way: _UnderWay | None = None
        self.evaluated = -1  # newest evaluated version
        self._due = 0.0

    def prepare(self) -> None:
        """Check whether the evaluator's network is built.

        Raises:
            EvaluatorError: it hangs or failed, or its network is not the run's.
        """
        if self._ready or self._watch is None:
            return
        initial = self._watch.initial()
        if initial is None:
            return
        self._ready = True
        if reason := difference(self._layout, initial[1]):
            raise EvaluatorError(f"the checkpoint is of another model: {reason} (here: the "
                                 "checkpoint, there: --model); resume with the same --model")

    def poll(self) -> None:
        """Collect a finished evaluation."""
        watch, under_way = self._watch, self._under_way
        if watch is None or under_way is None:
            return
        try:
            if under_way.result.done():
                self._finish(under_way)
            else:
                watch.look(under_way.work)
        except EvaluatorError as error:
            self.stop(str(error))
            self._lost(str(error))

    def wants(self, now: float) -> bool:
        """Return whether an evaluation is due."""
        return (self._watch is not None and self._ready and not self._under_way
                and now >= self._due and self._newer and not self._engine.done)

    def take(self, snapshot: Snapshot) -> None:
        """Start to evaluate a version."""
        assert self._watch is not None
        self._due = snapshot.t + self._period
        self._start(self._watch, snapshot.t, snapshot.whole)

    def complete(self, now: float, path: pathlib.Path, wanted: Callable[[], bool]) -> None:
        """Evaluate the newest version, save it at `path` as a Keras model, and wait for both.

        A full disk is waited for as for the run's last version. `wanted` is called repeatedly;
        False ends the wait. `missing` has the reason of a failure.
        """
        watch = self._watch
        if watch is None:
            return
        whole = self._engine.store.whole()
        try:
            while self._under_way or self._newer:
                under_way = self._under_way or self._start(watch, now, whole)
                self._wait(watch, under_way.result, under_way.work, wanted)
                self._finish(under_way)
            self._save(watch, whole, path, wanted)
        except EvaluatorError as error:
            self.stop(str(error))

    def stop(self, reason: str) -> None:
        """End the evaluator in any state."""
        if self._watch is not None:
            self._watch.evaluator.close()
            self.missing = reason
        self._watch = self._under_way = None

    @property
    def _newer(self) -> bool:
        return self._engine.store.latest.version > self.evaluated

    def _start(self, watch: EvaluatorWatch, now: float, whole: Future[Whole]) -> _UnderWay:
        self._under_way = _UnderWay(now, self._engine.store.latest.version, watch.pool.submit(
            lambda: watch.evaluator.evaluate(whole.result().snapshot)))
        return self._under_way

    def _finish(self, under_way: _UnderWay) -> None:
        self._under_way = None
        found = under_way.result.result()
        self.evaluated = under_way.version
        self._take(under_way.time, self.evaluated, found)

    def _save(self, watch: EvaluatorWatch, whole: Future[Whole], path: pathlib.Path,
              wanted: Callable[[], bool]) -> None:
        """Have the newest version saved; try again where the disk is full.

        Raises:
            EvaluatorError: it cannot be saved, is no longer `wanted`, or the evaluator fails.
        """
        snapshot, what = whole.result().snapshot, f"cannot write {path}"

        def save() -> None:
            saving = watch.pool.submit(watch.evaluator.save, snapshot, path)
            self._wait(watch, saving, f"the file {path.name}", wanted)
            saving.result()

        try:
            FullDisk(watch.say, path.parent).persist(save, what, watch.on.clock, wanted)
        except OSError as error:
            raise EvaluatorError(f"{what}: {error.strerror or error}" if wanted()
                                 else "interrupted") from None

    @staticmethod
    def _wait(watch: EvaluatorWatch, future: Future, work: str,
              wanted: Callable[[], bool]) -> None:
        """Wait until `future` is done.

        Raises:
            EvaluatorError: it is no longer `wanted`, or the evaluator hangs.
        """
        while not watch.on.scheduler.done(future, _GRAIN):
            if not wanted():
                raise EvaluatorError("interrupted")
            watch.look(work)


class EvaluatorProcess:
    """The server's handle of the evaluator process.

    Args:
        make: called in the process; returns a compiled keras.Model with metrics `accuracy` and
            `top5`, and the test set, a dataset that its `evaluate` takes. Must be picklable.
    """

    def __init__(self, make: Callable[[], tuple[Any, Any]]):
        import psutil  # not installed on machines that only serve

        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make), daemon=True,
                                        name="wbsp-evaluator")
        with _signals_blocked():
            self._process.start()
        theirs.close()
        self.pid = self._process.pid
        atexit.register(self.close)  # the process ignores the signal by which Python would end it
        self._initial: tuple[np.ndarray, list[TensorSpec]] | None = None
        self._busy = True  # at first with its network
        self._usage = psutil.Process(self.pid)
        self._gone = psutil.Error  # raised if it has ended
        self._used = 0.0  # seconds of processor time at the last check
        self._look_at = 0.0
        self._signs = 0

    def initial(self) -> tuple[np.ndarray, list[TensorSpec]] | None:
        """Return (W_0, layout) once the network is built, None before.

        Raises:
            EvaluatorError: the process failed.
        """
        if self._initial is None and self._connection.poll():
            self._initial = self._receive()
        return self._initial

    def evaluate(self, snapshot: Stored) -> Evaluation:
        """Return loss and accuracies on the whole test set; blocks.

        Raises:
            EvaluatorError: the process failed.
        """
        return Evaluation(*self._ask("evaluate", snapshot.vector))

    def save(self, snapshot: Stored, path: pathlib.Path) -> None:
        """Write the network with these values as a .keras file; blocks.

        Raises:
            OSError: the disk fails.
            EvaluatorError: the process failed.
        """
        if problem := self._ask("save", snapshot.vector, str(path)):
            raise OSError(*problem)

    def signs(self) -> int | None:
        """Return the number of checks with new processor time; a process that hangs uses none."""
        if self._busy and (now := HOST.clock.monotonic()) >= self._look_at:
            self._look_at = now + timeouts.EVALUATOR_SIGN
            with contextlib.suppress(self._gone):
                used = sum(self._usage.cpu_times()[:2])  # of user and system
                self._signs += used - self._used >= _LEAST
                self._used = used
        return self._signs if self._busy else None

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> None:
        """End the process and wait until it has."""
        atexit.unregister(self.close)
        self.kill()
        self._process.join()

    def _ask(self, *request: Any) -> Any:
        if self._initial is None:  # a resumed run begins without W_0
            self._initial = self._receive()
        self._busy = True
        with contextlib.suppress(OSError):  # the process has ended; its last answer has the reason
            self._connection.send(request)
        return self._receive()

    def _receive(self) -> Any:
        """Return the answer that is due.

        Raises:
            EvaluatorError: the process failed.
        """
        try:
            well, answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(2)
            raise EvaluatorError(f"the evaluator process {_fate(self._process.exitcode)}") from None
        self._busy = False
        if not well:
            raise EvaluatorError(answer)
        return answer


@contextlib.contextmanager
def _signals_blocked():
    """Block SIGINT and SIGTERM in the body, for a process that is started there.

    The terminal sends Ctrl-C to it, too; the server decides when it ends.
    """
    resource_tracker.ensure_running()  # otherwise it would start in the body, and unblock them
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _fate(code: int | None) -> str:
    """Describe how a process ended, from its exit code."""
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"


def _serve(connection: Connection, make: Callable[[], tuple[Any, Any]]) -> None:
    """Run the process: each answer is True and the result, or False and the reason of a failure.

    The server ends the run after a failure.
    """
    try:
        _answer_requests(connection, make)
    except Exception as error:
        text = str(error) if isinstance(error, ValueError | OSError) else repr(error)
        with contextlib.suppress(OSError):  # the server has ended
            connection.send((False, text))


def _answer_requests(connection: Connection, make: Callable[[], tuple[Any, Any]]) -> None:
    """Answer until the server's side of the pipe ends."""
    with heavy_imports():
        import keras

        from wbsp.replica.model import open_replica
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf
            tf.config.list_physical_devices()  # TensorFlow prints its warning without a GPU here

    model, test_set = make()
    replica = open_replica(model)
    connection.send((True, (replica.read(), replica.layout)))
    os.nice(5)  # training has priority if workers share the cores
    while True:
        try:
            what, vector, *rest = connection.recv()
        except (EOFError, OSError):
            return
        replica.adopt(replica.bring(vector), "replace")
        if what == "evaluate":
            result = model.evaluate(test_set, verbose=0, return_dict=True)
            answer: tuple[Any, ...] = tuple(
                float(result[name]) for name in ("loss", "accuracy", "top5"))
        else:
            answer = _saved(model, *rest)
        connection.send((True, answer))


def _saved(model: Any, path: str) -> tuple[Any, ...]:
    """Write a model whole; return number and text of the error of a disk that fails, or nothing."""
    whole = pathlib.Path(path)
    beside = whole.with_name(f".{whole.name}")
    try:
        model.save(str(beside))
        beside.replace(whole)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        return error.errno, error.strerror or str(error)
    return ()
