"""PyTorch's all-reduce over gloo: no server; all workers hold the sum of all updates at once."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from lab.benchmarks.contenders.environment import python_with
from lab.benchmarks.contenders.team import VALUE, Team, serve, start_team
from scripts.harness import CONNECT, free_port

# It brings CUDA along, some gigabytes. WBSP_TORCH: another wheel, as arguments of pip.
WHEEL = "torch"


@contextmanager
def all_reduce(workers: int, size: int) -> Iterator[Team]:
    """Workers whose round trip is one all-reduce, in which all of them take part."""
    python = python_with("torch", "numpy", *os.environ.get("WBSP_TORCH", WHEEL).split())
    place = f"tcp://127.0.0.1:{free_port()}"
    with start_team(_worker, [(place, rank, workers, size) for rank in range(workers)],
              python) as started:
        yield started


def _worker(pipe: Connection, place: str, rank: int, workers: int, size: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=workers,
                            timeout=datetime.timedelta(seconds=CONNECT))
    vector = torch.empty(size)

    def trip() -> None:
        dist.all_reduce(vector)
        if vector[0].item() != workers * VALUE or vector[-1].item() != workers * VALUE:
            raise RuntimeError(f"all-reduce gives {vector[0]}, not {workers * VALUE}")

    def again(more: bool) -> bool:
        """As the first says: an all-reduce that one of them does not begin never ends."""
        vector.fill_(VALUE)
        due = torch.tensor(more)
        dist.broadcast(due, 0)
        return bool(due)

    serve(pipe, trip, again)
