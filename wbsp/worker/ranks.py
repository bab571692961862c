"""A group of PyTorch processes that trains one model by DistributedDataParallel, as one worker.

The process of rank 0, the leader, connects to the server. It sends its followers, by collective
calls in a separate group, the examples of each step, and the model after a version was adopted. All
ranks call the same methods of `Worker` in the same order, as DistributedDataParallel requires of a
loop anyway.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout

from wbsp.core.messages import Range, SharedData
from wbsp.core.work.sequence import BEGIN
from wbsp.limits import Position, one_line
from wbsp.process.host import HOST
from wbsp.replica.flat import FlatReplica
from wbsp.replica.values import Values
from wbsp.wire.errors import TransportError
from wbsp.worker.errors import in_one_line
from wbsp.worker.share import Share

_TEXT = 4096  # bytes of a reason
_LEFT = "wbsp-left"  # key of the line on a rank that has left by an error
_TOLD = 5.0  # seconds in which the others notice that this process has left


class Group:
    """The processes of one worker. For each message rank 0 calls `send`, the others `receive`."""

    CONTINUES, ENDS, BATCH, FAILED = range(4)  # what happens

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # A wait for other workers may be long. A process that ends is noticed at once.
        self._calls: Any = dist.new_group(backend="gloo", timeout=timedelta(days=30))

    def send(self, what: int, first: int = 0, last: int = 0, text: str = "") -> None:
        """Send the others the kind of a message, two numbers and a reason."""
        data = text.encode(errors="replace")[:_TEXT]
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

    def agree(self, given: Mapping[str, Any] | None, error: Exception | None) -> None:
        """Compare the arguments of all ranks; each rank calls this, and if one raises, all raise.

        Args:
            given: this rank's arguments by name, as values of JSON; None: they are wrong.
            error: the error about wrong arguments.

        Raises:
            Exception: the `error`.
            ValueError: another rank has wrong or other arguments; one line.
        """
        told = self._texts(json.dumps([given, None if error is None else str(error)]))
        try:
            if error is not None:
                raise error
            self._compare([json.loads(text) for text in told])
        except Exception:
            dist.destroy_process_group(self._calls)  # no process uses it any more
            raise

    def _compare(self, others: list[tuple[Mapping[str, Any], str | None]]) -> None:
        """Raise ValueError for what `agree` was given in all processes, by rank."""
        for rank, (_, wrong) in enumerate(others):
            if wrong is not None:
                raise ValueError(f"rank {rank} of this worker's processes has failed: "
                                 f"{one_line(wrong)}")
        first = others[0][0]
        for rank, (theirs, _) in enumerate(others):
            for name, value in theirs.items():
                if value != first[name]:
                    raise ValueError(
                        f"rank {rank} of this worker's processes was given {name}="
                        f"{one_line(str(value), 60)}, and rank 0 {name}="
                        f"{one_line(str(first[name]), 60)}: give all of them the same; n, "
                        "batch_size and epochs are those of the whole run, and wbsp divides each "
                        "batch among the processes")

    def vector(self, vector: np.ndarray) -> np.ndarray:
        """Return rank 0's vector, float32 [size]; the others give one of that size."""
        return self._spread(torch.from_numpy(np.array(vector))).numpy()

    @contextlib.contextmanager
    def errors_reach_all(self) -> Iterator[None]:
        """Rank 0: send an error of the body to the others, which raise it, too."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> bool:
        """Rank 0: send the others an error, which they raise; return whether they have it.

        They have not where they wait for this process elsewhere, such as in a step of
        DistributedDataParallel, which this process has left.
        """
        end = HOST.clock.monotonic() + _TOLD
        try:
            # A call that waited on would keep this process from ending.
            _set_pg_timeout(timedelta(seconds=_TOLD), self._calls)
            self.send(self.FAILED, text=str(error) or type(error).__name__)
        except RuntimeError:  # they have ended, or do not listen
            return HOST.clock.monotonic() < end
        return True

    def leave(self, error: BaseException) -> None:
        """Note, on another rank than 0, that this process has left by an error.

        The other ranks wait for this one, in a step or in a call of `w`, until its process ends.
        Then they print which rank it was, and why.
        """
        with contextlib.suppress(RuntimeError):  # rank 0 has ended
            _get_default_store().set(_LEFT, f"rank {self.rank} of this worker's processes has left "
                                            f"by {type(error).__name__}: {one_line(str(error))}")

    def who_left(self) -> str | None:
        """Return which rank has left by an error, and which; None: none has."""
        with contextlib.suppress(RuntimeError):
            store = _get_default_store()
            if store.check([_LEFT]):
                return one_line(store.get(_LEFT).decode(errors="replace"))
        return None

    def part(self, indices: np.ndarray) -> np.ndarray:
        """Return this rank's part of a batch; it is never empty, because each rank makes a step."""
        mine = np.array_split(indices, self.size)[self.rank]
        return mine if mine.size else indices[-1:]

    def _texts(self, text: str) -> list[str]:
        """Return the texts of all processes, by rank."""
        data = text.encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self._calls)
        longest = int(max(sizes))
        mine = torch.frombuffer(bytearray(data.ljust(longest, b" ")), dtype=torch.uint8)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(texts, mine, group=self._calls)
        return [bytes(one.tolist()).decode() for one in texts]

    def _spread(self, box: torch.Tensor) -> torch.Tensor:
        try:
            dist.broadcast(box, 0, group=self._calls)
        except RuntimeError:
            if (left := self.who_left()) is not None:
                with in_one_line():
                    raise TransportError(left) from None
            raise
        return box


class Leader:
    """The work of rank 0 for the other ranks.

    Attributes:
        group: the processes.
        reason: why training ends, as all ranks know it, or None.
    """

    def __init__(self) -> None:
        self.group = Group()
        self.reason: str | None = None
        self._replica: FlatReplica
        self._writes = 0

    def begin(self, replica: FlatReplica, values: Values, share: Share | None,
              reason: str | None, done: int) -> None:
        """Begin the block with this model, and the run's data; `reason`, `done`: see `settle`."""
        self._replica, self._writes = replica, -1
        self.settle(reason, done)
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

    def goes_on(self, share: Share, decide: Callable[[], bool]) -> bool:
        """Return whether the loop continues, and send it; and the epoch of its next batch."""
        continues = decide()
        self.group.send(self.group.CONTINUES if continues else self.group.ENDS, share.next_epoch)
        return continues

    def part(self, batch: Range, indices: np.ndarray) -> np.ndarray:
        """Return this rank's part of a batch, and send the others where that is."""
        self.group.send(self.group.BATCH, batch.start, batch.stop)
        return self.group.part(indices)


class FollowedShare:
    """Another rank's view of rank 0's share of the run's data: see `Share`."""

    def __init__(self, data: SharedData, group: Group):
        self.data, self._group = data, group
        self.next_epoch = self.handed = 0

    def take(self) -> Range:
        """Return the next batch, as `Leader.part` has sent it."""
        _, first, last, _ = self._group.receive()
        self.handed += 1
        return Range(BEGIN, Position(first), Position(last))

    @property
    def total(self) -> int:
        return self.data.n * self.data.epochs

    @property
    def handed_out(self) -> bool:
        return self.handed > 0


class Follower:
    """The work of another rank than 0. It stands for the membership: see `loop.Worker`.

    Attributes:
        group: the processes.
        reason: as in `Leader`.
        loop: True in the block; else None.
        run_examples: that all workers have trained, as rank 0 knows them.
    """

    def __init__(self) -> None:
        self.group = Group()
        self.reason: str | None = None
        self.loop: bool | None = None
        self.run_examples = 0
        self._share: FollowedShare | None = None
        self._replica: FlatReplica
        self._steps = 0

    def shares(self, data: SharedData) -> FollowedShare:
        """Return what stands for the share of the run's data."""
        return FollowedShare(data, self.group)

    def trains(self, share: FollowedShare | None) -> None:
        self._share = share

    def begin(self, values: Values) -> None:
        """Begin the block as `Leader.begin` does."""
        self._replica, self._steps, self.loop = values.open(), 0, True
        self._settle()
        _, epochs, _, _ = self.group.receive()
        if self._share is not None:
            self._share.data = self._share.data._replace(epochs=epochs)
        if values.frozen.size:
            values.frozen.take(self.group.vector(values.frozen.read()))
        values.adopted()

    def step(self, steps: int) -> None:
        """Adopt what rank 0 sends after a step; `steps`: of the block so far."""
        self._steps = steps
        if self._share is not None:
            self._share.handed -= 1
        self._settle()

    def goes_on(self, share: FollowedShare, decide: object) -> bool:
        """Return whether the loop continues, which rank 0 decides."""
        what, share.next_epoch, _, _ = self.group.receive()
        return what == self.group.CONTINUES

    def part(self, batch: Range, indices: np.ndarray) -> np.ndarray:
        """Return this rank's part of a batch."""
        return self.group.part(indices)

    def end(self, values: Values, error: BaseException | None) -> None:
        """End the block; tell rank 0 of an error that only this process has raised."""
        inside, self.loop = self.loop, None
        if inside and error is None:
            self._settle()
            for _ in values.finish():
                pass
        elif inside and error is not None and not isinstance(error, TransportError):
            self.group.leave(error)

    def _settle(self) -> None:
        """Take what `Leader.settle` sends."""
        what, changed, self.run_examples, text = self.group.receive()
        self.reason = text if what == self.group.ENDS else None
        if changed:
            vector = self.group.vector(np.empty(self._replica.read().size, np.float32))
            self._replica.stepped()
            self._replica.adopt(self._replica.bring(vector), "replace")

    def run_steps(self, batch: int | None) -> int:
        if batch is None:
            raise NotImplementedError("rank 0 alone knows the run's steps: give batch_size")
        return -(-self.run_examples // batch)

    def stop_run(self, reason: str) -> None:
        """Rank 0 ends a run."""

    def progress(self) -> str:
        return f"rank {self.group.rank}: step {self._steps:,}"

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError("ask on rank 0, which alone is a worker of the run")
