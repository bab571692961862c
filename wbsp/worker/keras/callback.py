"""The synchronization hook: a Keras callback on public API only.

`model.fit(dataset, callbacks=[wbsp.SyncCallback("localhost:2606", worker_index=0)])` makes the
process one worker of a run, on any back end of Keras. It works under any `tf.distribute` strategy
of the process's own devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Literal

import keras

from wbsp import given, timeouts
from wbsp.core.messages import EXAMPLES
from wbsp.core.stats import Phase
from wbsp.replica.base import divide
from wbsp.replica.frozen import Frozen
from wbsp.replica.layers import derive, differing, finalize, remarks, scheduled, statistics
from wbsp.replica.model import KerasPart, renew_optimizers, sums_gradients
from wbsp.runlog.console import say
from wbsp.sync.base import WorkerRule
from wbsp.worker.errors import in_one_line
from wbsp.worker.front import FrontEnd
from wbsp.worker.keras.batch_rate import BatchRate
from wbsp.worker.keras.examples import dataset
from wbsp.worker.keras.fit import Edge, Fit, Logs
from wbsp.worker.keras.input import batches, check
from wbsp.worker.keras.loss_meter import LossMeter
from wbsp.worker.keras.passed_fit import PassedFit
from wbsp.worker.keras.run_rate import RunRate
from wbsp.worker.keras.shared_batches import Function
from wbsp.worker.keras.shared_fit import UNTIL_TOLD, SharedFit
from wbsp.worker.keras.train_function import TimedSteps
from wbsp.worker.loop import Worker, advice
from wbsp.worker.rate import StepRate
from wbsp.worker.share import Share


class SyncCallback(FrontEnd, keras.callbacks.Callback):
    """Keep the model of a `fit` in step with a wbsp server.

    Training begins with the server's version. The server chooses the synchronization model. `fit`
    ends when its epochs are done, or after a step when the server ends the run. It returns when the
    other workers have finished too. The model then holds the run's final version. Another `fit`
    joins the run, or the next one, again.

    Attributes:
        UNTIL_TOLD: the `steps_per_epoch` of a `fit` on `examples`.
    """

    UNTIL_TOLD = UNTIL_TOLD
    _name, _shares = "hook", "hook.examples(...)"

    def __init__(self, address: str | None = None, worker_index: int | None = None, *,
                 token_file: str | None = None, connect_timeout: float = timeouts.CONNECT,
                 band_width_limit: float | None = None, expected: dict[str, str] | None = None,
                 say: Callable[[str], None] = say, patience: float = timeouts.WORKER_PATIENCE,
                 transport: str | None = None, session: Worker | None = None,
                 frozen: Sequence[str] | None = None, local: Sequence[str] = ()):
        """Set up the worker; `fit` connects it.

        address, worker_index, token_file and transport are read from the environment if they are
        None.

        Args:
            address: host:port of the server; with a standby: host:port,host:port; if neither this
                nor the environment gives one: localhost:2606.
            worker_index: 0 ... worker_num - 1, each once; if neither this nor the environment gives
                one, the server chooses one that no process holds.
            token_file: file with the server's shared secret; default, for a server of another
                machine: ~/.config/wbsp/token, if there is one; "": the server has none.
            connect_timeout: seconds to wait for the first connection to the server.
            band_width_limit: limit of this worker's traffic, MB/s in each direction.
            expected: settings that must equal the server's (name -> text).
            say: function that prints a line for the user.
            patience: seconds to wait for a lost server.
            transport: "auto": share memory with a server of this machine; "tcp": share none.
            session: a connected worker, which replaces all arguments except `frozen` and
                `local`.
            frozen: names of variables that no step changes, or the beginnings of these; updates and
                versions do not carry them. None: those that the framework declares frozen. []: no
                variable is frozen.
            local: names of variables that each worker keeps for itself, or the beginnings of these;
                they do not travel, are not compared, and no version changes them. The same names on
                all workers.

        Raises:
            ValueError: an argument is wrong or missing.
            OSError: the token file cannot be read.
        """
        super().__init__()
        with in_one_line():
            self._member = session or Worker(
                address, worker_index, token_file, connect_timeout, band_width_limit, expected, say,
                patience, transport, name="SyncCallback")
        self._frozen, self._local = frozen, local
        self._once: list[keras.callbacks.Callback] = []
        self._shared: SharedFit | None = None  # the current fit, if it trains the run's data
        self._passed: PassedFit | None = None  # the current fit, if its run has ended
        self._surrounds = False  # all callbacks of the current fit: see `_surround`
        self._steps: TimedSteps | None = None  # of that fit
        self._renewed = False  # its optimizer, in that fit
        self._checked = False  # the first step of that fit has changed nothing that is frozen

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, such as a tuner makes of each callback.

        It is not connected, has no model, and trains the same `examples`.

        Raises:
            TypeError: this callback is in a run.
        """
        return {**self.__dict__, "_member": copy(self._member), "_surrounds": False,
                "_model": None, "_meter": None, "_shared": None, "_steps": None,
                "_passed": None, "_part": None, "_still": None}

    @property
    def settings(self) -> dict[str, str] | None:
        """The run's settings (name -> text), from the server; None before `connect`."""
        welcome = self._member.welcome
        return welcome.settings if welcome else None

    def connect(self) -> dict[str, str]:
        """Introduce this worker, unless that was done; return the run's settings (name -> text).

        `fit` connects by itself.

        Raises:
            TransportError: no server answers, or it refuses this worker.
        """
        with in_one_line():
            return self._member.connect()[1].settings

    @property
    def rule(self) -> WorkerRule:
        """The rule of the run's synchronization model for workers; connects if necessary."""
        with in_one_line():
            return self._member.connect()[1].rule

    @property
    def epoch(self) -> int:
        """Epoch of the run (0, 1 ...) of the newest example that this worker has trained.

        0 if the workers do not share their data.
        """
        share = self._member.share
        return share.epoch if share else 0

    def examples(self, function: Function, n: int, batch_size: int, seed: int = 0,
                 class_weight: Mapping[int, float] | None = None, processes: int = 0,
                 validate: Literal["newest", "wait"] = "newest") -> Any:
        """Return data for `fit` that all workers of the run share.

        An epoch is one pass of all workers together:

            data = hook.examples(lambda i: (x[i], y[i]), n=len(x), batch_size=64)
            model.fit(data, epochs=5, steps_per_epoch=hook.UNTIL_TOLD, callbacks=[hook])

        Each example is trained once in an epoch, by any worker.

        Args:
            function: indices, int64 [at most batch_size], of 0 ... n - 1 -> x, (x, y) or
                (x, y, sample_weight): arrays, or dicts of arrays, with one row for each index.
                It is called eagerly, on TensorFlow in another thread.
            n: number of examples; equal on all workers, like batch_size and seed.
            batch_size: examples of a step; an epoch's last step may have fewer.
            seed: of the order of examples, which differs in each epoch.
            class_weight: class -> weight of its examples in the loss, on every back end (`fit`
                accepts one only on TensorFlow).
            processes: number of processes that call the function ahead of the steps; only on
                PyTorch, else 0.
            validate: "newest": no worker waits for a validation, and `val_` results are the newest
                of the run. "wait": no epoch begins before the one before it is complete and
                validated, and each worker receives its results. Equal on all workers.

        Returns:
            A tf.data.Dataset on TensorFlow, a DataLoader on PyTorch, data of its own kind on JAX.

        Raises:
            ValueError: a number is out of range, or arrays have wrong lengths.
        """
        with in_one_line():
            share = Share(n, batch_size, seed, validate=validate)
            data = dataset(share, function, class_weight, processes)
        self._member.trains(share, data)
        return data

    def once(self, callback: keras.callbacks.Callback) -> keras.callbacks.Callback:
        """Return the callback on worker 0, and one that does nothing on other workers.

        Use it for callbacks that write files. On shared data, the model in its on_epoch_end is the
        version that the validation results describe (epoch `val_epoch`), or else the newest
        complete one.

        Args:
            callback: the callback.
        """
        if self.worker:
            return keras.callbacks.Callback()
        self._once.append(callback)
        return callback

    def stream(self, examples: Callable[[Any, Any], Any], batch_size: int) -> Any:
        """Return batches for `fit` whose sizes and examples the server may choose.

        Args:
            examples: (start, count) -> the batch of a step: the examples at positions start ...
                start + count - 1 of an endless stream, in the same order on every worker if the
                model shares it (`rule.shared`). On TensorFlow start and count are int64 scalars
                in a graph, else they are numbers.
            batch_size: examples of a step, if the model leaves the choice to the worker.

        Returns:
            An endless tf.data.Dataset on TensorFlow, else endless data of its own kind. Give `fit`
            a number for steps_per_epoch.
        """
        with in_one_line():
            self._member.streams(given.whole("batch_size", batch_size, 1, EXAMPLES))
        return batches(self._member.assignments, examples)

    def interrupt(self, reason: str) -> None:
        """Leave the run cleanly after the current step; a signal handler may call this.

        A wait for the server ends with a TransportError.

        Args:
            reason: for the server's log, in one line.
        """
        self._member.interrupt(reason)

    def close(self) -> None:
        """Leave the run after an interrupted `fit`, without pushing its unsent progress.

        A `fit` that still runs raises a TransportError.
        """
        self._member.close()

    @property
    def steps_before(self) -> int:
        """Number of steps that this worker's earlier processes made in the run."""
        runtime = self._member.runtime
        return runtime.steps_before if runtime else 0

    @property
    def total_steps(self) -> int:
        """Number of steps of all workers in the whole run: epochs * n / batch_size, rounded up.

        Raises:
            ValueError: the workers do not share their data.
            RuntimeError: no `fit` has begun, which gives the number of epochs.
        """
        self._whole("total_steps")
        self._member.begun()
        return super().total_steps

    def on_train_begin(self, logs: Logs = None) -> None:
        worker, model = self._member, self.model
        fit = Fit(worker.lost)
        worker.enter(fit)
        with worker.leaving_on_error():
            _, welcome = worker.connect()
            fit.build(model)
            self._passed = PassedFit(worker, model, fit) if worker.passes else None
            if self._passed:
                return
            sync, rule = welcome.run.sync, welcome.rule
            self._shared = None if worker.share is None else SharedFit(
                worker, worker.share, model, self.params or {}, fit, self._once)
            if self._shared is None:
                check(model, worker.batch is not None, sync, rule)
            worker.assignments.begin(worker.batch)
            self._part = KerasPart(model)
            divide([self._part], self._frozen, self._local)
            self._still = Frozen([self._part])
            replica = self._part.open()
            for line in [*advice(sync, rule, "fit"), *remarks(model)]:
                worker.say(line)
            adapted = statistics(model)
            self._meter = LossMeter(model)
            if not worker.join(replica, self._part.states(), self._still, sums_gradients(model),
                               [held.spec.name for held in self._part.local]):
                self._shared, self._passed = None, PassedFit(worker, model, fit)
                return
            derive(model)
            for line in differing(adapted):
                worker.say(line)
            self._checked = False
            self._renewed = False
            worker.begun().tell_when_renewed(self._renew)
            self._surrounds = self._surround(fit)
            fit.guard(worker.left_by)
            self._steps = None
            if self._surrounds:
                own = worker.share is not None and fit.argument("x", None) is worker.dataset
                self._steps = TimedSteps(model, worker.begun().enter, worker.share if own else None)
                fit.undo.append(self._steps.release)
            if self._shared:
                self._shared.begins()
            self._stop_if_due()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        if not self._passed:
            self._member.connected()
            self._meter.reset()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if not (self._surrounds or self._passed):
            self._step_begins(batch)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self._passed:
            self._passed.step_ends(batch)
        elif not self._surrounds:
            self._step_ends(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if not (self._surrounds or self._passed):
            self._epoch_ends(epoch)

    def on_test_begin(self, logs: Logs = None) -> None:
        if not (self._surrounds or self._passed):
            self._test_begins()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self._member.signalled and not self._passed:
            with self._member.leaving_on_error():
                self._stop_if_due()
        elif self._shared:
            self._shared.test_batch_ends()

    def on_train_end(self, logs: Logs = None) -> None:
        worker = self._member
        if self._passed:
            self._passed.fit_ends()
            worker.end(None)
            return
        with worker.leaving_on_error():
            model = self.model
            runtime = worker.begun()
            interrupted = worker.interrupted
            replaced = runtime.put_back()
            worker.finish(interrupted)
            averages = interrupted is None and finalize(
                model, bool(runtime.report().steps), replaced or not self._surrounds, worker.say)
            for line in self._still.finish():
                worker.say(line)
            runtime.keep()
            if replaced and runtime.has_final and not averages:
                worker.say_once(Fit.replaced)
        worker.end(None)

    def _surround(self, fit: Fit) -> bool:
        """Surround Keras's list of callbacks: a step begins before the first, ends after the last.

        So the user's order of callbacks does not matter.

        Returns:
            False if there is no such list: then this callback acts at its place in the list.
        """
        first = Edge(on_epoch_begin=self._callbacks_begin, on_train_batch_begin=self._step_begins,
                     on_epoch_end=self._epoch_ends, on_test_begin=self._test_begins)
        last = Edge(on_epoch_begin=self._callbacks_end, on_train_batch_end=self._step_ends,
                    on_epoch_end=self._callbacks_end, on_train_end=self._fit_ends)
        callbacks = fit.surround(first, last)
        if self._shared:
            self._shared.surround(first, last, callbacks or [])
            RunRate(self._member, self.model, callbacks or []).surround(first, last)
            if callbacks is not None and self.rule.sizes:
                say = self._member.say
                rate = BatchRate(StepRate(self._member.begun(), say), lambda: self.model, say)
                rate.surround(first, last)
                fit.undo.append(rate.undo)
            workers = self._member.connect()[1].run.workers
            if workers > 1 and (name := scheduled(self.model)):
                self._member.say(Fit.of_own_steps.format(name, workers))
        if (best := next((one for one in callbacks or ()
                          if getattr(one, "restore_best_weights", False)), None)) is not None:
            monitored = str(getattr(best, "monitor", ""))
            name = monitored.removeprefix("val_") if monitored.startswith("val_") else "loss"
            self._member.say(Fit.no_best.format(name, "" if self._shared else (
                ", have a process evaluate its versions (wbsp.versions)")))
        return callbacks is not None

    def _step_begins(self, batch: int, logs: Logs = None) -> None:
        if not self._shared or self._shared.step_begins():
            self._member.step_begins(self._steps.phase if self._steps else "data or compute")

    def _step_ends(self, batch: int, logs: Logs = None) -> None:
        with self._member.leaving_on_error():
            runtime, meter = self._member.connected(), self._meter
            _ = self.model  # JAX's trainer now writes this step's values into it
            if self._shared and not self._shared.step_ends():
                return
            if not self._checked:
                self._checked = True
                self._part.check()
                self._still.check()
            step = meter.step(batch, (self.params or {}).get("steps"), logs or {},
                              self._shared.samples if self._shared else None)
            runtime.step_done(step.samples, step.loss, meter.batches - 1, step.batches)
            self._stop_if_due()
            if self._shared:
                self._shared.goes_on()

    def _renew(self) -> None:
        """After a push that was not finite, renew the optimizer, once in a fit."""
        if not self._renewed and renew_optimizers(self.model):
            self._renewed = True
            self._member.say("its optimizer's state was not finite, so that every further push "
                             "would not be, either: beginning anew with that state, once. Clip "
                             "gradients or lower the learning rate if this happens again")

    def _callbacks_begin(self, epoch: int, logs: Logs = None) -> None:
        self._enter("callbacks")

    def _callbacks_end(self, epoch: int, logs: Logs = None) -> None:
        self._enter("data")

    def _enter(self, phase: Phase) -> None:
        if self._steps and self._member.loop is not None:
            self._member.begun().enter(phase)

    def _epoch_ends(self, epoch: int, logs: Logs = None) -> None:
        self._enter("callbacks")
        self._member.begun().hold()

    def _test_begins(self, logs: Logs = None) -> None:
        if self._member.loop is not None:
            runtime = self._member.begun()
            self._enter("validation")
            runtime.hold()
            runtime.transport.wake()  # the last step's push need not wait for the validation

    def _fit_ends(self, logs: Logs = None) -> None:
        """Restore the run's final version, if a later callback has changed the model."""
        runtime = self._member.begun()
        if runtime.has_final and runtime.put_back():
            self._member.say_once(Fit.replaced)
        if self._shared:
            self._shared.ended()

    def _stop_if_due(self) -> None:
        if self._member.stop_due():
            self.model.stop_training = True
