"""What is learned in each kind of loop by two unequal workers, beside one worker alone.

    python -m lab.benchmarks.loops [--seeds=3] [--syncs pcc bsp] [--kinds fit torch] [--json FILE]

The network of tests/helpers/loop_worker.py (Dense, BatchNorm, Dense) on shared data, in Keras's fit
and in loops of TensorFlow, PyTorch and JAX; one worker sleeps 2 ms in each step, the other one 20.
Shown is the share of 10,000 other examples that the final version tells right, for each of some
draws of initial weights, which are the same in all kinds of loops. The workers of a run must end
with equal versions.

The order of the examples is always the same, so that workers alone differ by the rounding of their
frameworks. Two workers have another course in each run, because it depends on their times.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.harness import CONNECT, print_table, server, write_json

KINDS = "fit", "tensorflow", "torch", "jax"
SLEEPS = 0.002, 0.02  # seconds, of each worker
ALONE = "alone"
_ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="draws of initial weights")
    parser.add_argument("--syncs", nargs="+", default=["pcc", "bsp"])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--examples", type=int, default=4096, help="of the training set")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    rows, found = [], {}
    try:
        for sync in (ALONE, *args.syncs):
            for kind in args.kinds:
                found[f"{kind}, {sync}"] = [
                    train(kind, "bsp" if sync == ALONE else sync, seed, args.examples, args.epochs,
                          SLEEPS[:1] if sync == ALONE else SLEEPS) for seed in range(args.seeds)]
            cells = [found[f"{kind}, {sync}"] for kind in args.kinds]
            rows.append((sync, *map(_percent, cells)))
            print(*rows[-1], sep="; ", flush=True)
    except (RuntimeError, OSError) as error:
        sys.exit(f"lab.benchmarks.loops: {error}")
    print_table(("told right, %: each seed; mean", *args.kinds), rows)
    write_json(args.json, {"loops": found})


def _percent(rights: list[float]) -> str:
    each = ", ".join(f"{100 * right:.1f}" for right in rights)
    return f"{each}; {100 * statistics.mean(rights):.2f}"


def train(kind: str, sync: str, seed: int, examples: int, epochs: int, sleeps: tuple[float, ...]
          ) -> float:
    """Train with a worker for each of these; return the share of examples that are told right.

    Raises RuntimeError if a worker fails, or their versions differ.
    """
    paths = os.pathsep.join([str(_ROOT), str(_ROOT / "tests/helpers")])
    with tempfile.TemporaryDirectory() as folder, server(sync, len(sleeps)) as address:
        workers = [subprocess.Popen(
            [sys.executable, _ROOT / "tests/helpers/loop_worker.py", kind, address, str(index),
             str(seconds), Path(folder) / f"{index}.npz", f"--seed={seed}",
             f"--examples={examples}", f"--epochs={epochs}"], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})  # all on one machine
            for index, seconds in enumerate(sleeps)]
        try:
            said = [worker.communicate(timeout=CONNECT + 600)[0] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        if any(worker.returncode for worker in workers):
            raise RuntimeError(f"a worker of {kind} under {sync} failed")
        rights = {float(match[1]) for one in said if (match := re.search("accuracy (.*)", one))}
        if len(rights) != 1:
            raise RuntimeError(f"workers of {kind} under {sync} end with other versions")
    return rights.pop()


if __name__ == "__main__":
    main()
