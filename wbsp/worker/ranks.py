"""A group of PyTorch processes that trains one model by DistributedDataParallel, as one worker.

The process of rank 0 is the run's member. It tells the others, by collective calls in a group of
their own, which examples a step has, and what a version has made of the model. All ranks call the
same methods of `Worker` in the same order, as DistributedDataParallel requires of a loop anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from wbsp.core.permutation import examples
from wbsp.replica.flat import FlatReplica
from wbsp.replica.values import Values
from wbsp.worker.any_loop import Worker
from wbsp.worker.errors import TransportError, in_one_line

GOES_ON, ENDS, BATCH, FAILED = range(4)
_TEXT = 4096  # bytes of a reason


class Group:
    """The processes of one worker. All make the same calls: rank 0 tells, and the others hear."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # A wait for other workers may be long. A process that ends is noticed at once.
        self._calls: Any = dist.new_group(backend="gloo", timeout=timedelta(days=30))

    def tell(self, what: int, first: int = 0, last: int = 0, text: str = "") -> None:
        """Tell the others what happens, with two numbers and a reason."""
        data = text.encode()[:_TEXT]
        self._spread(torch.tensor([what, first, last, len(data)]))
        if data:
            self._spread(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def hear(self) -> tuple[int, int, int, str]:
        """Return what `tell` was given.

        Raises:
            TransportError: rank 0 has failed.
        """
        what, first, last, size = self._spread(torch.zeros(4, dtype=torch.int64)).tolist()
        data = self._spread(torch.zeros(size, dtype=torch.uint8)) if size else torch.zeros(0)
        text = bytes(data.tolist()).decode(errors="replace")
        if what == FAILED:
            with in_one_line():
                raise TransportError(f"rank 0 of this worker's processes has left the run: {text}")
        return what, first, last, text

    def vector(self, vector: np.ndarray) -> np.ndarray:
        """Return rank 0's vector, float32 [size]; the others give one of that size."""
        return self._spread(torch.from_numpy(np.array(vector))).numpy()

    @contextlib.contextmanager
    def telling_of_errors(self) -> Iterator[None]:
        """Of rank 0: what the body raises, the others hear of, and raise, too."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # they have ended
                self.tell(FAILED, text=f"{error}" or type(error).__name__)
            raise

    def part(self, indices: np.ndarray) -> np.ndarray:
        """Return this rank's part of a batch; it is never empty, since each rank makes a step."""
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

    def begin(self, replica: FlatReplica, values: Values) -> None:
        """The block begins with this model."""
        self._replica, self._writes = replica, -1
        self.settle(None)
        if values.frozen.size:
            self.group.vector(values.frozen.read())

    def settle(self, reason: str | None) -> None:
        """A step, or what is before the first one, is over: the others need this model."""
        self.reason = reason
        changed = self._replica.writes != self._writes
        self._writes = self._replica.writes
        self.group.tell(GOES_ON if reason is None else ENDS, changed, text=reason or "")
        if changed:
            self.group.vector(self._replica.read())


class _Heard:
    """Rank 0's share of the run's data, as another rank hears of it: see `Share`."""

    def __init__(self, n: int, seed: int):
        self.n, self.seed = n, seed
        self.next_epoch = self.handed = 0

    @property
    def handed_out(self) -> bool:
        return self.handed > 0


class Rank(Worker):
    """A process of another rank than 0."""

    def __init__(self, values: Any, n: int | None = None, batch_size: int | None = None, *,
                 epochs: int = 1, seed: int = 0, **given: Any):
        self._set_up(values, n, batch_size, epochs, given.get("frozen"), given.get("names"),
                     given.get("local", ()))
        self._share: Any = None if n is None else _Heard(n, seed)
        self._inside = False
        self._reason: str | None = None

    def __enter__(self) -> Rank:
        values = self._values = self._look(self._values.given)
        self._replica = values.open()
        self._steps, self._inside, self._reason = 0, True, None
        self._settle()
        if values.frozen.size:
            values.frozen.take(self._processes.vector(values.frozen.read()))
        values.adopted()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is None and self._inside:
            self._settle()
            for _ in self._values.finish():
                pass
        self._inside = False

    @property
    def stop_reason(self) -> str | None:
        return self._reason

    @property
    def run_steps(self) -> int:
        raise NotImplementedError("rank 0 alone knows the run's steps")

    def stop_run(self, reason: str) -> None:
        """Rank 0 ends a run."""

    def progress(self) -> str:
        return f"rank {self._processes.rank}: step {self._steps:,}"

    def step(self, loss: Any = None, values: Any = None, *, steps: int = 1,
             samples: int | None = None) -> Any:
        if self._share is not None:
            self._share.handed -= 1
        self._steps += steps
        self._settle()
        return self._values.given

    def _settle(self) -> None:
        what, changed, _, text = self._processes.hear()
        self._reason = text if what == ENDS else None
        if changed:
            vector = self._processes.vector(np.empty(self._replica.read().size, np.float32))
            self._replica.stepped()
            self._replica.adopt(self._replica.bring(vector), "replace")

    def _goes_on(self, share: Any, epoch: int | None = None) -> bool:
        what, share.next_epoch, _, _ = self._processes.hear()
        return what == GOES_ON

    _offers = _goes_on

    def _next(self, share: Any) -> np.ndarray:
        _, first, last, _ = self._processes.hear()
        share.handed += 1
        return self._processes.part(examples(first, last, share.n, share.seed))

    def _of_shared(self, what: str) -> Any:
        return self._share

    def _within(self, what: str) -> Any:
        return None

    def _enter(self, batch: Any) -> Any:
        return batch

    def _pause(self) -> None:
        pass

    @property
    def _stops(self) -> bool:
        return self._reason is not None
