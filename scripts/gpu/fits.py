"""What a process computes to see what training costs: pairs of fits, and a worker of a run."""

from __future__ import annotations

import time
from typing import Any

import keras

import wbsp
from scripts.gpu import hook, networks

_ready: dict[tuple, tuple[keras.Model, networks.Batches]] = {}


def overhead(network: str, batch_size: int, side: int | None, pairs: int,
             epochs: int) -> dict[str, Any]:
    """Figures of `hook.compare`, and the size of the model."""
    model, batches = prepare(network, batch_size, side)
    size = 4 * model.count_params()
    return {"bytes": size, **hook.compare(model, batches, pairs, epochs)}


def prepare(network: str, batch_size: int, side: int | None = None) -> tuple[
        keras.Model, networks.Batches]:
    """Return the network after two steps, and batches for it; keep both for the next call."""
    key = network, batch_size, side
    if key not in _ready:
        model = networks.build(network, side)
        batches = networks.Batches(model, batch_size)
        _fit(model, batches, 2)  # compiles
        _ready[key] = model, batches
    return _ready[key]


def warm(network: str, batch_size: int) -> None:
    """Have the network ready, so that `work` begins to train at once."""
    prepare(network, batch_size)


def work(address: str, worker: int, network: str, batch_size: int, seconds: float,
         sleep: float) -> dict[str, float]:
    """Be worker number `worker` of a run for some seconds from its first step on.

    sleep: seconds before each step
    Returns the steps of its later half, and the seconds that they took.
    """
    model, batches = prepare(network, batch_size)
    clock = _Clock(seconds, sleep)
    _fit(model, batches, 10**9, wbsp.SyncCallback(address, worker, say=networks.silent), clock)
    return clock.later_half()


def _fit(model: keras.Model, batches: networks.Batches, steps: int, *callbacks: Any) -> None:
    model.fit(batches, epochs=1, steps_per_epoch=steps, verbose=0, shuffle=False,
              callbacks=list(callbacks))


class _Clock(keras.callbacks.Callback):
    """Ends a fit after some seconds, and sleeps before each of its steps."""

    def __init__(self, seconds: float, sleep: float):
        super().__init__()
        self._seconds, self._sleep = seconds, sleep
        self._ends: list[float] = []  # of steps

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(self._sleep)

    def on_train_batch_end(self, batch, logs=None):
        # The hook, called before, has read the loss: a GPU is done with this step.
        self._ends.append(time.monotonic())
        if self._ends[-1] - self._ends[0] >= self._seconds:
            self.model.stop_training = True

    def later_half(self) -> dict[str, float]:
        """Steps that ended in the later half of the fit, and the seconds from the first one's
        begin to the last one's end."""
        half = next(n for n, end in enumerate(self._ends)
                    if end - self._ends[0] >= (self._ends[-1] - self._ends[0]) / 2)
        half = min(half, max(0, len(self._ends) - 2))
        return {"steps": len(self._ends) - 1 - half,
                "seconds": self._ends[-1] - self._ends[half]}
