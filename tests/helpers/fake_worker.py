"""Run integer workers as threads of the test's own process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from integer_replica import IntegerReplica
from jobs import PATIENCE

from wbsp.access import Access
from wbsp.core.agent import Agent
from wbsp.tensors.layout import LayerState
from wbsp.worker.comm.data_plane import DataPlane
from wbsp.worker.comm.transport import Transport
from wbsp.worker.runtime import WorkerRuntime


class FakeWorker:
    """One worker in a thread. It calls `after_step(step)` after each step.

    Attributes:
        runtime: None until the worker has joined.
    """

    runtime: WorkerRuntime

    def __init__(self, address: str, worker: int, steps: int, *, replica=None,
                 seconds: float = 0.0, token: bytes | None = None, bandwidth: float | None = None,
                 expected: dict[str, str] | None = None, timeout: float = 60.0,
                 after_step: Callable[[int], object] = lambda step: None, share: bool = True,
                 layers: list[LayerState] | None = None):
        self.replica = replica if replica is not None else IntegerReplica(worker)
        self.index = worker
        self.said: list[str] = []
        self.error: Exception | None = None
        self._transport = Transport(
            Access(address, token=token, bandwidth=bandwidth, share=share), worker,
            self.said.append)
        self._leaving, self._layers = threading.Event(), layers
        self._plan = steps, seconds, expected or {}, timeout, after_step
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def agent(self) -> Agent | None:
        """Return the worker's state; None before it has joined."""
        return self.runtime.agent if hasattr(self, "runtime") else None

    @property
    def plane(self) -> DataPlane:
        """Return the data plane by which its vectors reach the server."""
        return self._transport._connection.plane

    def leave(self) -> None:
        """Have the worker leave after its current step."""
        self._leaving.set()

    def ends(self, patience: float = PATIENCE) -> FakeWorker:
        """Wait for the thread's end; raise what it raised."""
        self._thread.join(patience)
        assert not self._thread.is_alive(), (
            f"worker {self.index} hangs; it said {self.said}")
        if self.error is not None:
            raise self.error
        return self

    def _run(self) -> None:
        try:
            self._train(*self._plan)
        except Exception as error:
            self.error = error
        finally:
            with contextlib.suppress(Exception):
                self._transport.close()

    def _train(self, steps, seconds, expected, timeout, after_step) -> None:
        welcome = self._transport.hello(expected, timeout)
        joined = self._transport.join(self.replica.layout, self.replica.read, timeout,
                                      self._layers)
        self.runtime = runtime = WorkerRuntime(self._transport, self.replica, welcome.rule,
                                               joined, None, self.said.append)
        runtime.start()
        for step in range(1, steps + 1):
            if runtime.stopped or self._leaving.is_set():
                break
            runtime.step_begins()
            time.sleep(seconds)
            self.replica.step()
            runtime.step_done(samples=1, loss=0.0)
            after_step(step)
        runtime.finish()


def all_end(members: Sequence[FakeWorker]) -> None:
    for member in members:
        member.ends()
