"""What the synchronization hook costs: plain `model.fit` beside the same fit as a worker.

    python -m benchmarks.step_overhead [--quick] [--json FILE]

One worker under pcc (optimized WBSP) and its server on this machine: every version is fetched, and
a push is under way most of the time. The two fits take short turns in one process, on one compiled
model; the worker stays in the run between its turns. A fit's beginning is left out: timed is what
lies between the end of its first epoch and the end of its last. The time spent inside the hook is
shown beside it: the difference is what the communication thread and the server take from the step.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from benchmarks.harness import print_table, ratios, server, spread, write_json

EPOCH = 4  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="cnn", help="as runcifar10gpu.py's")
    parser.add_argument("--dataset", default="shapes10", help="as runcifar10gpu.py's")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=20, help="turns of each of the two")
    parser.add_argument("--epochs", type=int, default=1, help=f"timed in a turn, of {EPOCH} steps")
    parser.add_argument("--quick", action="store_true", help="5 pairs")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.pairs = 5
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        figures = measure(args.model, args.dataset, args.batch_size, args.pairs, args.epochs)
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"benchmarks.step_overhead: {error}")
    write_json(args.json, {"step_overhead": figures})


def measure(model: str, dataset: str, batch_size: int, pairs: int, epochs: int) -> dict:
    """Measure, print a table, return its figures."""
    import data
    import models
    from models import training

    batches = data.train_dataset(dataset, batch_size, seed=0, worker_index=0)
    network = training.compile(models.build(model, seed=0), model)
    figures = {"model": model, "dataset": dataset, "batch_size": batch_size, "pairs": pairs,
               **compare(network, batches, pairs, epochs)}
    print_table(("", "median", "min", "max"),
                [(name, *(f"{figures[key][part]:.{digits}f}" for part in ("median", "min", "max")))
                 for name, key, digits in (("plain ms/step", "plain_ms", 2),
                                           ("synced ms/step", "synced_ms", 2),
                                           ("inside the hook", "hook_ms", 2),
                                           ("overhead %", "overhead_percent", 1))])
    print(f"{model}, batch {batch_size}; overhead: of {pairs} pairs of turns, one right after the "
          "other")
    return figures


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


if __name__ == "__main__":
    main()
