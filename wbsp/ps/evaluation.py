"""The evaluator: a process of its own that knows the network and the test set.

The parameter server proper never imports Keras; it asks this process for W_0, for the loss and
accuracy of snapshots, and for the final `model.keras`.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pathlib
import signal
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from wbsp.core.store import Snapshot
from wbsp.process.host import HOST
from wbsp.process.imports import heavy_imports
from wbsp.process.signals import SIGNALS
from wbsp.ps.checkpoint.writer import Evaluation, EvaluatorError
from wbsp.tensors.layout import TensorSpec

_DONE, _FAILED, _WORKS = "done", "failed", "works"  # what a message of the process is
_SIGN = 2.0  # seconds between two signs of work
_LEAST = 0.02  # seconds of the processor's time that are work


class EvaluatorProcess:
    """The server's handle of the evaluator process.

    make: called in the process; returns a compiled keras.Model with metrics `accuracy` and `top5`,
          and the test set, a dataset that its `evaluate` takes. Must be picklable.
    """

    def __init__(self, make: Callable[[], tuple[Any, Any]]):
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
        self._busy, self._signs = True, 0  # at first with its network

    def initial(self) -> tuple[np.ndarray, list[TensorSpec]] | None:
        """(W_0, layout) once the network is built, None before. Raises EvaluatorError."""
        while self._initial is None and self._connection.poll():
            self._initial = self._take()
        return self._initial

    def evaluate(self, snapshot: Snapshot) -> Evaluation:
        """Loss and accuracies on the whole test set; blocks. Raises EvaluatorError."""
        return Evaluation(*self._ask("evaluate", snapshot.vector))

    def save(self, snapshot: Snapshot, path: pathlib.Path) -> None:
        """Write the network with these values as a .keras file; blocks."""
        self._ask("save", snapshot.vector, str(path))

    def signs(self) -> int | None:
        return self._signs if self._busy else None

    def kill(self) -> None:
        """End the process, whatever it is doing."""
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
        with contextlib.suppress(OSError):  # the process is gone; what can still be read says why
            self._connection.send(request)
        return self._receive()

    def _receive(self) -> Any:
        """The answer that is due."""
        while (answer := self._take()) is None:
            pass
        return answer

    def _take(self) -> Any:
        """The next answer; None: a sign of work. Raises EvaluatorError."""
        try:
            word, answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(2)
            raise EvaluatorError(f"the evaluator process {_fate(self._process.exitcode)}") from None
        self._signs += 1
        if word == _WORKS:
            return None
        self._busy = False
        if word == _FAILED:
            raise EvaluatorError(answer)
        return answer


@contextlib.contextmanager
def _signals_blocked():
    """Around the start of a process that hears no SIGINT and no SIGTERM from its first moment on.

    Ctrl-C is sent to it too; the server decides.
    """
    resource_tracker.ensure_running()  # which would otherwise start within, and unblock them
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _fate(code: int | None) -> str:
    """How a process ended, from its exit code."""
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"


class _Voice:
    """The process's end of the pipe: answers, and signs of work while one is due.

    A process that is stopped, or waits for something that never comes, gives no sign.
    """

    def __init__(self, connection: Connection):
        self._connection = connection
        self._speaking = HOST.scheduler.lock()
        self._busy = True
        HOST.scheduler.thread(self._show_work, "wbsp-signs").start()

    def answer(self, word: str, answer: Any) -> None:
        """Send what was asked for. Raises OSError where the server is gone."""
        with self._speaking:
            self._busy = False
            self._connection.send((word, answer))

    def hear(self) -> Any:
        """The next request. Raises EOFError, OSError where the server is gone."""
        request = self._connection.recv()
        self._busy = True
        return request

    def _show_work(self) -> None:
        spent = time.process_time()
        while True:
            HOST.clock.sleep(_SIGN)
            if (now := time.process_time()) - spent < _LEAST:
                continue
            spent = now
            with self._speaking, contextlib.suppress(OSError):
                if self._busy:
                    self._connection.send((_WORKS, None))


def _serve(connection: Connection, make: Callable[[], tuple[Any, Any]]) -> None:
    """Body of the process, which ends when the server's side of the pipe does."""
    voice = _Voice(connection)
    try:
        _answer_requests(voice, make)
    except _ServerGone:
        pass
    except Exception as error:  # told to the server, which ends the run with this line
        text = str(error) if isinstance(error, ValueError | OSError) else repr(error)
        with contextlib.suppress(OSError):
            voice.answer(_FAILED, text)


class _ServerGone(Exception):
    """The server's end of the pipe is closed."""


def _answer_requests(voice: _Voice, make: Callable[[], tuple[Any, Any]]) -> None:
    with heavy_imports():
        import keras

        from wbsp.replica.model import open_replica
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf
            tf.config.list_physical_devices()  # TensorFlow says here, once, that there is no GPU

    model, test_set = make()
    replica = open_replica(model)
    voice.answer(_DONE, (replica.read(), replica.layout))
    os.nice(5)  # where it shares the cores with workers, training goes first
    while True:
        try:
            what, vector, *rest = voice.hear()
        except (EOFError, OSError):
            raise _ServerGone from None
        replica.adopt(replica.bring(vector), "replace")
        if what == "evaluate":
            result = model.evaluate(test_set, verbose=0, return_dict=True)
            answer = tuple(float(result[name]) for name in ("loss", "accuracy", "top5"))
        else:
            model.save(*rest)
            answer = ()
        voice.answer(_DONE, answer)
