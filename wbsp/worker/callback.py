"""The synchronization hook: a Keras callback on public API only.

`model.fit(dataset, callbacks=[wbsp.SyncCallback("localhost:2606", worker_index=0)])` makes the
process one worker of a run. It works under any `tf.distribute` strategy of the process's own
devices.
"""

from __future__ import annotations

import atexit
import json
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from wbsp.cluster import Task
from wbsp.replica.tensorflow import KerasReplica
from wbsp.runlog.console import say
from wbsp.runlog.worker import WorkerLog
from wbsp.sync import SyncModel, create
from wbsp.wire.sockets import read_token
from wbsp.worker.link import Link
from wbsp.worker.session import Session
from wbsp.worker.stream import Assignments
from wbsp.worker.usage import Usage

_NO_MORE = 0, -1


def batches(assignments: Assignments,
            examples: Callable[[tf.Tensor, tf.Tensor], Any]) -> tf.data.Dataset:
    """What `examples`(start, count) makes of each piece, while its worker waits for the model."""
    readers = []  # an iterator over the pieces for each of the dataset

    def open_reader():
        readers.append(iter(assignments))
        return len(readers) - 1

    def read(reader):
        return next(readers[reader], _NO_MORE)

    def made(start, count):
        return count > 0, examples(start, tf.maximum(count, 1))

    def call(function, inputs, outputs):
        results = tf.numpy_function(function, inputs, outputs * [tf.int64])
        return tuple(tf.ensure_shape(result, []) for result in results)

    # Not from_generator: that calls Python once more when an iterator is deleted, which may be when
    # Python is ending and waits for its threads, and then neither gets on.
    endless = tf.data.Dataset.counter()
    pieces = tf.data.Dataset.from_tensors(0).map(
        lambda _: call(open_reader, [], 1)).flat_map(
        lambda reader: endless.map(lambda _: call(read, [reader], 2)))
    # TensorFlow can stop a thread that makes batches only between two of them. So NOTHING must
    # come through it too, as a batch that is thrown away.
    stream = pieces.take_while(lambda _, count: count >= 0).map(made).prefetch(1).filter(
        lambda real, _: real).map(lambda _, batch: batch)
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread may hold up an iterator's deletion for a minute
    return stream.with_options(options)


class SyncCallback(keras.callbacks.Callback):
    """Synchronizes the model being fitted with a wbsp parameter server.

    Training begins from the server's version. The synchronization model is the server's choice.
    When the server says that training is over, `fit` ends at the step's end; otherwise it ends
    when its epochs are done. Either way the model then holds the run's final global version, for
    which this worker waits until the others have finished too.
    """

    def __init__(self, address: str | None = None, worker_index: int | None = None, *,
                 token_file: str | None = None, connect_timeout: float = 120.0,
                 band_width_limit: float | None = None, claims: dict[str, str] | None = None,
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
        self.worker = task.index
        self._timeout = connect_timeout
        self._claims = claims or {}
        self._say = say
        token = None if token_file is None else read_token(token_file)
        rate = None if band_width_limit is None else 1e6 * band_width_limit
        self._link = Link(task.address, task.index, token, rate, say)
        self._session: Session | None = None
        self.settings: dict[str, str] | None = None  # the server's, once connected
        self._log: WorkerLog | None = None
        self._interrupt: str | None = None
        self._assignments = Assignments()
        self._batch_size: int | None = None  # of `stream`, where it was called

    def connect(self) -> dict[str, str]:
        """Introduce this worker and return the run's settings; `fit` does it if nobody did.

        Raises LinkError when there is no server or it refuses.
        """
        if self.settings is None:
            self.settings = self._link.hello(self._claims, self._timeout).settings
            atexit.register(self._abandon)
        return self.settings

    @property
    def sync(self) -> SyncModel:
        """The run's synchronization model with its options, as the server has it; connects."""
        run = self.connect()
        return create(run["sync"], **json.loads(run["sync_option"]))

    def stream(self, examples: Callable[[tf.Tensor, tf.Tensor], Any],
               batch_size: int) -> tf.data.Dataset:
        """Batches for `fit` whose sizes the server may change, and whose examples it may choose.

        examples:   (start, count), int64 scalars in a graph -> what a step trains: the examples at
                    positions start ... start + count - 1 of an endless stream, in the same order on
                    every worker if the model shares it (`sync.rule.shared`)
        batch_size: examples of a step, where the model leaves that to the worker
        The dataset is endless: give `fit` its steps_per_epoch. It can be fitted once.
        """
        self._batch_size = batch_size
        return batches(self._assignments, examples)

    def write_log(self, log: WorkerLog) -> None:
        """Keep the run's text files and timeline of this worker in `log`."""
        self._log = log

    def interrupt(self, reason: str) -> None:
        """Leave in good order at this step's end. May be called from a signal handler."""
        self._interrupt = reason

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
        self._check_stream(self.sync)
        self._session = Session(self._link, KerasReplica(self.model), self._log, self._say,
                                lambda: self._interrupt is not None, usage=Usage(),
                                assignments=self._assignments)
        self._meter = _LossMeter(self.model)
        self._assignments.begin(self._batch_size)
        self._session.start(self._timeout)
        self._stop_if_told()

    def on_epoch_begin(self, epoch, logs=None):
        if self._link.error:  # which ended the stream
            raise self._link.error
        self._last_batch = -1
        self._meter.reset()

    def on_train_batch_begin(self, batch, logs=None):
        self._assignments.step_begins()
        self._session.step_begins()

    def on_train_batch_end(self, batch, logs=None):
        samples, loss = self._meter.step(logs or {})
        steps, self._last_batch = batch - self._last_batch, batch
        self._session.step_done(samples, loss, batch, steps)
        self._stop_if_told()

    def on_test_begin(self, logs=None):
        self._link.wake()  # what the last step handed over need not wait for the validation

    def on_train_end(self, logs=None):
        self._session.finish(self._interrupt or "finished", final=self._interrupt is None)
        self._link.close()
        atexit.unregister(self._abandon)
        if self._log:
            self._log.close()

    def _check_stream(self, sync: SyncModel) -> None:
        if sync.rule.shared and self._batch_size is None:
            raise ValueError(f"under {sync.name} the server says who trains which examples: give "
                             "fit a dataset that was made by this callback's stream()")
        if self._batch_size is not None and self.model.steps_per_execution != 1:
            raise ValueError(f"steps_per_execution={self.model.steps_per_execution}: a batch of "
                             "stream() is not known before the step ahead of it has ended; "
                             "compile the model with steps_per_execution=1")

    def _stop_if_told(self) -> None:
        if self.stop_reason is not None:
            self.model.stop_training = True

    def _abandon(self) -> None:
        """The process ends without `fit` having ended: say so rather than be missed."""
        self._assignments.end()
        self._link.leave("its process ended in mid-training", finished=False)
        self._link.close()


class _LossMeter:
    """A batch's samples and loss, from Keras's running mean over the epoch.

    Keras tells callbacks neither the batch size nor the loss of one batch; its loss tracker counts
    both.
    """

    def __init__(self, model: keras.Model):
        tracker = next((metric for metric in model.metrics if metric.name == "loss"), None)
        self._count = getattr(tracker, "count", None)
        self.reset()

    def reset(self) -> None:
        self._samples, self._total = 0, 0.0

    def step(self, logs: dict) -> tuple[int, float]:
        """(samples, mean loss) of the newest batch; a model without a loss counts 1 sample."""
        mean = float(logs.get("loss", math.nan))
        if self._count is None:
            return 1, mean
        samples = round(float(self._count.numpy()))
        total = mean * samples
        new, loss = samples - self._samples, math.nan
        if new > 0:
            loss = (total - self._total) / new
        self._samples, self._total = samples, total
        return max(new, 1), loss
