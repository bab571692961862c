"""The floor: the bytes of a push and of a pull, copied from memory to memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import numpy as np

from lab.benchmarks.contenders.team import VALUE, Team, serve, start_team


@contextmanager
def copies(workers: int, size: int) -> Iterator[Team]:
    """As many processes as there are workers, each with memory of its own."""
    with start_team(_copier, [(size,)] * workers) as started:
        yield started


def _copier(pipe: Connection, size: int) -> None:
    update, server, model = (np.full(size, VALUE, np.float32) for _ in range(3))

    def trip() -> None:
        np.copyto(server, update)
        np.copyto(model, server)

    serve(pipe, trip)
