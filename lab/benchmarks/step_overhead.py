"""What the synchronization hook costs: plain `model.fit` beside the same fit as a worker.

    python -m lab.benchmarks.step_overhead [--quick] [--json FILE]

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

from scripts.gpu.hook import EPOCH, compare
from scripts.harness import print_table, write_json


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
        sys.exit(f"lab.benchmarks.step_overhead: {error}")
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


if __name__ == "__main__":
    main()
