"""What is learned in each kind of loop by two unequal workers, beside one `fit` without others.

    python -m benchmarks.loops [--seeds=3] [--syncs pcc bsp] [--json FILE]

The network of tests/helpers/loop_worker.py (Dense, BatchNorm but on JAX, Dense) on shared data, in
Keras's fit and in loops of TensorFlow, PyTorch and JAX; one worker sleeps 2 ms in each step, the
other one 20. Shown is the share of examples that the final version tells right: a lone fit's for
each of some draws of weights, and that of each loop, whose workers must end with equal versions.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import CONNECT, print_table, server, write_json

KINDS = "fit", "tensorflow", "torch", "jax"
SLEEPS = 0.002, 0.02  # seconds, of each worker
_ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="lone fits")
    parser.add_argument("--syncs", nargs="+", default=["pcc", "bsp"])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    try:
        found = {"a lone fit": [train("fit", "bsp", SLEEPS[:1]) for _ in range(args.seeds)]}
        for sync in args.syncs:
            found |= {f"{kind}, {sync}": [train(kind, sync, SLEEPS)] for kind in args.kinds}
    except (RuntimeError, OSError) as error:
        sys.exit(f"benchmarks.loops: {error}")
    print_table(("", "right, %"), [
        (name, ", ".join(f"{100 * right:.1f}" for right in rights))
        for name, rights in found.items()])
    write_json(args.json, {"loops": found})


def train(kind: str, sync: str, sleeps: tuple[float, ...]) -> float:
    """Train with a worker for each of these; return the share of examples that are told right.

    Raises RuntimeError if a worker fails, or their versions differ.
    """
    paths = os.pathsep.join([str(_ROOT), str(_ROOT / "tests/helpers")])
    with tempfile.TemporaryDirectory() as folder, server(sync, len(sleeps)) as address:
        workers = [subprocess.Popen(
            [sys.executable, _ROOT / "tests/helpers/loop_worker.py", kind, address, str(index),
             str(seconds), Path(folder) / f"{index}.npz"], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths})
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
