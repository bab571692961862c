"""What virtual time costs: events of large clusters, and real training beside plain Keras steps.

    python -m lab.benchmarks.simulate [--quick] [--json FILE]

Timing: the workload without tensors, every link through the server's shared interface, in a process
of its own for each row, whose CPU seconds count. Training: turns of the simulator's steps and of
plain Keras steps on one compiled model under the same settings; and the same plain steps in a
process without the settings that make results independent of the number of cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from scripts.harness import in_words, print_table, ratios, spread, write_json

MODELS = ("bsp", "ssp", "wbsp", "pcc")
EVENTS_A_STEP = 7  # about; a row says how many there really were


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--events", type=int, default=1_000_000, help="of each row, about")
    parser.add_argument("--model", default="cnn", help="network of the training part")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=10, help="turns of each of the two")
    parser.add_argument("--steps", type=int, default=10, help="in a turn")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    parser.add_argument("--row", metavar="SYNC:WORKERS:EVENTS", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.workers, args.events, args.pairs, args.steps = [10, 100], 5_000, 2, 2
        args.model, args.batch_size = "small", 16
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.row:
        sync, workers, events = args.row.split(":")
        print(json.dumps(count_events(sync, int(workers), int(events))))
    elif args.plain:
        print(json.dumps(plain_ms(args.model, args.batch_size, args.pairs, args.steps)))
    else:
        timing = measure_timing(args.workers, args.events)
        training = measure_training(args.model, args.batch_size, args.pairs, args.steps)
        write_json(args.json, {"simulate": {"timing": timing, "training": training}})


def measure_timing(sizes: list[int], events: int) -> list[dict]:
    """Return a row for each model and number of workers."""
    rows = [_in_a_process(f"--row={sync}:{workers}:{events}")
            for sync in MODELS for workers in sizes]
    print_table(("model", "workers", "events", "events/s", "us/event", "peak MB"),
                [(row["sync"], f"{row['workers']:,}", f"{row['events']:,}",
                  f"{row['events_per_second']:,.0f}", f"{row['us_per_event']:.2f}",
                  f"{row['peak_mb']:.0f}") for row in rows])
    return rows


def count_events(sync: str, workers: int, events: int) -> dict:
    """Run a cluster of `workers` for about `events` events; its making does not count."""
    from wbsp.simulate.nodes.cluster import Cluster
    from wbsp.simulate.world.machine import Machine, lognormal
    from wbsp.simulate.world.server import ServerSpec
    from wbsp.sync import create

    machines = [Machine(lognormal(1.0 + index % 2, 0.2, seed=index), 0.001, 1e8, 1e8)
                for index in range(workers)]
    cluster = Cluster(create(sync), machines, server=ServerSpec(1e9, 1e9), model_bytes=1e5,
                      stop_samples=events // EVENTS_A_STEP)
    begin = time.process_time()
    cluster.run()
    seconds = time.process_time() - begin
    happened = cluster.clock.events
    return {"sync": sync, "workers": workers, "events": happened,
            "events_per_second": happened / seconds, "us_per_event": 1e6 * seconds / happened,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure_training(model: str, batch_size: int, pairs: int, steps: int) -> dict:
    """Virtual steps of two workers under wbsp beside plain Keras steps, in turn."""
    from wbsp.simulate.workloads.keras import make_deterministic

    make_deterministic()
    turns = _turns(model, batch_size)
    for turn in turns.values():
        turn(steps)
    times: dict[str, list[float]] = {name: [] for name in turns}
    for pair in range(pairs):
        for name in sorted(turns, reverse=pair % 2 == 1):
            times[name].append(_ms_per_step(turns[name], steps))
    free = _in_a_process("--plain", f"--model={model}", f"--batch_size={batch_size}",
                         f"--pairs={pairs}", f"--steps={steps}")
    figures = {"model": model, "batch_size": batch_size, "pairs": pairs,
               "plain_ms": spread(times["plain"]), "virtual_ms": spread(times["virtual"]),
               "virtual/plain": ratios(times["virtual"], times["plain"]),
               "undetermined_plain_ms": free}
    print_table(("ms/step", "median", "min", "max"), [
        (name, *(f"{figures[key][part]:.1f}" for part in ("median", "min", "max")))
        for name, key in (("virtual", "virtual_ms"), ("plain Keras", "plain_ms"),
                          ("plain Keras, free to vary", "undetermined_plain_ms"))])
    print(f"{model}, batch {batch_size}: virtual / plain = {in_words(figures['virtual/plain'])}")
    return figures


def _ms_per_step(train: Callable[[int], int], steps: int) -> float:
    begin = time.perf_counter()
    done = train(steps)
    return 1e3 * (time.perf_counter() - begin) / done


def _turns(model: str, batch_size: int) -> dict[str, Callable[[int], int]]:
    """{"plain": f, "virtual": f}: f(steps) trains so many steps on the one compiled model, or a few
    more, and returns how many."""
    import data
    import models
    from models import training
    from wbsp.simulate.nodes.cluster import Cluster
    from wbsp.simulate.workloads.keras import KerasWorkload, share
    from wbsp.simulate.world.machine import Machine, constant
    from wbsp.sync import create

    def batches(worker: int) -> Any:
        return data.train_dataset("shapes10", batch_size, 0, worker)

    network = training.compile(models.build(model, 0), model)
    plain_batches = iter(batches(0))
    shared = share(network, next(plain_batches))
    network.make_train_function()

    def plain(steps: int) -> int:
        for _ in range(steps):
            float(network.train_function(plain_batches)["loss"])
        return steps

    workload = KerasWorkload(shared, models.build(model, 0), 2, batches, batch_size)
    cluster = Cluster(create("wbsp"), [Machine(constant(1.0)), Machine(constant(1.5))], workload)

    def virtual(steps: int) -> int:
        before = cluster.engine.steps
        while cluster.engine.steps < before + steps:
            cluster.run(cluster.clock.now + 0.5)
        return cluster.engine.steps - before

    return {"plain": plain, "virtual": virtual}


def plain_ms(model: str, batch_size: int, turns: int, steps: int) -> dict[str, float]:
    """Milliseconds of plain Keras steps under TensorFlow's own settings."""
    train = _turns(model, batch_size)["plain"]
    train(steps)
    return spread([_ms_per_step(train, steps) for _ in range(turns)])


def _in_a_process(*flags: str) -> Any:
    """What `lab.benchmarks.simulate` prints when called with `flags`."""
    done = subprocess.run([sys.executable, "-m", "lab.benchmarks.simulate", *flags], text=True,
                          stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
