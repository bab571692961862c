"""A `fit` on the run's shared data: its epochs are the run's, its end is everybody's.

Keras knows no end of an epoch that comes as news. So the data have no end, and the step at which
the run's epoch ends, as far as this worker takes part in it, says `stop_training`, by a value that
is taken back in `on_epoch_end`: public API alone, and the same on every back end.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from typing import Any

import keras

from wbsp.core.messages import Measured
from wbsp.wire.messages.reading import AskVersion
from wbsp.worker.keras.fit import Edge, Fit
from wbsp.worker.keras.input import reads_ahead
from wbsp.worker.keras.shown_version import ShownVersion
from wbsp.worker.loop import Worker
from wbsp.worker.share import Share

UNTIL_TOLD = 10**9  # steps of an epoch: as many as it takes


class _EpochEnds:
    """In `stop_training`: this epoch ends, and others follow."""


_EPOCH_ENDS = _EpochEnds()


class SharedFit:
    """The epochs of one `fit`; made before the worker joins.

    Raises ValueError, in one line, for a `fit` that cannot be one on shared data.
    """

    def __init__(self, worker: Worker, share: Share, model: keras.Model, params: dict[str, Any],
                 fit: Fit, once: Collection[keras.callbacks.Callback] = ()):
        """`once`: callbacks that are to see the versions of epochs."""
        self._worker = worker
        self._share = share
        self._model = model
        self._once = once
        self._saves = False  # one of these is in this fit
        self._validated = fit.argument("validation_data", True) is not None
        self._shown = ShownVersion(worker, model)
        self._validates = False  # in the validation under way, or the last one
        self._told = -1  # the newest epoch of whose validation the callbacks were told
        self._look = False  # the step under way trains no example of the run
        if params.get("steps") != UNTIL_TOLD:
            raise ValueError(
                "data of examples() have no end of their own: give fit "
                "steps_per_epoch=hook.UNTIL_TOLD, and an epoch ends where the run's does; make "
                "another SyncCallback for a fit on other data")
        if model.steps_per_execution != 1:
            raise ValueError(f"steps_per_execution={model.steps_per_execution}: an epoch of shared "
                             "data may end at any step; compile the model with "
                             "steps_per_execution=1")
        if reads_ahead():
            raise ValueError("on JAX with a GPU or TPU Keras asks for one batch ahead, and of "
                             "shared data that is not known before the step has ended: use another "
                             "back end, or JAX_PLATFORMS=cpu")
        if share.waits and not self._validated:
            raise ValueError("validate='wait' has each worker wait for the results of an epoch, "
                             "and this fit has none: give it validation_data, or leave "
                             "validate='wait' out")
        params["steps"] = None  # callbacks share it: no bar is to show an end that is none
        share.wants(params["epochs"], fit.argument("initial_epoch", 0))

    def begins(self) -> None:
        """The worker has joined, and has its first examples; or nothing is left."""
        share, say = self._share, self._worker.say
        epochs = share.data.epochs
        if not share.ready:
            say(f"nothing is left to train of {epochs} epochs: fit shows one batch to the model, "
                "which is not counted, and ends with the run's final version")
        elif share.next_epoch:
            say(f"joins in epoch {share.next_epoch + 1} of {epochs}; Keras counts the epochs of "
                "this fit")
        if self._validated or self._saves:
            self._worker.begun().tell(AskVersion())

    def surround(self, first: Edge, last: Edge, callbacks: list[keras.callbacks.Callback]) -> None:
        """Have the edges of all `callbacks` of this fit do what is to be done at epochs' ends."""
        bars = [one for one in callbacks if isinstance(one, keras.callbacks.ProgbarLogger)]
        begins, ends, tests = first.on_epoch_begin, first.on_epoch_end, first.on_test_begin
        ended = last.on_epoch_end
        self._saves = any(one in self._once for one in callbacks)

        def epoch_begins(epoch, logs=None):
            begins(epoch, logs)
            for bar in bars:
                bar.target = None  # it takes the steps of one epoch for those of the next

        def epoch_ends(epoch, logs=None):
            ends(epoch, logs)
            self.epoch_ends({} if logs is None else logs)

        def test_begins(logs=None):
            tests(logs)
            self.test_begins()

        def all_ended(epoch, logs=None):
            self.epoch_ended()
            ended(epoch, logs)

        first.on_epoch_begin, first.on_epoch_end = epoch_begins, epoch_ends
        first.on_test_begin = test_begins
        last.on_epoch_end = all_ended

    def step_begins(self) -> bool:
        """False for a step that trains no example of the run, as Keras needs one."""
        self._look = not self._share.ready
        return not self._look

    def step_ends(self) -> bool:
        """False where the step has trained no example of the run: it is undone.

        Raises ValueError for one that has trained others.
        """
        if not self._look and not self._share.handed_out:
            raise ValueError("fit trains other data than what this callback's examples() has "
                             "returned: give it that, alone")
        if self._look:
            self._worker.begun().put_back()
            self._model.stop_training = True
        else:
            self.end_for_all()
        return not self._look

    def goes_on(self) -> None:
        """The step is pushed, as the rule says, and the next one's examples are here."""
        if not self._model.stop_training and self._share.next_epoch > self._share.epoch:
            self._model.stop_training = _EPOCH_ENDS

    def test_begins(self) -> None:
        """An epoch's version is validated by one worker, as the server says. The others see one
        batch, and wait for the results before, where all do."""
        share = self._share
        # who has trained nothing of the last epochs waits for those, too
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
        """Where the run was ended early, so is the validation: the others wait for this worker."""
        if self._validates and self._share.early:
            self._validates = False
            self._model.stop_evaluating = True

    def epoch_ends(self, logs: dict[str, Any]) -> None:
        """Before the other callbacks' on_epoch_end: what they see of a validation is the run's, and
        the model of who has validated, or saves, is the version that it is of.

        logs: changed in place. Where no result has come since the epoch before, there is none in it
        """
        if self._model.stop_training is _EPOCH_ENDS:
            self._model.stop_training = False
        mine = {name: logs.pop(name) for name in [*logs] if name.startswith("val_")}
        if mine and self._validates and self._shown.epoch is not None:
            own = Measured(self._shown.epoch, {name: value for name, value in mine.items()
                                               if isfinite(value)})
            self._share.validated(own)
            self._worker.begun().tell(own)
        self._validates = False
        newest = self._share.measured
        if self._saves:
            with self._worker.leaving_on_error():
                newest = self._show_validated()
        if mine and newest is not None and newest.epoch > self._told:
            self._told = newest.epoch
            logs.update(newest.values, val_epoch=newest.epoch)

    def _show_validated(self) -> Measured | None:
        """The model becomes the version that was validated last; return what was measured of it, or
        of one before it.

        Another one may be validated while that is read: then it is read, too.
        """
        while True:
            before = self._shown.epoch
            if not self._shown.show(AskVersion(self._share.epoch)):
                self._worker.say_once(
                    "no epoch's version is there: callbacks of once() see what this worker trains")
                return self._share.measured
            newest, shown = self._share.measured, self._shown.epoch  # in this order
            if newest is None or shown is None or newest.epoch <= shown or shown == before:
                return newest

    def epoch_ended(self) -> None:
        """Behind the other callbacks' on_epoch_end."""
        self._shown.put_back()
        self.end_for_all()

    def end_for_all(self) -> None:
        """Where a callback has ended the training of this worker, end the run."""
        stop = self._model.stop_training
        if stop and stop is not _EPOCH_ENDS and self._worker.stop_reason is None:
            self._worker.stop_run("a callback ended the training")
