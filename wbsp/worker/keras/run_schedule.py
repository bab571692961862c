"""A learning rate that follows the steps of all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from wbsp.worker.errors import in_one_line
from wbsp.worker.keras.fit import Logs

if TYPE_CHECKING:
    from wbsp.worker.keras.callback import SyncCallback


class RunSchedule(keras.callbacks.Callback):
    """Set the learning rate of each step by the number of steps that all workers have made.

        schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=40_000)  # of all
        model.compile(keras.optimizers.SGD(0.1), ...)
        model.fit(..., callbacks=[hook, wbsp.RunSchedule(schedule, hook)])

    The number of steps is `SyncCallback.run_steps`. On shared data `epochs` passes over n examples
    are epochs * n / batch_size steps of all workers. A worker receives the others' with the answer
    to each push. A restarted worker continues at the run's number. `SyncCallback.done`, from 0 to
    1, needs no number of steps: RunSchedule(lambda steps: 0.1 * (1 - hook.done), hook).
    """

    def __init__(self, schedule: Callable[[Any], Any], hook: SyncCallback):
        """Take a schedule, and the hook that counts the run's steps.

        Args:
            schedule: number of steps -> learning rate: one of `keras.optimizers.schedules`, or
                any function of an int.
            hook: the SyncCallback of the same `fit`.
        """
        super().__init__()
        self._rate = _compiled(schedule)
        self._hook = hook

    def on_train_begin(self, logs: Logs = None) -> None:
        """Check the optimizer.

        Raises:
            ValueError: the optimizer has a schedule of its own.
        """
        with in_one_line():
            optimizer = self.model.optimizer
            try:
                optimizer.learning_rate = float(
                    keras.ops.convert_to_numpy(optimizer.learning_rate))
            except TypeError:
                raise ValueError(
                    "the optimizer has a schedule of its own, which counts this worker's steps: "
                    "compile the model with a number as learning rate, and give the schedule to "
                    "RunSchedule") from None

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self.model.optimizer.learning_rate = self._rate(self._hook.run_steps)


def _compiled(schedule: Callable[[Any], Any]) -> Callable[[int], Any]:
    """Return one of Keras's schedules as a function that takes microseconds, if possible."""
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return schedule
    match keras.backend.backend():
        case "tensorflow":
            import tensorflow as tf
            rate = tf.function(schedule, input_signature=[tf.TensorSpec([], tf.int64)])
            return lambda steps: rate(tf.constant(steps, tf.int64))
        case "jax":
            import jax
            return jax.jit(schedule)
    return schedule
