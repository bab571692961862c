"""The synchronization hook: a Keras callback on public API only.

`model.fit(dataset, callbacks=[wbsp.SyncCallback("localhost:2606", worker_index=0)])` makes the
process one worker of a run, on whatever Keras runs on. It works under any `tf.distribute` strategy
of the process's own devices.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import keras

from wbsp import timeouts
from wbsp.replica.layers import derive, finalize, remarks, statistics
from wbsp.replica.model import check_whole, open_replica
from wbsp.replica.states import states
from wbsp.runlog.console import say
from wbsp.runlog.worker import WorkerLog
from wbsp.sync.base import WorkerRule
from wbsp.worker.errors import in_one_line
from wbsp.worker.keras.callback_list import Edge, surround
from wbsp.worker.keras.fit_watch import Fit
from wbsp.worker.keras.input import advice, batches, check
from wbsp.worker.keras.loss_meter import LossMeter
from wbsp.worker.loop import Worker

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
_ADAPTED = (
    "layer {} was adapted to other data than the run's, and computes with the run's mean and "
    "variance from here on: have all workers adapt it to the same data")


class SyncCallback(keras.callbacks.Callback):
    """Synchronizes the fitted model with a wbsp parameter server.

    Training begins from the server's version. The synchronization model is the server's choice.
    When the server says that training is over, `fit` ends at the step's end; otherwise it ends
    when its epochs are done. Either way the model then holds the run's final global version, for
    which this worker waits until the others have finished too. Another `fit` joins again.
    """

    def __init__(self, address: str | None = None, worker_index: int | None = None, *,
                 token_file: str | None = None, connect_timeout: float = timeouts.CONNECT,
                 band_width_limit: float | None = None, expected: dict[str, str] | None = None,
                 say: Callable[[str], None] = say, patience: float = timeouts.WORKER_PATIENCE,
                 transport: str | None = None, session: Worker | None = None):
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
            self._worker = session or Worker(
                address, worker_index, token_file, connect_timeout, band_width_limit, expected, say,
                patience, transport)
        self._begin()

    def _begin(self) -> None:
        """Set what belongs to this callback alone, and to no copy of it."""
        self._batch_size: int | None = None  # of `stream`, where it was called
        self._surrounds = False  # all callbacks of the fit under way: see `_surround`
        self._said: set[str] = set()  # in this fit

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, as what runs one `fit` after the other makes of each callback: it has not
        connected, and has seen no model. Raises TypeError where two cannot be."""
        if self._worker.in_run:
            raise TypeError(f"worker {self.worker} is in a run, and a copy of its SyncCallback "
                            "would be a second worker in its place; make a new one")
        if self._batch_size is not None:
            raise TypeError("the dataset of this SyncCallback's stream() belongs to it alone; copy "
                            "it before, or make a new one")
        state = {**self.__dict__, "_worker": copy(self._worker), "_model": None}
        state.pop("_meter", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def worker(self) -> int:
        """Index of this worker."""
        return self._worker.index

    @property
    def settings(self) -> dict[str, str] | None:
        """The run's settings (name -> text), as the server has them; None before `connect`."""
        welcome = self._worker.welcome
        return welcome.settings if welcome else None

    def connect(self) -> dict[str, str]:
        """Introduce this worker, unless that was done; return the run's settings (name -> text).

        `fit` connects by itself. Raises TransportError when there is no server or it refuses.
        """
        with in_one_line():
            return self._worker.connect()[1].settings

    @property
    def rule(self) -> WorkerRule:
        """What the run's synchronization model lets every worker do on its own; connects."""
        with in_one_line():
            return self._worker.connect()[1].rule

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
        return batches(self._worker.assignments, examples)

    def write_log(self, log: WorkerLog) -> None:
        """Write the text files and timeline of this worker's next `fit` to `log`."""
        self._worker.write_log(log)

    def interrupt(self, reason: str) -> None:
        """Leave in good order at this step's end; a signal handler may call this.

        A wait for the server ends by a TransportError.
        """
        self._worker.interrupt(reason)

    def close(self) -> None:
        """Leave the run, if that was not done, without the uncut progress, after a `fit` that did
        not come to its end; one that still runs gets a TransportError."""
        self._worker.close()

    @property
    def steps_before(self) -> int:
        """Steps this worker did in the run before it was started this time."""
        runtime = self._worker.runtime
        return runtime.steps_before if runtime else 0

    @property
    def run_steps(self) -> int:
        """Steps of all workers in the run, as far as this worker knows: what the answer to its
        newest push said, and its own since then."""
        runtime = self._worker.runtime
        return runtime.agent.run_steps if runtime else 0

    @property
    def stop_reason(self) -> str | None:
        """Why training ended before its epochs were done, or None."""
        return self._worker.stop_reason

    def progress(self) -> str:
        """Steps, loss, version and share of computing, in one line."""
        return self._worker.begun().progress()

    def on_train_begin(self, logs=None):
        worker = self._worker
        model = self.model
        worker.enter(Fit(worker.lost))
        with worker.leaving_on_error():
            _, welcome = worker.connect()
            sync, rule = welcome.settings["sync"], welcome.rule
            check(model, self._batch_size is not None, sync, rule)
            worker.assignments.begin(self._batch_size)
            if text := advice(sync, rule):
                worker.say(text)
            replica = open_replica(model)
            for remark in remarks(model):
                worker.say(remark)
            adapted = statistics(model)
            self._meter = LossMeter(model)
            worker.join(replica, states(model))
            derive(model)
            for one in adapted:
                if one.differ:
                    worker.say(_ADAPTED.format(one.layer.name))
            self._said.clear()
            self._surrounds = self._surround()
            self._stop_if_due()

    def on_epoch_begin(self, epoch, logs=None):
        self._worker.connected()
        self._meter.reset()

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
        if self._worker.signalled:
            with self._worker.leaving_on_error():
                self._stop_if_due()

    def on_train_end(self, logs=None):
        worker = self._worker
        with worker.leaving_on_error():
            model = self.model
            runtime = worker.begun()
            reason = worker.interrupted
            replaced = runtime.put_back()
            runtime.finish(reason or "finished", final=reason is None)
            averages = reason is None and finalize(
                model, bool(runtime.report().steps), replaced or not self._surrounds, worker.say)
            runtime.keep()
            if replaced and runtime.has_final and not averages:
                self._say_once(_REPLACED)
        worker.end(None)

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
                self._say_once(_NO_BEST)
        return callbacks is not None

    def _step_begins(self, batch, logs=None):
        if self._worker.step_begins():
            steps = self._worker.begun().report().steps
            self._put_right(_UNDONE if steps else _NOT_BEGUN_FROM)

    def _step_ends(self, batch, logs=None):
        with self._worker.leaving_on_error():
            runtime = self._worker.connected()
            meter = self._meter
            model = self.model  # JAX's trainer puts the values of this step into it now
            first = meter.batches == 0
            step = meter.step(batch, (self.params or {}).get("steps"), logs or {})
            if first:
                check_whole(model, runtime.replica.layout)
            runtime.step_done(step.samples, step.loss, meter.batches - 1, step.batches)
            self._stop_if_due()

    def _epoch_ends(self, epoch, logs=None):
        self._worker.begun().hold()

    def _test_begins(self, logs=None):
        if self._worker.loop is not None:
            runtime = self._worker.begun()
            runtime.hold()
            runtime.transport.wake()  # the last step's push need not wait for the validation

    def _fit_ends(self, logs=None):
        """Whatever a callback behind this one did, the model is of the run's final version."""
        runtime = self._worker.begun()
        if runtime.has_final and runtime.put_back():
            self._put_right(_REPLACED)

    def _put_right(self, text: str) -> None:
        """What a callback wrote has been undone: say so, once in a fit."""
        derive(self.model)
        self._say_once(text)

    def _say_once(self, text: str) -> None:
        """Say it once in a fit."""
        if text not in self._said:
            self._said.add(text)
            self._worker.say(text)

    def _stop_if_due(self) -> None:
        if self._worker.stop_due():
            self.model.stop_training = True
