"""The learning rate of a step of `fit` on fewer examples than the script's."""

from __future__ import annotations

from collections.abc import Callable

import keras

from wbsp.replica.layers import optimizers, scheduled
from wbsp.sync.batch import power_of
from wbsp.worker.keras.fit import Edge, Logs
from wbsp.worker.rate import UNKNOWN, StepRate


class BatchRate:
    """Sets the rate of one `fit` for each step, after the callbacks of its begin, and undoes that
    before those of its end: their rates stay the script's.

    model: returns the model; on JAX, with the values of its newest step
    """

    def __init__(self, rate: StepRate, model: Callable[[], keras.Model],
                 say: Callable[[str], None]):
        self._rate, self._model = rate, model
        self._own: float | None = None  # in a step with another rate
        found = optimizers(model())
        power = power_of(type(found[0])) if len(found) == 1 else None
        if power is None:
            say(UNKNOWN.format(" and ".join(type(one).__name__ for one in found) or "no optimizer"))
        elif name := scheduled(model()):
            power = None
            say(UNKNOWN.format(f"{name} in the optimizer"))
        rate.goes_by(power)

    def surround(self, first: Edge, last: Edge) -> None:
        """Have the list's edges set and undo the rate."""
        ended = getattr(first, "on_train_batch_end", None)
        begins = getattr(last, "on_train_batch_begin", None)

        def step_begins(batch: int, logs: Logs = None) -> None:
            if begins is not None:
                begins(batch, logs)
            self._begins()

        def step_ended(batch: int, logs: Logs = None) -> None:
            self.undo()
            if ended is not None:
                ended(batch, logs)

        last.act(on_train_batch_begin=step_begins)
        first.act(on_train_batch_end=step_ended)

    def _begins(self) -> None:
        if (factor := self._rate.factor) != 1.0:
            optimizer = self._model().optimizer
            self._own = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
            optimizer.learning_rate = self._own * factor

    def undo(self) -> None:
        """Set the script's rate again, at the end of a step, or of a `fit` that an error ends."""
        if self._own is not None:
            self._model().optimizer.learning_rate, self._own = self._own, None
