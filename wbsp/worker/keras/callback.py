"""The synchronization hook: a Keras callback on public API only.

`model.fit(dataset, callbacks=[wbsp.SyncCallback("localhost:2606", worker_index=0)])` makes the
process one worker of a run, on whatever Keras runs on. It works under any `tf.distribute` strategy
of the process's own devices.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import keras

from wbsp.environment import Task
from wbsp.process.forks import forget, in_child
from wbsp.replica.layers import derive
from wbsp.runlog.console import say
from wbsp.runlog.worker import WorkerLog
from wbsp.sync.base import WorkerRule
from wbsp.wire.messages import codec as m
from wbsp.worker.assignments import Assignments
from wbsp.worker.comm.client import PATIENCE, Session, Transport
from wbsp.worker.errors import in_one_line
from wbsp.worker.keras.callback_list import Edge, surround
from wbsp.worker.keras.fit_watch import Fit
from wbsp.worker.keras.input import advice, batches, check
from wbsp.worker.keras.signals import Signals
from wbsp.worker.keras.training import Training

_FAILED = "its fit was interrupted or failed"
# What a worker says of weights that are written outside of a step.
_NOT_BEGUN_FROM = (
    "a callback set the weights before the first step; that is undone: this worker begins from the "
    "run's version. To have a run begin from such weights, load them on all workers before fit")
_UNDONE = (
    "a callback, or a layer in a validation, changed the weights between two epochs; that is "
    "undone, each time: what steps have done is all that a worker adds to the run's model. What a "
    "callback writes in on_train_batch_begin or on_train_batch_end is part of the step")
_REPLACED = (
    "weights that a callback set at the end of training are not kept: the model that fit leaves is "
    "of the run's final version, on every worker. To keep them, have a callback save them to a "
    "file in its on_epoch_end")
_NO_BEST = (
    "EarlyStopping(restore_best_weights=True) ends this worker's training as always, but after fit "
    "the model holds the run's final version, not the weights of this worker's best epoch; "
    "ModelCheckpoint(save_best_only=True) saves those to a file")
_in_run: dict[Task, SyncCallback] = {}  # members of a run in this process


class SyncCallback(keras.callbacks.Callback):
    """Synchronizes the fitted model with a wbsp parameter server.

    Training begins from the server's version. The synchronization model is the server's choice.
    When the server says that training is over, `fit` ends at the step's end; otherwise it ends
    when its epochs are done. Either way the model then holds the run's final global version, for
    which this worker waits until the others have finished too. Another `fit` joins again.
    """

    def __init__(self, address: str | None = None, worker_index: int | None = None, *,
                 token_file: str | None = None, connect_timeout: float = 120.0,
                 band_width_limit: float | None = None, expected: dict[str, str] | None = None,
                 say: Callable[[str], None] = say, patience: float = PATIENCE,
                 transport: str | None = None, session: Session | None = None):
        """What is not given of the first three, and of transport, comes from the environment:
        `wbsp.environment`.

        address:          host:port of the server; with a standby: host:port,host:port
        worker_index:     0 ... worker_num - 1, each once
        token_file:       file with the shared secret, for a server that has one; "": none
        connect_timeout, patience: seconds to wait for the server: at first, and when it is lost
        band_width_limit: limit of this worker's traffic, MB/s in each direction
        expected:         settings that must equal the server's (name -> text)
        transport:        "tcp": no memory is shared with a server of this machine; "auto": it is
        session:          one that is connected already, in place of all the others
        Raises ValueError or OSError for bad arguments.
        """
        super().__init__()
        with in_one_line():
            self._session = session or Session(
                address, worker_index, token_file, connect_timeout, band_width_limit, expected, say,
                patience, transport)
        self._begin()
        if session is not None:
            self._take_place()

    def _begin(self) -> None:
        """Set what belongs to this callback alone, and to no copy of it."""
        self._training: Training | None = None  # the newest
        self._log: WorkerLog | None = None
        self._assignments = Assignments()
        self._batch_size: int | None = None  # of `stream`, where it was called
        self._fit: Fit | None = None  # from on_train_begin until this worker has left the run
        self._signals = Signals(self.interrupt)
        self._ending = threading.RLock()
        self._surrounds = False  # all callbacks of the fit under way: see `_surround`
        self._said: set[str] = set()  # in this fit

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, as what runs one `fit` after the other makes of each callback: it has not
        connected, and has seen no model. Raises TypeError where two cannot be."""
        if _in_run.get(self._session.task) is self:
            raise TypeError(f"worker {self.worker} is in a run, and a copy of its SyncCallback "
                            "would be a second worker in its place; make a new one")
        if self._batch_size is not None:
            raise TypeError("the dataset of this SyncCallback's stream() belongs to it alone; copy "
                            "it before, or make a new one")
        shared = {"_training", "_log", "_assignments", "_batch_size", "_fit", "_signals", "_ending"}
        return {**{name: value for name, value in self.__dict__.items() if name not in shared},
                "_session": copy(self._session), "_model": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def worker(self) -> int:
        """Index of this worker."""
        return self._session.task.worker

    @property
    def settings(self) -> dict[str, str] | None:
        """The run's settings (name -> text), as the server has them; None before `connect`."""
        welcome = self._session.welcome
        return welcome.settings if welcome else None

    def connect(self) -> dict[str, str]:
        """Introduce this worker, unless that was done; return the run's settings (name -> text).

        `fit` connects by itself. Raises TransportError when there is no server or it refuses.
        """
        with in_one_line():
            _, welcome = self._connected()
        return welcome.settings

    @property
    def rule(self) -> WorkerRule:
        """What the run's synchronization model lets every worker do on its own; connects."""
        with in_one_line():
            _, welcome = self._connected()
        return welcome.rule

    def stream(self, examples: Callable[[Any, Any], Any], batch_size: int) -> Any:
        """Batches for `fit`, of which the server may choose the sizes, and the examples as well.

        examples:   (start, count) -> the batch of a step: the examples at positions start ...
                    start + count - 1 of an endless stream, in the same order on every worker if the
                    model shares it (`rule.shared`). On TensorFlow start and count are int64 scalars
                    in a graph, else they are numbers
        batch_size: examples of a step, where the model leaves that to the worker
        The dataset is endless: give `fit` its steps_per_epoch. On TensorFlow it is a
        tf.data.Dataset, else a keras.utils.PyDataset.
        """
        self._batch_size = batch_size
        return batches(self._assignments, examples)

    def write_log(self, log: WorkerLog) -> None:
        """Write the text files and timeline of this worker's next `fit` to `log`."""
        self._log = log

    def interrupt(self, reason: str) -> None:
        """Leave in good order at this step's end; a signal handler may call this.

        A wait for the server ends by a TransportError.
        """
        self._session.interrupt(reason)

    def close(self) -> None:
        """Leave the run, if that was not done, without the uncut progress, after a `fit` that did
        not come to its end; one that still runs gets a TransportError."""
        self._end("its callback was closed")

    @property
    def steps_before(self) -> int:
        """Steps this worker did in the run before it was started this time."""
        return self._training.runtime.steps_before if self._training else 0

    @property
    def run_steps(self) -> int:
        """Steps of all workers in the run, as far as this worker knows: what the answer to its
        newest push said, and its own since then."""
        return self._training.runtime.agent.run_steps if self._training else 0

    @property
    def stop_reason(self) -> str | None:
        """Why training ended before its epochs were done, or None."""
        training = self._training
        return self._session.interrupted or (training.runtime.stopped if training else None)

    def progress(self) -> str:
        """Steps, loss, version and share of computing, in one line."""
        return self._begun().progress()

    def on_train_begin(self, logs=None):
        if self._fit is not None:  # an earlier one, whose end was not reported
            self._end(_FAILED)
        self._fit = fit = Fit(self._fit_is_over)
        self._signals.hold(needed=lambda: not fit.over)
        with self._ending_on_error():
            transport, welcome = self._connected()
            check(self.model, self._batch_size is not None, welcome.settings["sync"], welcome.rule)
            self._assignments.begin(self._batch_size)
            session = self._session
            if text := advice(welcome.settings["sync"], welcome.rule):
                session.say(f"worker {self.worker}: {text}")
            self._training = Training.join(
                self.model, transport, welcome.rule, session.timeout, self._log, session.say,
                lambda: session.interrupted is not None, self._assignments)
            self._training.start(self.model)
            self._said.clear()
            self._surrounds = self._surround()
            self._stop_if_due()

    def on_epoch_begin(self, epoch, logs=None):
        self._checked().meter.reset()

    def on_train_batch_begin(self, batch, logs=None):
        if not self._surrounds:
            self._step_begins(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        if not self._surrounds:
            self._step_ends(batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        if not self._surrounds:
            self._epoch_ends(epoch, logs)

    def on_test_begin(self, logs=None):
        if not self._surrounds:
            self._test_begins(logs)

    def on_test_batch_end(self, batch, logs=None):
        if self._signals.caught is not None:
            with self._ending_on_error():
                self._stop_if_due()

    def on_train_end(self, logs=None):
        with self._ending_on_error():
            reason = self._session.interrupted
            training = self._begun()
            replaced = training.runtime.put_back()
            averages = training.finish(self.model, reason or "finished", reason is None,
                                       averaged=replaced or not self._surrounds)
            training.runtime.keep()
            if replaced and training.runtime.has_final and not averages:
                self._say(_REPLACED)
        self._end(None)

    def _surround(self) -> bool:
        """Have a step begin before the first callback of Keras's list, and end after the last one,
        so that the order in which a user has put them does not matter.

        Returns False where there is no such list: then all is done in this callback's own place.
        """
        first = Edge(on_train_batch_begin=self._step_begins, on_epoch_end=self._epoch_ends,
                     on_test_begin=self._test_begins)
        last = Edge(on_train_batch_end=self._step_ends, on_train_end=self._fit_ends)
        callbacks = surround(first, last)
        for callback in callbacks or ():
            if getattr(callback, "restore_best_weights", False):
                self._say(_NO_BEST)
        return callbacks is not None

    def _step_begins(self, batch, logs=None):
        training = self._checked()
        self._assignments.step_begins()
        runtime = training.runtime
        if runtime.step_begins():
            self._put_right(_UNDONE if runtime.report().steps else _NOT_BEGUN_FROM)

    def _step_ends(self, batch, logs=None):
        with self._ending_on_error():
            training = self._checked()
            model = self.model  # JAX's trainer puts the values of this step into it now
            training.step_done(model, batch, (self.params or {}).get("steps"), logs or {})
            self._stop_if_due()

    def _epoch_ends(self, epoch, logs=None):
        self._begun().runtime.hold()

    def _test_begins(self, logs=None):
        if self._fit is not None:
            runtime = self._begun().runtime
            runtime.hold()
            runtime.transport.wake()  # the last step's push need not wait for the validation

    def _fit_ends(self, logs=None):
        """Whatever a callback behind this one did, the model is of the run's final version."""
        runtime = self._begun().runtime
        if runtime.has_final and runtime.put_back():
            self._put_right(_REPLACED)

    def _put_right(self, text: str) -> None:
        """What a callback wrote has been undone: say so, once in a fit."""
        derive(self.model)
        self._say(text)

    def _say(self, text: str) -> None:
        """Say it once in a fit."""
        if text not in self._said:
            self._said.add(text)
            self._session.say(f"worker {self.worker}: {text}")

    def _connected(self) -> tuple[Transport, m.Welcome]:
        """The connection to the run, and the server's answer when it was made."""
        session = self._session
        if _in_run.get(session.task) is not self:
            self._clear_place()
            session.connect()
            self._take_place()
        assert session.transport is not None and session.welcome is not None
        return session.transport, session.welcome

    def _take_place(self) -> None:
        _in_run[self._session.task] = self
        atexit.register(self._abandon)
        in_child(self._forked)

    def _forked(self) -> None:
        """Be in no run, in a process that was forked from this worker's."""
        _in_run.pop(self._session.task, None)
        atexit.unregister(self._abandon)
        self._signals.forked()
        if self._session.transport is not None:
            self._session.transport.forked()

    def _begun(self) -> Training:
        """The newest training. Raises RuntimeError where none has begun."""
        if self._training is None:
            raise RuntimeError("no fit has begun with this callback")
        return self._training

    def _checked(self) -> Training:
        """The training under way. Raises TransportError if the connection has ended."""
        training = self._begun()
        if error := training.error:
            self._end(_FAILED)
            with in_one_line():
                raise error
        return training

    def _clear_place(self) -> None:
        """End the remains of an earlier `fit` in this worker's place."""
        session = self._session
        other = _in_run.get(session.task)
        if other is not None and not (other._fit and other._fit.running):
            session.say(f"worker {self.worker}: closing an earlier callback of this process")
            other.close()
        if session.transport is not None:
            session.say(f"worker {self.worker}: connecting again to {session.task.address}")
            session.interrupted = None

    def _stop_if_due(self) -> None:
        """End the training on a signal at once, for another reason at this step's end."""
        if self._signals.caught is not None:  # a signal ends any fit without a further call
            reason = self._session.interrupted or "interrupted by a signal"
            self._begun().runtime.finish(reason, final=False)
            self._session.say(f"worker {self.worker}: {reason}; its unsent progress is pushed")
            self._end(None)
        elif self.stop_reason is not None:
            self.model.stop_training = True

    @contextlib.contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """Leave the run if the body raises."""
        try:
            with in_one_line():
                yield
        except BaseException:
            self._end(self._session.interrupted or _FAILED)
            raise

    def _fit_is_over(self, fit: Fit) -> None:
        """Leave the run that `fit` has not left; called in a thread of its own."""
        with self._ending:
            if self._fit is fit:
                self._session.say(f"worker {self.worker}: {_FAILED}: it leaves the run")
                self._end(_FAILED)

    def _abandon(self) -> None:
        """Leave the run at the end of a process whose `fit` has not ended."""
        self._end("its process ended in mid-training")

    def _end(self, reason: str | None) -> None:
        """Leave the run and release the signals; a signal that was held back comes now.

        reason: None: the run was left in good order. Any thread may call this, and more than once.
        """
        with self._ending:
            self._signals.release()
            if self._fit is not None:
                self._fit.forget()
                self._fit = None
            session = self._session
            if session.transport is not None and _in_run.get(session.task) is self:
                self._leave(session.transport, reason)
        self._signals.raise_again()

    def _leave(self, transport: Transport, reason: str | None) -> None:
        self._assignments.end()
        if reason is not None:
            transport.leave(reason, finished=False)
        transport.close()
        if self._log is not None:
            self._log.close()
            self._log = None
        atexit.unregister(self._abandon)
        forget(self._forked)
        del _in_run[self._session.task]
