"""The cost of the synchronization hook: turns of plain `model.fit` beside turns of the same fit as
a worker, in one process, on one compiled model. The worker stays in the run between its turns."""

from __future__ import annotations

import time
from typing import Any

from scripts.harness import ratios, server, spread

EPOCH = 4  # steps


def compare(network: Any, batches: Any, pairs: int, epochs: int, **given: Any) -> dict:
    """Figures of `pairs` turns of a plain fit and of a worker's, each of `epochs` that are timed.

    network: compiled keras.Model; batches: an endless data set for its `fit`; given: to the hook
    """
    def step_ms(*callbacks: Any) -> float:
        """Milliseconds per step of a fit."""
        clock = _epoch_clock()
        network.fit(batches, epochs=1 + epochs, steps_per_epoch=EPOCH, verbose=0, shuffle=False,
                    callbacks=[*callbacks, clock])
        return 1e3 * (clock.ends[-1] - clock.ends[0]) / (EPOCH * epochs)

    with server("pcc", workers=1) as address:
        step_ms()  # traces what is to be traced
        hook = _resident_hook(address, network, **given)
        step_ms(hook)
        plain: list[float] = []
        synced: list[float] = []
        inside: list[float] = []
        for pair in range(pairs):
            hook.seconds.clear()
            turns = [(plain, ()), (synced, (hook,))]
            for times, callbacks in turns if pair % 2 else reversed(turns):
                times.append(step_ms(*callbacks))
            inside.append(1e3 * sum(hook.seconds) / len(hook.seconds))
        push_bytes = hook.push_bytes
        hook.leave()
    overhead = {name: 100 * (ratio - 1) for name, ratio in ratios(synced, plain).items()}
    return {"plain_ms": spread(plain), "synced_ms": spread(synced), "hook_ms": spread(inside),
            "overhead_percent": overhead, "push_bytes": push_bytes}


def _epoch_clock():
    """Return a callback that notes when epochs end; it leaves the steps of a fit as they are."""
    import keras

    class EpochClock(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.ends = []

        def on_epoch_end(self, epoch, logs=None):
            float(logs["loss"])  # waits for the steps that a GPU has in its queue
            self.ends.append(time.perf_counter())

    return EpochClock()


def _resident_hook(address: str, network: Any, **given: Any) -> Any:
    """Return the synchronization hook of worker 0, a member of the run until it is told to leave.

    It joins outside of `fit`: a worker that joins in a `fit` leaves when that is over.
    """
    import wbsp

    class ResidentHook(wbsp.SyncCallback):
        def __init__(self, *args, **given):
            # It would say that the turns without it have changed the weights.
            super().__init__(*args, say=lambda text: None, **given)
            self.seconds = []  # spent here at each step's end
            self.set_model(network)
            super().on_train_begin()

        def on_train_begin(self, logs=None):
            pass

        def on_train_batch_end(self, batch, logs=None):
            start = time.perf_counter()
            super().on_train_batch_end(batch, logs)
            self.seconds.append(time.perf_counter() - start)

        def on_train_end(self, logs=None):
            pass

        @property
        def push_bytes(self):
            return self._worker.begun().report().push_bytes

        def leave(self):
            super().on_train_end()

    return ResidentHook(address, 0, **given)
