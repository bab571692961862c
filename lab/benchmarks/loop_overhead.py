"""What `wbsp.Worker.step` costs a loop where nothing is exchanged: microseconds a call.

    python -m lab.benchmarks.loop_overhead [--kinds jax torch tensorflow] [--json FILE]

One worker under localsgd, whose interval is longer than the measurement, and its server on this
machine. The network has two layers and BatchNorm's two statistics, 10 variables. The loop computes
nothing; the loss is a scalar that is there. Each turn times a hundred calls. Each kind has a
process of its own, which imports its framework alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from scripts.harness import print_table, server, spread, write_json

KINDS = "jax", "torch", "tensorflow"
CALLS = 100  # of a turn, so that on a busy machine some turns are undisturbed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--turns", type=int, default=70)
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    parser.add_argument("--within", metavar="ADDRESS", help=argparse.SUPPRESS)  # a kind's process
    args = parser.parse_args()
    if args.within:
        print(json.dumps(measure(args.kinds[0], args.turns, args.within)))
        return
    figures = {}
    for kind in args.kinds:
        with server("localsgd", 1, f"--sync_option=tau={10**6}") as address:
            done = subprocess.run([sys.executable, "-m", "lab.benchmarks.loop_overhead",
                                   f"--within={address}", f"--turns={args.turns}", "--kinds", kind],
                                  check=True, stdout=subprocess.PIPE, text=True)
        figures[kind] = json.loads(done.stdout.splitlines()[-1])
    print_table(("", "us a step", "range"), [
        (kind, f"{us['median']:.1f}", f"{us['min']:.1f}-{us['max']:.1f}")
        for kind, us in figures.items()])
    write_json(args.json, {"loop_overhead": figures})


def measure(kind: str, turns: int, address: str) -> dict[str, float]:
    """Microseconds of a call, median and range over the turns; the first one is not counted."""
    import wbsp
    values, loss = made(kind)
    tree = kind == "jax"
    with wbsp.Worker(values, address=address, worker_index=0, say=lambda text: None) as w:
        values = w.values if tree else None
        times = []
        for _ in range(turns + 1):
            begin = time.perf_counter()
            for _ in range(CALLS):
                w.step(loss, values)
            times.append(1e6 * (time.perf_counter() - begin) / CALLS)
    return spread(times[1:])


def made(kind: str) -> tuple[Any, Any]:
    """Values to train, and a loss."""
    shapes = [(32, 64), (64,), (64,), (64,), (64,), (64,), (64, 10), (10,), (10, 10), (10,)]
    match kind:
        case "jax":
            import jax.numpy as jnp
            return [jnp.zeros(shape) for shape in shapes], jnp.float32(0.5)
        case "torch":
            import torch
            return [torch.zeros(shape) for shape in shapes], torch.tensor(0.5, requires_grad=True)
    import tensorflow as tf
    return [tf.Variable(tf.zeros(shape)) for shape in shapes], tf.constant(0.5)


if __name__ == "__main__":
    main()
