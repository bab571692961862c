"""The evaluator: a process with the network and the test set, which reads the run's versions.

The parameter server itself never imports Keras. It starts this process, and receives the loss and
accuracy of versions as from any other reader; the last version is saved as `model.keras`.
"""

import atexit
import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing import resource_tracker

from wbsp import timeouts
from wbsp.access import Access
from wbsp.process.host import HOST
from wbsp.process.imports import heavy_imports
from wbsp.process.signals import SIGNALS
from wbsp.process.throttle import Throttle
from wbsp.ps.evaluation import EvaluatorError
from wbsp.reading import Reader
from wbsp.runlog.console import say

_LEAST = 0.02  # seconds of processor time that count as progress
_NOTICE, _AGAIN = 20.0, 1.0  # seconds between two lines, and two attempts, on a full disk


class EvaluatorProcess:
    """The server's handle of the process: see `wbsp.ps.evaluation.Evaluator`."""

    def __init__(self, make, at):
        """Start it.

        Args:
            make: called in the process; returns a compiled keras.Model with metrics `accuracy` and
                `top5`, and the test set, a dataset that its `evaluate` takes. Must be picklable.
            at: an `EvaluatorAt`.
        """
        import psutil  # not installed on machines that only serve

        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, at), daemon=True,
                                        name="wbsp-evaluator")
        with _signals_blocked():
            self._process.start()
        theirs.close()
        self.pid = self._process.pid
        atexit.register(self.close)  # the process ignores the signal by which Python would end it
        self._usage = psutil.Process(self.pid)
        self._gone = psutil.Error  # raised if it has ended
        self._used = 0.0  # seconds of processor time at the last check
        self._look_at = 0.0
        self._signs = 0
        self._problem = None

    def problem(self):
        if self._problem is None and self._connection.poll():
            try:
                self._problem = EvaluatorError(*self._connection.recv())
            except (EOFError, OSError):
                self._process.join(2)
                self._problem = EvaluatorError(
                    f"the evaluator process {_fate(self._process.exitcode)}")
        return self._problem

    def signs(self):
        """Return the number of checks with new processor time; a process that hangs uses none."""
        if (now := HOST.clock.monotonic()) >= self._look_at:
            self._look_at = now + timeouts.EVALUATOR_SIGN
            with contextlib.suppress(self._gone):
                used = sum(self._usage.cpu_times()[:2])  # of user and system
                self._signs += used - self._used >= _LEAST
                self._used = used
        return self._signs

    def kill(self):
        self._process.kill()

    def close(self):
        atexit.unregister(self.close)
        self.kill()
        self._process.join()


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


def _fate(code):
    """Describe how a process ended, from its exit code."""
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"


def _serve(connection, make, at):
    """Run the process; send the reason of a failure, and whether the run ends with it."""
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    try:
        _evaluate(make, at)
    except Exception as error:
        text = str(error) if isinstance(error, ValueError | OSError) else repr(error)
        with contextlib.suppress(OSError):  # the server has ended
            connection.send((text, isinstance(error, ValueError)))


def _end_with(connection):
    """End this process with its server's."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(0)


def _evaluate(make, at):
    """Evaluate versions until the server ends this process."""
    with heavy_imports():
        import keras
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf
            tf.config.list_physical_devices()  # TensorFlow prints its warning without a GPU here

    model, test_set = make()
    os.nice(5)  # training has priority if workers share the cores
    reader = Reader(Access(at.address, token=at.token, patience=timeouts.EVALUATOR_HANGS),
                    lambda line: None, key=at.key)
    newest = None
    while (version := reader.next(0.0)) is not None:
        version.assign(model)
        if version.number != newest:  # it is read again where that proves to be the last one
            result = model.evaluate(test_set, verbose=0, return_dict=True)
            version.report(**result)
            newest = version.number
        if version.last:
            save(model, at.model)


def save(model, path, clock=HOST.clock):
    """Write a model whole; wait for a full disk as for the run's last version.

    Raises:
        OSError: it cannot be written; one line.
    """
    beside = path.with_name(f".{path.name}")
    end, notice = clock.monotonic() + timeouts.LAST_SAVE, Throttle(_NOTICE)
    while True:
        try:
            model.save(str(beside))
            beside.replace(path)
            return
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            now, why = clock.monotonic(), f"cannot write {path}: {error.strerror or error}"
            if now >= end:
                raise OSError(why) from None
            if notice.due(now):
                say(f"{why}; trying again for {end - now:.0f} s more: free some space on its disk")
        clock.sleep(_AGAIN)
