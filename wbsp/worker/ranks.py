"""A group of PyTorch processes that trains one model by DistributedDataParallel, as one worker.

The process of rank 0 connects to the server. It sends the others, by collective calls in a separate
group, the examples of each step, and the model after a version was adopted. All ranks call the same
methods of `Worker` in the same order, as DistributedDataParallel requires of a loop anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from wbsp.replica.flat import FlatReplica
from wbsp.replica.values import Values
from wbsp.worker.errors import TransportError, in_one_line
from wbsp.worker.share import Share

_TEXT = 4096  # bytes of a reason


class Group:
    """The processes of one worker. For each message rank 0 calls `send`, the others `receive`."""

    CONTINUES, ENDS, BATCH, FAILED = range(4)  # what happens

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # A wait for other workers may be long. A process that ends is noticed at once.
        self._calls: Any = dist.new_group(backend="gloo", timeout=timedelta(days=30))

    def send(self, what: int, first: int = 0, last: int = 0, text: str = "") -> None:
        """Send the others the kind of a message, two numbers and a reason."""
        data = text.encode()[:_TEXT]
        self._spread(torch.tensor([what, first, last, len(data)]))
        if data:
            self._spread(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def receive(self) -> tuple[int, int, int, str]:
        """Return what `send` was given.

        Raises:
            TransportError: rank 0 has failed.
        """
        what, first, last, size = self._spread(torch.zeros(4, dtype=torch.int64)).tolist()
        data = self._spread(torch.zeros(size, dtype=torch.uint8)) if size else torch.zeros(0)
        text = bytes(data.tolist()).decode(errors="replace")
        if what == self.FAILED:
            with in_one_line():
                raise TransportError(f"rank 0 of this worker's processes has left the run: {text}")
        return what, first, last, text

    def vector(self, vector: np.ndarray) -> np.ndarray:
        """Return rank 0's vector, float32 [size]; the others give one of that size."""
        return self._spread(torch.from_numpy(np.array(vector))).numpy()

    @contextlib.contextmanager
    def errors_reach_all(self) -> Iterator[None]:
        """Rank 0: send an error of the body to the others, which raise it, too."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # they have ended
                self.send(self.FAILED, text=f"{error}" or type(error).__name__)
            raise

    def part(self, indices: np.ndarray) -> np.ndarray:
        """Return this rank's part of a batch; it is never empty, because each rank makes a step."""
        mine = np.array_split(indices, self.size)[self.rank]
        return mine if mine.size else indices[-1:]

    def _spread(self, box: torch.Tensor) -> torch.Tensor:
        dist.broadcast(box, 0, group=self._calls)
        return box


class Leader:
    """What rank 0 does for the others, beside its part in the run."""

    def __init__(self, group: Group):
        self.group = group
        self.reason: str | None = None  # why training ends, as all ranks know it
        self._replica: FlatReplica
        self._writes = 0

    def begin(self, replica: FlatReplica, values: Values, share: Share | None, done: int) -> None:
        """Begin the block with this model, and the run's data; `done`: as for `settle`."""
        self._replica, self._writes = replica, -1
        self.settle(None, done)
        self.group.send(self.group.CONTINUES, 0 if share is None else share.data.epochs)
        if values.frozen.size:
            self.group.vector(values.frozen.read())

    def settle(self, reason: str | None, done: int) -> None:
        """Send the others the model, after each step and before the first one.

        Args:
            reason: why training ends, or None.
            done: examples that all workers of the run have trained.
        """
        self.reason = reason
        changed = self._replica.writes != self._writes
        self._writes = self._replica.writes
        self.group.send(self.group.CONTINUES if reason is None else self.group.ENDS, changed, done,
                        text=reason or "")
        if changed:
            self.group.vector(self._replica.read())
