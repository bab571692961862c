"""How long workers of unequal speed take for data that they share, beside the ideal.

    python -m lab.benchmarks.shared_data [--step_ms 10 100] [--epochs=20] [--runs=3]
                                         [--validation=1.0] [--json FILE]
    python -m lab.benchmarks.shared_data --stop [--step_ms 10 100] [--runs=3]
    python -m lab.benchmarks.shared_data --overhead [--step_ms 10] [--epochs=2] [--runs=5]
                                         [--json FILE]

The two-worker example of docs/tutorial/your-model.md, each worker with a sleep in its step. Ideal:
as many steps at the sum of the speeds that the workers show in the run's second third. Time runs
from the moment when all have made a step to the last return of `fit`. With --validation each epoch
is validated for so many seconds.

With --stop: seconds from worker 0's `stop_run` to the last return of `fit`.

With --overhead: one worker, whose steps/s on shared data are compared with those of a plain `fit`
on the same arrays, and of one with the callback on these, in turn in one process. KERAS_BACKEND
says on what.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time

from scripts.harness import CONNECT, ratios, server, spread, write_json

N, BATCH = 12_800, 64
_WARM_UP = 20  # steps of each fit that are passed over
_STOPS_AT = 100  # step of worker 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--step_ms", type=float, nargs="+", default=[10, 100],
                        help="sleep in a step, one for each worker")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--sync", default="pcc")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--validation", type=float, default=0.0, help="seconds of one")
    parser.add_argument("--stop", action="store_true", help=f"at step {_STOPS_AT} of worker 0")
    parser.add_argument("--overhead", action="store_true", help="of shared data, with one worker")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    parser.add_argument("--worker", nargs=2, metavar=("ADDRESS", "INDEX"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker and args.overhead:
        compare(args.worker[0], args.step_ms[0], args.epochs, args.runs)
        return
    if args.worker:
        train(args.worker[0], int(args.worker[1]), args)
        return
    try:
        if args.overhead:
            speeds = overhead(args.step_ms[0], args.epochs, args.runs, args.sync)
            plain, own, shared = zip(*speeds, strict=True)
            found = {"own / plain": ratios(own, plain), "shared / plain": ratios(shared, plain),
                     "shared / own": ratios(shared, own)}
            print("steps/s, plain, with the callback on own data, on shared data: "
                  + ", ".join(" ".join(f"{speed:.1f}" for speed in three) for three in speeds))
            for name, ratio in found.items():
                print(f"{name} {ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})")
            write_json(args.json, {"shared_data_overhead": {
                "step_ms": args.step_ms[0], "epochs": args.epochs, "sync": args.sync,
                "steps_a_second": speeds, "ratio": found["shared / plain"]}})
            return
        results = []
        for _ in range(args.runs):
            reports = run(args)
            if args.stop:
                seconds = max(r["returned"] for r in reports) - reports[0]["stopped"]
                print(f"all have returned {seconds:.2f} s after stop_run", flush=True)
                continue
            results.append(beside_ideal(reports))
            print("{steps} steps in {seconds:.1f} s, ideal {ideal:.1f} s: {ratio:.3f}".format(
                **results[-1]), flush=True)
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"lab.benchmarks.shared_data: {error}")
    if results:
        write_json(args.json, {"shared_data": {
            "step_ms": args.step_ms, "epochs": args.epochs, "sync": args.sync,
            "validation": args.validation, "runs": results,
            "ratio": spread([result["ratio"] for result in results])}})


def run(args: argparse.Namespace) -> list[dict]:
    """One run in processes of its own: what its workers report."""
    with server(args.sync, len(args.step_ms)) as address:
        workers = [subprocess.Popen(
            [sys.executable, "-m", "lab.benchmarks.shared_data", f"--epochs={args.epochs}",
             f"--validation={args.validation}", *["--stop"] * args.stop, "--step_ms",
             *map(str, args.step_ms), "--worker", address, str(index)], stdout=subprocess.PIPE,
            text=True) for index in range(len(args.step_ms))]
        try:
            outputs = [worker.communicate(timeout=CONNECT + 600)[0] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
    if any(worker.returncode for worker in workers):
        raise RuntimeError("a worker failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def beside_ideal(reports: list[dict]) -> dict:
    """Steps and seconds of a run, and those of the ideal."""
    begin, end = max(r["ends"][0] for r in reports), max(r["returned"] for r in reports)
    third = (end - begin) / 3
    speeds = [sum(begin + third <= at < begin + 2 * third for at in r["ends"]) / third
              for r in reports]
    steps = sum(at > begin for r in reports for at in r["ends"])
    ideal = steps / sum(speeds)
    return {"steps": steps, "seconds": end - begin, "ideal": ideal, "speeds": speeds,
            "ratio": (end - begin) / ideal}


def overhead(step_ms: float, epochs: int, runs: int, sync: str) -> list[tuple[float, ...]]:
    """Steps/s of a plain fit, of one with the callback, and of one on shared data, for each run."""
    with server(sync, 1, "--noone_run") as address:  # for one fit after the other
        done = subprocess.run(
            [sys.executable, "-m", "lab.benchmarks.shared_data", "--overhead", f"--epochs={epochs}",
             f"--runs={runs}", f"--step_ms={step_ms}", "--worker", address, "0"],
            stdout=subprocess.PIPE, text=True, timeout=CONNECT + 600)
    if done.returncode:
        raise RuntimeError("the worker failed")
    return json.loads(done.stdout.splitlines()[-1])


def compare(address: str, step_ms: float, epochs: int, runs: int) -> None:
    """Run the worker of `overhead`; print its result."""
    x, y, model, sleeper = example()
    import wbsp

    def speed(data: dict, *callbacks: object) -> float:
        slow = sleeper(step_ms)
        model.fit(**data, epochs=epochs, verbose=0, callbacks=[*callbacks, slow])
        ends = slow.ends[_WARM_UP:]
        return (len(ends) - 1) / (ends[-1] - ends[0])

    own, sharing = (wbsp.SyncCallback(address, 0) for _ in range(2))
    shared = {"x": sharing.examples(lambda i: (x[i], y[i]), n=N, batch_size=BATCH),
              "steps_per_epoch": sharing.UNTIL_TOLD}
    plain = {"x": x, "y": y, "batch_size": BATCH}
    kinds = [lambda: speed(plain), lambda: speed(plain, own), lambda: speed(shared, sharing)]
    speeds = []
    for turn in range(runs):
        order = [(turn + kind) % len(kinds) for kind in range(len(kinds))]
        found = {kind: kinds[kind]() for kind in order}
        speeds.append([found[kind] for kind in range(len(kinds))])
    print(json.dumps(speeds))


def train(address: str, index: int, args: argparse.Namespace) -> None:
    """One worker; prints when its steps have ended."""
    x, y, model, sleeper = example()
    import keras

    import wbsp

    class Validates(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            self.batches = 0

        def on_test_batch_end(self, batch, logs=None):
            self.batches += 1

        def on_test_end(self, logs=None):
            time.sleep(args.validation * (self.batches > 1))  # who does not validate sees one

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if len(slow.ends) == _STOPS_AT:
                stopped.append(time.time())
                hook.stop_run("enough")

    slow = sleeper(args.step_ms[index])
    stopped: list[float] = []
    hook = wbsp.SyncCallback(address, index)
    data = hook.examples(lambda i: (x[i], y[i]), n=N, batch_size=BATCH)
    model.fit(data, epochs=args.epochs, steps_per_epoch=hook.UNTIL_TOLD, verbose=0,
              validation_data=(x[:256], y[:256]) if args.validation else None,
              callbacks=[hook, slow, Validates(), *[Stops()] * (args.stop and not index)])
    assert all(a <= b for a, b in itertools.pairwise(slow.ends))
    print(json.dumps({"ends": slow.ends, "returned": time.time(),
                      "stopped": stopped[0] if stopped else None}))


def example() -> tuple:
    """Examples, a model, and a callback that sleeps in steps and notes when they end."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import numpy as np

    class Slow(keras.callbacks.Callback):
        def __init__(self, step_ms):
            super().__init__()
            self.seconds, self.ends = step_ms / 1e3, []

        def on_train_batch_begin(self, batch, logs=None):
            time.sleep(self.seconds)

        def on_train_batch_end(self, batch, logs=None):
            self.ends.append(time.time())

    draw = np.random.default_rng(0)
    x = draw.normal(size=(N, 32)).astype("float32")
    y = x[:, :10].argmax(axis=1)
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "relu"),
                              keras.layers.BatchNormalization(), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  jit_compile=False)
    return x, y, model, Slow


if __name__ == "__main__":
    main()
