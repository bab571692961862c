"""What cutting and adopting cost the compute thread, in passes over the memory of the model.

    KERAS_BACKEND=jax python -m lab.benchmarks.cut [--mb=553] [--json FILE]

A pass is a copy of the model's vector to other memory that is there already, timed right before or
after: it reads each value once and writes it once. Shown is processor time of the compute thread,
which a busy machine changes less than the time on the clock; what a back end's other threads do
beside it is not in it. What the communication thread makes of a cut stands by itself. The model has
the form of VGG16: most of it is one matrix.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from scripts.harness import print_table, ratios, spread, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=float, default=102.0, help="size of the model")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        figures = measure(args.mb, args.rounds)
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"lab.benchmarks.cut: {error}")
    write_json(args.json, {"cut": figures})


def measure(mb: float, rounds: int) -> dict:
    """Measure, print a table, return its figures."""
    import keras

    from wbsp.replica.model import open_replica

    width = max(1, int((mb * 1e6 / 4 / 1.33) ** 0.5))
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width),
                              keras.layers.Dense(width // 3), keras.layers.BatchNormalization()])
    replica = open_replica(model)
    x = replica.read()
    other, versions = np.zeros_like(x), [np.zeros_like(x), np.ones_like(x)]

    def version() -> Any:
        versions.reverse()
        versions[0].flags.writeable = True
        return replica.bring(versions[0])

    def stepped(act: Callable[[], Any]) -> Callable[[], Any]:
        def after_a_step():
            replica.stepped()
            return act()
        return after_a_step

    def rebase_and_cut() -> Any:
        replica.adopt(version(), "rebase")
        return replica.cut()

    acts: dict[str, Callable[[], Any]] = {
        "cut": stepped(replica.cut),
        "adopt, replacing": lambda: replica.adopt(version(), "replace"),
        "adopt, rebasing": stepped(lambda: replica.adopt(version(), "rebase")),
        "adopt, rebasing, and cut": stepped(rebase_and_cut),
    }
    passes: dict[str, list[float]] = {name: [] for name in acts}
    copies: list[float] = []
    made: list[float] = []
    for _ in range(rounds):
        for name, act in acts.items():
            np.asarray(act())
            copies.append(_seconds(lambda: np.copyto(other, x))[0])
            seconds, update = _seconds(act)
            passes[name].append(seconds)
            if name == "cut":
                made.append(_seconds(partial(np.asarray, update))[0])
            elif update is not None:
                np.asarray(update)
    per_act = {name: ratios(times, copies[index::len(acts)])
               for index, (name, times) in enumerate(passes.items())}
    per_act["(communication thread: of a cut)"] = ratios(made, copies[::len(acts)])
    print_table(("passes", "median", "min", "max"), [
        (name, *(f"{ratio[part]:.2f}" for part in ("median", "min", "max")))
        for name, ratio in per_act.items()])
    print(f"{keras.backend.backend()}, {x.nbytes / 1e6:.0f} MB; a pass: "
          f"{1e3 * spread(copies)['median']:.1f} ms of processor time")
    return {"back_end": keras.backend.backend(), "bytes": x.nbytes, "passes": per_act}


def _seconds(act: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of this thread in `act`, and what that returned."""
    start = time.thread_time()
    result = act()
    return time.thread_time() - start, result


if __name__ == "__main__":
    main()
