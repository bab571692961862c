"""What a frozen backbone costs a worker: a step of it with a new head, beside the head alone.

    python -m lab.benchmarks.frozen [--rounds=7] [--size=64] [--json FILE]

ResNet50 of Keras with random weights (25 million floats), frozen, and a new Dense layer; a model
that is that Dense layer alone, on inputs of the backbone's output; the Dense layer alone in a step
that computes the backbone, too, as a function that has no variables of the model; and the first one
again with frozen=[], so that all its floats travel. One worker under pcc and its server on this
machine, as in lab.benchmarks.step_overhead; the four take turns. Frozen variables were sent before
the first turn. The hook of a model of the head's size takes longer after a long step than after a
short one, because the step leaves nothing of it in the processor's caches: so the second is
compared with the third.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

from scripts.harness import in_words, print_table, ratios, write_json

HEAD, LATE = "the head alone", "the head alone, in as long a step"
FROZEN, ALL = "frozen backbone and head", "frozen=[]: all travels"
PAIRS = 2  # of a turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each")
    parser.add_argument("--size", type=int, default=64, help="pixels of an image's side")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        figures = measure(args.rounds, args.size, args.batch_size, args.classes)
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"lab.benchmarks.frozen: {error}")
    write_json(args.json, {"frozen": figures})


def measure(rounds: int, size: int, batch_size: int, classes: int) -> dict:
    """Measure, print a table, return its figures."""
    from scripts.gpu.hook import compare

    turns: dict[str, list[dict]] = {name: [] for name in (HEAD, LATE, FROZEN, ALL)}
    models = {HEAD: _head(batch_size, classes),
              LATE: _whole(size, batch_size, classes, hidden=True),
              FROZEN: _whole(size, batch_size, classes)}
    models[ALL] = models[FROZEN]
    for _ in range(rounds):
        for name, (network, batches) in models.items():
            given: dict[str, Any] = {"frozen": []} if name == ALL else {}
            turns[name].append(compare(network, batches, PAIRS, 1, **given))
    figures = {}
    for name, found in turns.items():
        inside, plain = ([one[key]["median"] for one in found] for key in ("hook_ms", "plain_ms"))
        figures[name] = {
            "plain_ms": statistics.median(plain), "hook_ms": statistics.median(inside),
            "push_bytes": found[-1]["push_bytes"],
            "of_head": ratios(inside, [one["hook_ms"]["median"] for one in turns[LATE]])}
    print_table(("", "plain ms/step", "inside the hook, ms", "of the second's", "a push, bytes"), [
        (name, f"{one['plain_ms']:.1f}", f"{one['hook_ms']:.2f}", in_words(one["of_head"]),
         f"{one['push_bytes']:,}") for name, one in figures.items()])
    print(f"batch {batch_size}, {size} pixels; of {rounds} rounds, medians (range)")
    return figures


def _head(batch_size: int, classes: int) -> tuple[Any, Any]:
    """Return the head as a model, and its data."""
    import keras

    return _compiled(keras.Sequential([keras.Input((2048,)), keras.layers.Dense(classes)]),
                     (batch_size, 2048))


def _whole(size: int, batch_size: int, classes: int, hidden: bool = False) -> tuple[Any, Any]:
    """Return the frozen backbone with the head, and its data; `hidden`: the model does not know the
    backbone's variables."""
    import keras

    backbone = keras.applications.ResNet50(include_top=False, weights=None, pooling="avg",
                                           input_shape=(size, size, 3))
    backbone.trainable = False
    layers = [backbone]
    if hidden:
        layers = [keras.Input((size, size, 3)),
                  keras.layers.Lambda(lambda x: backbone(x, training=False), (2048,))]
    return _compiled(keras.Sequential([*layers, keras.layers.Dense(classes)]),
                     (batch_size, size, size, 3))


def _compiled(network: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    network.compile(keras.optimizers.SGD(1e-4),
                    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                    jit_compile=False)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return network, tf.data.Dataset.from_tensors((x, np.zeros(shape[0], np.int64))).repeat()


if __name__ == "__main__":
    main()
