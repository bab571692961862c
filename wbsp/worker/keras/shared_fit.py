"""A `fit` on the run's shared data: its epochs and its end are the run's.

Keras must know the number of an epoch's steps in advance, and here it becomes known later. So the
data are endless. At the step that ends the run's epoch for this worker, the callback sets
`stop_training` to a special value, and `on_epoch_end` resets it. This is public API, and works on
every back end.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from math import isfinite, nan
from typing import Any

import keras

from wbsp import given
from wbsp.core.messages import Measured
from wbsp.wire.messages.requests import AskVersion
from wbsp.worker.keras.fit import Edge, Fit, Logs
from wbsp.worker.keras.input import reads_ahead
from wbsp.worker.keras.shown_version import ShownVersion
from wbsp.worker.loop import Worker
from wbsp.worker.share import Share

UNTIL_TOLD = 10**9  # steps of an epoch: more than any epoch has


class _EpochEnds:
    """Value of `stop_training`: this epoch ends, and others follow."""


_EPOCH_ENDS = _EpochEnds()


def fill(history: keras.callbacks.History, logs: dict[str, Any]) -> None:
    """Give each list of the history a value for each epoch, NaN where there was no result.

    Args:
        logs: of the newest epoch.
    """
    for name, values in history.history.items():
        gap = [nan] * (len(history.epoch) - len(values))
        values[:] = gap + values if name in logs else values + gap


class SharedFit:
    """The epochs of one `fit`; created before the worker joins.

    Raises ValueError, in one line, for a `fit` that cannot train shared data.
    """

    def __init__(self, worker: Worker, share: Share, model: keras.Model, params: dict[str, Any],
                 fit: Fit, once: Collection[keras.callbacks.Callback] = ()):
        """`once`: callbacks that save the versions of epochs."""
        self._worker = worker
        self._share = share
        self._model = model
        self._params = params
        self._once = once
        self._saves = False  # one of these is in this fit
        self._history: keras.callbacks.History | None = None
        self._validated = fit.argument("validation_data", True) is not None
        self._shown = ShownVersion(worker, model)
        self._validates = False  # in the current validation, or in the last one
        self._names: dict[str, str] = {}  # of validation results: as sent -> as here
        self._told = -1  # newest epoch whose results the callbacks were given
        self._look = False  # the current step trains no example of the run
        if params.get("steps") != UNTIL_TOLD:
            raise ValueError(
                "the data of examples() are endless: give fit steps_per_epoch=hook.UNTIL_TOLD, so "
                "that its epochs end with the run's; make another SyncCallback for a fit on other "
                "data")
        if model.steps_per_execution != 1:
            raise ValueError(f"steps_per_execution={model.steps_per_execution}: an epoch of shared "
                             "data may end at any step; compile the model with "
                             "steps_per_execution=1")
        if reads_ahead():
            raise ValueError("on JAX with a GPU or TPU Keras requests one batch ahead, but a batch "
                             "of shared data is unknown until the step before it has ended: use "
                             "another back end, or JAX_PLATFORMS=cpu")
        if share.running:
            raise ValueError("another fit of this process trains the data of examples() now: give "
                             "this one data of its own")
        if share.waits and not self._validated:
            raise ValueError("validate='wait' has each worker wait for the results of an epoch, "
                             "but this fit validates nothing: give it validation_data, or leave "
                             "validate='wait' out")
        params["steps"] = None  # callbacks share it: progress bars must not show a false end
        share.wants(params["epochs"], fit.argument("initial_epoch", 0))

    def begins(self) -> None:
        """Note that the worker has joined, and has its first examples; or no example is left."""
        share, say = self._share, self._worker.say
        epochs = share.data.epochs
        if not share.ready:
            say(f"no example of {epochs} epochs is left to train: showing one batch to the model, "
                "which is not trained, and ending with the run's final version")
        elif share.next_epoch:
            say(f"joined in epoch {share.next_epoch + 1} of {epochs}")
        if self._validated or self._saves:
            self._worker.begun().announce()

    def surround(self, first: Edge, last: Edge, callbacks: list[keras.callbacks.Callback]) -> None:
        """Have the edges of all `callbacks` of this fit act at epochs' ends."""
        bars = [one for one in callbacks if isinstance(one, keras.callbacks.ProgbarLogger)]
        begins, ends, tests = first.on_epoch_begin, first.on_epoch_end, first.on_test_begin
        ended = last.on_epoch_end
        self._history = next(
            (one for one in callbacks if isinstance(one, keras.callbacks.History)), None)
        self._saves = any(one in self._once for one in callbacks)

        def train_begun(logs: Logs = None) -> None:
            self.train_begun()

        def epoch_begins(epoch: int, logs: Logs = None) -> None:
            self._model._initial_epoch = None  # else the model's next fit would begin there, too
            begins(epoch, logs)
            for bar in bars:
                bar.target = None  # it takes the steps of one epoch for those of the next

        def epoch_ends(epoch: int, logs: Logs = None) -> None:
            ends(epoch, logs)
            self.epoch_ends({} if logs is None else logs)

        def test_begins(logs: Logs = None) -> None:
            tests(logs)
            self.test_begins()

        def all_ended(epoch: int, logs: Logs = None) -> None:
            if self._history is not None:
                fill(self._history, logs or {})
            self.epoch_ended()
            ended(epoch, logs)

        first.act(on_epoch_begin=epoch_begins, on_epoch_end=epoch_ends, on_test_begin=test_begins)
        last.act(on_train_begin=train_begun, on_epoch_end=all_ended)

    def train_begun(self) -> None:
        """Have Keras begin with the run's epoch; runs after the other callbacks' on_train_begin."""
        share, epochs = self._share, self._params["epochs"]
        first = min(share.next_epoch, epochs - 1)
        chosen = self._model._initial_epoch  # by a callback, for which there is no public name
        if chosen is not None and chosen != first:
            self._worker.say(Fit.other_epoch.format(chosen + 1, first + 1, epochs))
        self._model._initial_epoch = first

    def step_begins(self) -> bool:
        """Return False for a step that trains no example of the run, as Keras needs one."""
        self._look = not self._share.ready
        return not self._look

    def step_ends(self) -> bool:
        """Return False, and undo the step, if it has trained no example of the run.

        Raises ValueError if it has trained other data.
        """
        if not self._look and not self._share.handed_out:
            raise ValueError("fit trains other data than this callback's examples() returned: give "
                             "it only that")
        if self._look:
            self._worker.begun().put_back()
            self._model.stop_training = True
        else:
            self.end_for_all()
        return not self._look

    @property
    def samples(self) -> int:
        """Number of examples of the step that has ended, until the worker notes that."""
        return self._share.oldest

    def goes_on(self) -> None:
        """End the epoch if the next step's examples belong to the next one."""
        if not self._model.stop_training and self._share.next_epoch > self._share.epoch:
            self._model.stop_training = _EPOCH_ENDS

    def test_begins(self) -> None:
        """Begin a validation. The server chooses one worker to validate an epoch's version; the
        others see one batch, and with `validate="wait"` wait for the results before."""
        share = self._share
        # a worker without examples of the last epochs waits for their results, too
        epoch = max(share.epoch, share.next_epoch - 1) if share.waits else share.epoch
        with self._worker.leaving_on_error():
            self._validates = self._shown.show(AskVersion(epoch, True))
        if not self._validates:
            self._model.stop_evaluating = True
            measured = -1 if share.measured is None else share.measured.epoch
            if share.waits and measured < epoch and not share.early:
                self._worker.say(f"continuing without the results of epoch {epoch + 1}: "
                                 "no worker validates it any more")

    def test_batch_ends(self) -> None:
        """End the validation if the run was ended early: the others wait for this worker."""
        if self._validates and self._share.early:
            self._validates = False
            self._model.stop_evaluating = True

    def epoch_ends(self, logs: dict[str, Any]) -> None:
        """Show the callbacks an epoch's results; runs before their on_epoch_end.

        The results of a validation are the run's. If this worker has validated, or saves, its model
        is the version that they describe.

        Args:
            logs: changed in place; without validation results if there are none since the last
                epoch.
        """
        if self._model.stop_training is _EPOCH_ENDS:
            self._model.stop_training = False
        mine = {name: logs.pop(name) for name in [*logs] if name.startswith("val_")}
        sent, names = given.metrics(mine)
        if mine and self._validates and self._shown.epoch is not None:
            self._tell_left_out(mine, names)
            own = Measured(self._shown.epoch, sent)
            self._share.validated(own)
            self._worker.begun().tell(own)
        self._validates = False
        self._names.update((given.short(name), name) for name in reversed([*mine]))
        newest = self._share.measured
        if self._saves:
            with self._worker.leaving_on_error():
                newest = self._show_validated()
        if mine and newest is not None and newest.epoch > self._told:
            self._told = newest.epoch
            logs.update(self._by_own_names(newest.values), val_epoch=newest.epoch + 1)
        elif mine:  # Keras would warn that there is no such metric
            for name in mine:
                warnings.filterwarnings("ignore", rf".*(conditioned on metric `{re.escape(name)}` "
                                                  rf"which|only with {re.escape(name)} available)")

    def _tell_left_out(self, mine: dict[str, Any], names: dict[str, str]) -> None:
        """Print once which results the others are not sent."""
        finite = [name for name, value in mine.items() if name in names or isfinite(value)]
        if left := [name for name in finite if name not in names]:
            self._worker.say_once(
                f"the run gets {len(names)} of {len(finite)} validation results, because it takes "
                f"{given.METRICS} at most, whose first {given.NAMED} characters differ: "
                f"{given.shown(left[0])} is the first that it lacks")

    def _by_own_names(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return results by the names that Keras has for them here; long ones are shortened.
        """
        return {self._names.get(name, name): value for name, value in values.items()}

    def _show_validated(self) -> Measured | None:
        """Show the version that was validated last; return its results, or older ones.

        If another version is validated meanwhile, show that one instead.
        """
        while True:
            before = self._shown.epoch
            if not self._shown.show(AskVersion(self._share.epoch)):
                self._worker.say_once(
                    "the server has no epoch's version: callbacks of once() get this worker's own "
                    "training state")
                return self._share.measured
            newest, shown = self._share.measured, self._shown.epoch  # in this order
            if newest is None or shown is None or newest.epoch <= shown or shown == before:
                return newest

    def epoch_ended(self) -> None:
        """Restore the model; runs after the other callbacks' on_epoch_end."""
        self._shown.put_back()
        self.end_for_all()

    def ended(self) -> None:
        """Complete the history by the last epoch's results, which may have come after the epoch."""
        history, newest = self._history, self._share.measured
        if (history is None or not history.epoch or "val_epoch" not in history.history
                or newest is None or newest.epoch <= self._told):
            return
        found = self._by_own_names(newest.values)
        for name, value in {**found, "val_epoch": newest.epoch + 1}.items():
            if name in history.history:
                history.history[name][-1] = value

    def end_for_all(self) -> None:
        """End the run if a callback has ended the training of this worker."""
        stop = self._model.stop_training
        if stop and stop is not _EPOCH_ENDS and self._worker.stop_reason is None:
            self._worker.stop_run("a callback ended the training")
