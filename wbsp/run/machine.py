"""What this machine has for its workers, and the environment of each: its GPU, its share of the
cores, its server and index."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

# Variables by which a process learns which task of which run it is. `wbsp run` sets them.
_TASK = ("WBSP_SERVER", "WBSP_WORKER_INDEX", "WBSP_WORKER_NUM", "TF_CONFIG",
         "JOB_COMPLETION_INDEX", "SLURM_PROCID")
# How many threads a worker's computation takes: OpenMP, and with it PyTorch and the libraries below
# NumPy; TensorFlow's two pools; JAX's. A value of the user's own stays.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC")
# Else the first process of TensorFlow or JAX takes the whole memory of a GPU.
_SHARED_GPU = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs that a process of this environment sees, as
    CUDA_VISIBLE_DEVICES has them."""
    said = environment.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        try:
            done = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
                                  capture_output=True, text=True, timeout=60,
                                  env=dict(environment))
        except (OSError, subprocess.SubprocessError):
            return []
        said = ",".join(done.stdout.split()) if done.returncode == 0 else ""
    names = [name.strip() for name in said.split(",")]
    return names[:names.index("-1")] if "-1" in names else [name for name in names if name]


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(workers: int) -> int:
    """Return the number of cores for each of this machine's workers."""
    return max(1, cores() // workers)


def shares(numbers: Sequence[int], gpus: Sequence[str]) -> list[str]:
    """Return lines on what these workers get of this machine."""
    count = len(numbers)
    lines = [f"{_count(count, 'worker')} with {_count(share(count), 'core')} each"]
    if gpus and count > len(gpus):
        lines.append(f"{count} workers share {_count(len(gpus), 'GPU')}, in turn: " + ", ".join(
            f"worker {number} has GPU {gpus[place % len(gpus)]}"
            for place, number in enumerate(numbers)))
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def without_task(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what names a server, or the task of a process."""
    return {name: value for name, value in environment.items() if name not in _TASK}


def of_worker(number: int, workers: int, gpus: Sequence[str],
              environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker, without its task.

    Args:
        number: of the worker on this machine, from 0 on.
        workers: how many this machine has.
        gpus: the machine's.
        environment: of this process.
    """
    own = without_task(environment)
    own["PYTHONUNBUFFERED"] = "1"
    for name in _THREADS:
        own.setdefault(name, str(share(workers)))
    if gpus:
        own.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # that of nvidia-smi
        own["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    if gpus and workers > len(gpus):
        own = {**_SHARED_GPU, **own}
    return own
