"""What a worker's process takes of memory beside the same training without a server.

    KERAS_BACKEND=jax python -m lab.benchmarks.memory [--mb=553] [--tcp] [--json FILE]

A plain `fit`, and two workers under a synchronization model with their server, each a process of
its own; the model is one matrix and a smaller one, trained by plain SGD. Shown is the most that a
process had for itself, in vectors of the model, and what the workers had more of than the plain
one. Shared memory is the server's (docs/tutorial/your-model.md), and stands by itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from lab.benchmarks.contenders.team import start_team
from scripts.harness import print_table, server, write_json

BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=float, default=102.0, help="size of the model")
    parser.add_argument("--sync", default="pcc")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--tcp", action="store_true", help="no shared memory")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not Path("/proc/self/status").exists():
        sys.exit("lab.benchmarks.memory: this system has no /proc/self/status")
    try:
        figures = measure(args.mb, args.sync, args.steps, "tcp" if args.tcp else "auto")
    except (RuntimeError, OSError) as error:
        sys.exit(f"lab.benchmarks.memory: {error}")
    write_json(args.json, {"memory": figures})


def measure(mb: float, sync: str, steps: int, transport: str) -> dict:
    """Measure, print a table, return its figures."""
    with start_team(_trains, [(mb, steps, None, 0, transport)]) as team:
        (plain,) = team.answers()
    with server(sync, 2) as address, start_team(_trains, [
            (mb, steps, address, worker, transport) for worker in range(2)]) as team:
        workers = team.answers()
    vector = plain["vector"]
    print_table(("in vectors", "for itself", "more than plain", "shared"), [
        (name, f"{one['own'] / vector:.2f}", f"{(one['own'] - plain['own']) / vector:.2f}",
         f"{one['shared'] / vector:.2f}")
        for name, one in (("plain", plain), ("worker 0", workers[0]), ("worker 1", workers[1]))])
    print(f"{plain['back_end']}, {vector / 1e6:.0f} MB a vector, {sync}, {steps} steps")
    return {"back_end": plain["back_end"], "bytes": vector, "plain": plain["own"],
            "workers": [one["own"] for one in workers],
            "shared": [one["shared"] for one in workers]}


def _trains(pipe: Connection, mb: float, steps: int, address: str | None, worker: int,
            transport: str) -> None:
    """Train, as a worker where there is an `address`; answer that it has begun, and with what it
    took."""
    import keras
    import numpy as np

    from wbsp.worker.keras.callback import SyncCallback

    width = max(3, int((mb * 1e6 / 4 / 1.33) ** 0.5))
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width),
                              keras.layers.Dense(width // 3)])
    model.compile(keras.optimizers.SGD(1e-4), "mse", jit_compile=False)
    inputs = np.ones((steps * BATCH, width), np.float32)
    targets = np.zeros((steps * BATCH, width // 3), np.float32)
    pipe.send(None)
    hooks = [] if address is None else [SyncCallback(address, worker, transport=transport)]
    with Watch() as watch:
        model.fit(inputs, targets, batch_size=BATCH, verbose=0, shuffle=False, callbacks=hooks)
    pipe.send({"back_end": keras.backend.backend(), "vector": 4 * model.count_params(),
               "own": watch.own, "shared": watch.shared})


class Watch:
    """The most bytes that this process had for itself, and of shared memory; `now`: the newest."""

    def __enter__(self) -> Watch:
        self.own = self.shared = self.now = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            lines = dict(line.split(":", 1) for line in
                         Path("/proc/self/status").read_text().splitlines())
            own, shared = (1024 * int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem"))
            self.own, self.shared = max(self.own, own), max(self.shared, shared)
            self.now = own
            time.sleep(0.005)


if __name__ == "__main__":
    main()
