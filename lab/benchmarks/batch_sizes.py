"""What it costs that every step has a batch of another size, as load balancing wants it.

    python -m lab.benchmarks.batch_sizes [--quick] [--json FILE]

Fits on batches of many sizes take turns with fits on batches of one, with as many examples; first
when no size but that one was seen before, then again and again. Three things are timed: the input
pipeline alone, and the training step without and with XLA, which Keras chooses by default. Beside
seconds a sample, as ratios of neighbouring turns, it counts how often Python code was traced for
the many sizes: a trace a size would be a retracing storm.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from scripts.harness import in_words, ratios, spread, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="cnn", help="as runcifar10gpu.py's")
    parser.add_argument("--dataset", default="shapes10", help="as runcifar10gpu.py's")
    parser.add_argument("--batch_size", type=int, default=128, help="mean of the sizes")
    parser.add_argument("--sizes", type=int, default=50, help="how many, each for one step")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each of the two")
    parser.add_argument("--quick", action="store_true", help="5 sizes, 2 pairs")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.sizes, args.pairs = 5, 2
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        if not 1 <= args.sizes <= args.batch_size:
            raise ValueError(f"--sizes={args.sizes}: choose 1 to {args.batch_size}, --batch_size")
        figures = measure(args.model, args.dataset, args.batch_size, args.sizes, args.pairs)
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"lab.benchmarks.batch_sizes: {error}")
    write_json(args.json, {"batch_sizes": figures})


def measure(model: str, dataset: str, batch_size: int, sizes: int, pairs: int) -> dict:
    """Measure, print a table, return its figures."""
    import data

    examples = data.shared_batch(dataset, seed=0)
    one, many = [batch_size] * sizes, different(sizes, batch_size)
    print(f"{model}, {dataset}: batches of {sizes} sizes, {min(many)} to {max(many)}, beside "
          f"batches of {batch_size}\n")
    print("| | ms a sample, one size | many / one, first time | later | traces for many sizes |\n"
          "|---|---|---|---|---|")
    rows = []
    for what, turn, traces in subjects(model, examples):
        turn(one)
        turn(one)  # all that one size needs is there
        before = traces()
        first = [turn(many)], [turn(one)]
        later: tuple[list[float], list[float]] = [], []
        for pair in range(pairs):
            turns = [(later[0], many), (later[1], one)]
            for seconds, batches in turns if pair % 2 else reversed(turns):
                seconds.append(turn(batches))
        rows.append({"what": what, "one_size_ms": spread([1e3 * s for s in later[1]]),
                     "first": ratios(*first), "later": ratios(*later),
                     "traces": traces() - before})
        print(f"| {what} | {rows[-1]['one_size_ms']['median']:.3f} "
              f"| {rows[-1]['first']['median']:.2f} | {in_words(rows[-1]['later'])} "
              f"| {rows[-1]['traces']} |", flush=True)
    return {"model": model, "dataset": dataset, "batch_size": batch_size, "sizes": sizes,
            "pairs": pairs, "rows": rows}


def subjects(model: str, examples: Any) -> Iterator[tuple[str, Callable, Callable]]:
    """(name, turn, traces so far): `turn` takes batches of the given sizes, and answers with
    seconds a sample."""
    import models
    from models import training

    def consume(batches, steps):
        start, batches = time.perf_counter(), iter(batches)
        for _ in range(steps):
            next(batches)
        return time.perf_counter() - start

    yield "input pipeline", turn_of(consume, examples), examples.experimental_get_tracing_count
    for what, jit in (("step", False), ("step with XLA", True)):
        network = training.compile(models.build(model, seed=0), model, jit_compile=jit)
        traces = count_traces(network)
        yield what, turn_of(functools.partial(fit, network), examples), functools.partial(
            len, traces)


def turn_of(use: Callable, examples: Any) -> Callable[[list[int]], float]:
    """`use`(dataset, number of its batches) answers with seconds, this with those of a sample."""
    from wbsp.worker.assignments import Assignments
    from wbsp.worker.keras.callback import batches

    def turn(sizes):
        assignments, position = Assignments(), 0
        assignments.begin(None)
        for size in sizes:
            assignments.assign(size, position)
            position += size
        seconds = use(batches(assignments, examples), len(sizes))
        assignments.end()
        return seconds / position

    return turn


def fit(network: Any, batches: Iterable, steps: int) -> float:
    """Seconds from the first step's beginning to the last one's end."""
    import keras

    times = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            times.append(time.perf_counter())

        def on_train_batch_end(self, batch, logs=None):
            times.append(time.perf_counter())

    network.fit(batches, steps_per_epoch=steps, verbose=0, shuffle=False, callbacks=[Clock()])
    return times[-1] - times[0]


def count_traces(network: Any) -> list[None]:
    """Return a list that grows by one with each trace of the network's step."""
    traces: list[None] = []
    step = network.train_step

    def train_step(batch):
        traces.append(None)
        return step(batch)

    network.train_step = train_step
    return traces


def different(count: int, mean: int) -> list[int]:
    """So many different sizes around `mean`, in random order, which is their exact mean."""
    half = random.Random(0).sample(range(1, mean // 2 + 1), count // 2) if count > 1 else []
    sizes = [mean - d for d in half] + [mean + d for d in half] + [mean] * (count % 2)
    random.Random(1).shuffle(sizes)
    return sizes


if __name__ == "__main__":
    main()
