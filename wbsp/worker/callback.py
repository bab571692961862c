"""The synchronization hook: a Keras callback on public API only.

`model.fit(dataset, callbacks=[wbsp.SyncCallback("localhost:2606", worker_index=0)])` makes the
process one worker of a run. It works under any `tf.distribute` strategy of the process's own
devices.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from wbsp.cluster import Task
from wbsp.replica.tensorflow import KerasReplica
from wbsp.runlog.console import say
from wbsp.runlog.worker import WorkerLog
from wbsp.sync.base import WorkerRule
from wbsp.wire.sockets import read_token, split_address
from wbsp.worker.fit import Fit
from wbsp.worker.meter import LossMeter
from wbsp.worker.pipeline import batches
from wbsp.worker.runtime import WorkerRuntime
from wbsp.worker.signals import Signals
from wbsp.worker.stream import Assignments
from wbsp.worker.transport import Transport
from wbsp.worker.usage import Usage

_FAILED = "its fit was interrupted or failed"
_in_run: dict[tuple[str, int], SyncCallback] = {}  # this process's, by server and index


class SyncCallback(keras.callbacks.Callback):
    """Synchronizes the model being fitted with a wbsp parameter server.

    Training begins from the server's version. The synchronization model is the server's choice.
    When the server says that training is over, `fit` ends at the step's end; otherwise it ends
    when its epochs are done. Either way the model then holds the run's final global version, for
    which this worker waits until the others have finished too. In another `fit` it joins again.
    """

    def __init__(self, address: str | None = None, worker_index: int | None = None, *,
                 token_file: str | None = None, connect_timeout: float = 120.0,
                 band_width_limit: float | None = None, expected: dict[str, str] | None = None,
                 say: Callable[[str], None] = say):
        """What is not given comes from the environment variable TF_CONFIG.

        address:          host:port of the server
        worker_index:     0 ... worker_num - 1, each once
        token_file:       file with the shared secret, for a server that has one
        connect_timeout:  seconds to wait for the server
        band_width_limit: MB/s in each direction that this worker's traffic is held to
        claims:           settings that must equal the server's (name -> text)
        Raises ValueError or OSError for bad arguments.
        """
        super().__init__()
        task = Task.complete(address, worker_index)
        split_address(task.address)
        self.worker = task.worker
        self._timeout = connect_timeout
        self._claims = expected or {}
        self._say = say
        self._interrupt: str | None = None
        token = None if token_file is None else read_token(token_file)
        rate = None if band_width_limit is None else 1e6 * band_width_limit
        self._new_link = lambda: Transport(task.address, task.worker, token, rate, say,
                                      lambda: self._interrupt is not None)
        self._link: Transport | None = None  # once connected, and after that
        self._session: WorkerRuntime | None = None
        self.settings: dict[str, str] | None = None  # the server's, once connected
        self._rule: WorkerRule | None = None  # the synchronization model's, likewise
        self._log: WorkerLog | None = None
        self._assignments = Assignments()
        self._batch_size: int | None = None  # of `stream`, where it was called
        self._place = task.address, task.worker
        self._fit: Fit | None = None  # from on_train_begin to the end, whichever comes
        self._signals = Signals(self.interrupt)
        self._ending = threading.RLock()

    def connect(self) -> dict[str, str]:
        """Introduce this worker and return the run's settings; `fit` does it if nobody did.

        Raises TransportError when there is no server or it refuses.
        """
        if _in_run.get(self._place) is not self:
            self._make_place()
            self._link = self._new_link()
            try:
                welcome = self._link.hello(self._claims, self._timeout)
            except BaseException:
                self._link.close()
                raise
            self.settings, self._rule = welcome.settings, welcome.rule
            _in_run[self._place] = self
            atexit.register(self._abandon)
        return self.settings

    @property
    def rule(self) -> WorkerRule:
        """What the run's synchronization model lets every worker do on its own; connects."""
        self.connect()
        return self._rule

    def stream(self, examples: Callable[[tf.Tensor, tf.Tensor], Any],
               batch_size: int) -> tf.data.Dataset:
        """Batches for `fit` whose sizes the server may change, and whose examples it may choose.

        examples:   (start, count), int64 scalars in a graph -> what a step trains: the examples at
                    positions start ... start + count - 1 of an endless stream, in the same order on
                    every worker if the model shares it (`rule.shared`)
        batch_size: examples of a step, where the model leaves that to the worker
        The dataset is endless: give `fit` its steps_per_epoch.
        """
        self._batch_size = batch_size
        return batches(self._assignments, examples)

    def write_log(self, log: WorkerLog) -> None:
        """Keep the text files and timeline of this worker's next `fit` in `log`."""
        self._log = log

    def interrupt(self, reason: str) -> None:
        """Leave in good order at this step's end. May be called from a signal handler.

        Who waits for the server meanwhile gets a TransportError.
        """
        self._interrupt = reason

    def close(self) -> None:
        """Leave the run at once, without what was not handed over; nothing if it was left already.

        For a `fit` that did not come to its end. One that still runs gets a TransportError.
        """
        self._end("its callback was closed")

    @property
    def steps_before(self) -> int:
        """Steps this worker did in the run before it was started this time."""
        return self._session.steps_before if self._session else 0

    @property
    def stop_reason(self) -> str | None:
        """Why training ended before its epochs were done, or None."""
        return self._interrupt or (self._session.stopped if self._session else None)

    def progress(self) -> str:
        """Where this worker stands, in one line."""
        report = self._session.report()
        return (f"step {self.steps_before + report.steps:,} | loss {report.loss:.4f} | version "
                f"{self._session.agent.version} | computing {report.share('compute'):.0%}")

    def on_train_begin(self, logs=None):
        if self._fit is not None:  # an earlier one, of which no end was told
            self._end(_FAILED)
        self._fit = fit = Fit(self._fit_is_over)
        self._signals.hold(needed=lambda: not fit.over)
        with self._ending_on_error():
            self._check_stream(self.rule)
            self._session = WorkerRuntime(
                self._link, KerasReplica(self.model), self._log, self._say,
                lambda: self._interrupt is not None, usage=Usage(),
                assignments=self._assignments)
            self._meter = LossMeter(self.model)
            self._assignments.begin(self._batch_size)
            self._session.start(self._timeout)
            self._stop_if_told()

    def on_epoch_begin(self, epoch, logs=None):
        self._check_link()  # which ended the stream
        self._meter.reset()

    def on_train_batch_begin(self, batch, logs=None):
        self._check_link()
        self._assignments.step_begins()
        self._session.step_begins()

    def on_train_batch_end(self, batch, logs=None):
        with self._ending_on_error():
            self._check_link()
            planned = (self.params or {}).get("steps")
            step = self._meter.step(batch, planned, logs or {})
            self._session.step_done(step.samples, step.loss, self._meter.batches - 1, step.batches)
            self._stop_if_told()
            if self.model.stop_training or self._meter.batches == planned:
                self._session.hold()

    def on_epoch_end(self, epoch, logs=None):
        # What other callbacks do to the model from here on is not training: EarlyStopping puts the
        # weights of its best epoch back, others put in averages.
        self._session.hold()

    def on_test_begin(self, logs=None):
        if self._fit is not None:
            self._session.hold()
            self._link.wake()  # what the last step handed over need not wait for the validation

    def on_test_batch_end(self, batch, logs=None):
        if self._signals.caught is not None:
            with self._ending_on_error():
                self._stop_if_told()

    def on_train_end(self, logs=None):
        with self._ending_on_error():
            self._session.finish(self._interrupt or "finished", final=self._interrupt is None)
        self._end(None)

    def _make_place(self) -> None:
        """End what is left of an earlier `fit` in this worker's place."""
        other = _in_run.get(self._place)
        if other is not None and not (other._fit and other._fit.running):
            self._say(f"worker {self.worker}: closing an earlier callback of this process")
            other.close()
        if self._link is not None:
            self._say(f"worker {self.worker}: connecting again to {self._link.address}")
            self._interrupt = None

    def _check_stream(self, rule: WorkerRule) -> None:
        if rule.shared and self._batch_size is None:
            raise ValueError(f"under {self.settings['sync']} the server says who trains which "
                             "examples: give fit a dataset that was made by this callback's "
                             "stream()")
        if self._batch_size is not None and self.model.steps_per_execution != 1:
            raise ValueError(f"steps_per_execution={self.model.steps_per_execution}: a batch of "
                             "stream() is not known before the step ahead of it has ended; "
                             "compile the model with steps_per_execution=1")

    def _check_link(self) -> None:
        if error := self._link.error:
            self._end(_FAILED)
            raise error

    def _stop_if_told(self) -> None:
        if self._signals.caught is not None:  # like in any fit, there is no step and no call more
            self._session.finish(self._interrupt, final=False)
            self._say(f"worker {self.worker}: {self._interrupt}; its progress is handed over")
            self._end(None)
        elif self.stop_reason is not None:
            self.model.stop_training = True

    @contextlib.contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._end(self._interrupt or _FAILED)
            raise

    def _fit_is_over(self, fit: Fit) -> None:
        with self._ending:
            if self._fit is fit:
                self._say(f"worker {self.worker}: {_FAILED}: it leaves the run")
                self._end(_FAILED)

    def _abandon(self) -> None:
        """The process ends without `fit` having ended: say so rather than be missed."""
        self._end("its process ended in mid-training")

    def _end(self, reason: str | None) -> None:
        """Leave the run, if it was not left in good order (None), and hold nothing any more.

        Any thread may call it, and again. A signal that was held back comes now.
        """
        with self._ending:
            self._signals.release()
            if self._fit is not None:
                self._fit.forget()
                self._fit = None
            if _in_run.get(self._place) is self:
                self._leave(reason)
        self._signals.raise_again()

    def _leave(self, reason: str | None) -> None:
        self._assignments.end()
        if reason is not None:
            self._link.leave(reason, finished=False)
        self._link.close()
        if self._log is not None:
            self._log.close()
            self._log = None
        atexit.unregister(self._abandon)
        del _in_run[self._place]
