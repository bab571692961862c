"""A `fit` whose run has ended: see `wbsp.worker.passed`.

It shows one batch to the model, since Keras needs one, and leaves that run's final version and
history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from wbsp.saved import assign
from wbsp.worker.keras.fit import Edge, Fit
from wbsp.worker.loop import Worker


class PassedFit:
    """Such a `fit`, from `on_train_begin` on.

    Raises TransportError if the final version cannot be read, ValueError for a model of another
    layout.
    """

    def __init__(self, worker: Worker, model: keras.Model, fit: Fit):
        self._model = model
        self._run = worker.pass_by()
        self._show()
        worker.say(self._run.begins("showing one batch to the model, which is not trained"))
        last = Edge(on_train_batch_end=self.step_ends, on_train_end=self.fit_ends)
        first = Edge(on_epoch_end=self.epoch_ends, on_test_begin=self.test_begins)
        fit.surround(first, last)

    def step_ends(self, batch: int, logs: Any = None) -> None:
        """End training after one batch."""
        self._show()
        self._model.stop_training = True

    def epoch_ends(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Give callbacks the results of the run's last epoch, if they are recorded."""
        if logs is not None and (epochs := self._epochs):
            logs.clear()
            logs.update(epochs[max(epochs)])

    def test_begins(self, logs: Any = None) -> None:
        """End the validation."""
        self._model.stop_evaluating = True

    def fit_ends(self, logs: Any = None) -> None:
        """Leave the final version, and the run's history in place of this fit's."""
        self._show()
        if not (epochs := self._epochs):
            return
        history = self._model.history
        history.epoch = sorted(epochs)
        history.history = {}
        for epoch in history.epoch:
            for name, value in epochs[epoch].items():
                history.history.setdefault(name, []).append(value)

    @property
    def _epochs(self) -> Mapping[int, dict[str, float]]:
        """The recorded results of the run's epochs."""
        return {epoch: values | ({"val_epoch": epoch + 1} if any(
            name.startswith("val_") for name in values) else {})
            for epoch, values in self._run.saved.state.found.items()}

    def _show(self) -> None:
        assign(self._run.saved, self._model, self._run.of)
