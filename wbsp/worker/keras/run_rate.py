"""ReduceLROnPlateau on shared data: the learning rate that it sets is the run's.

Every worker has such a callback and receives the run's results; a slow worker does not receive all
of them. When the callback of one worker changes the rate at an epoch's end, the server sends that
rate to all workers. It takes the first rate of each epoch and drops later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from wbsp.core.messages import LearningRate
from wbsp.worker.keras.fit import Edge, Logs
from wbsp.worker.loop import Worker


class RunRate:
    """The learning rate of one `fit` on data that `worker` shares, with these callbacks."""

    def __init__(self, worker: Worker, model: keras.Model,
                 callbacks: Sequence[keras.callbacks.Callback]):
        assert worker.share is not None
        self._worker, self._share, self._model = worker, worker.share, model
        self._plateaus = [one for one in callbacks
                          if isinstance(one, keras.callbacks.ReduceLROnPlateau)]
        self._adopted: LearningRate | None = None
        self._before = 0.0

    def surround(self, first: Edge, last: Edge) -> None:
        """Have the list's edges keep the rate, if one of its callbacks changes it."""
        if not self._plateaus:
            return
        begins, ends, ended = first.on_epoch_begin, first.on_epoch_end, last.on_epoch_end

        def epoch_begins(epoch: int, logs: Logs = None) -> None:
            begins(epoch, logs)
            self._adopt()

        def epoch_ends(epoch: int, logs: Logs = None) -> None:
            ends(epoch, logs)
            self._adopt()
            self._before = self._rate

        def all_ended(epoch: int, logs: Logs = None) -> None:
            self._tell(logs or {})
            ended(epoch, logs)

        first.act(on_epoch_begin=epoch_begins, on_epoch_end=epoch_ends)
        last.act(on_epoch_end=all_ended)

    @property
    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self._model.optimizer.learning_rate))

    def _adopt(self) -> None:
        """Adopt the run's rate if it has changed."""
        told = self._share.rate
        if told is None or told is self._adopted:
            return
        self._adopted = told
        if told.rate != self._rate:
            self._model.optimizer.learning_rate = told.rate
            self._worker.say(f"changing the learning rate to the run's, {told.rate:g}")
            for one in self._plateaus:  # as if they had set the rate
                one.wait, one.cooldown_counter = 0, one.cooldown

    def _tell(self, logs: dict[str, Any]) -> None:
        """Send a rate that the callbacks of an epoch's end have set."""
        rate, told = self._rate, self._share.rate
        if rate == self._before:
            return
        epoch = int(logs.get("val_epoch", self._share.epoch + 1)) - 1
        if told is None or told.epoch < epoch:
            if abs(rate) <= 1e300:  # no other worker could adopt it
                self._worker.begun().tell(LearningRate(epoch, rate))
        else:  # the run already has a rate for that epoch
            self._model.optimizer.learning_rate = told.rate
