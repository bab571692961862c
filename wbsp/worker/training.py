"""One `fit` of a Keras model as a part of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from wbsp.replica.model import derive, open_replica
from wbsp.runlog.worker import WorkerLog
from wbsp.sync.base import WorkerRule
from wbsp.worker.connection import TransportError
from wbsp.worker.meter import LossMeter
from wbsp.worker.runtime import WorkerRuntime
from wbsp.worker.stream import Assignments
from wbsp.worker.transport import Transport
from wbsp.worker.usage import Usage


class Training(NamedTuple):
    """A worker's runtime for the model that `fit` trains, and the meter of its steps."""

    runtime: WorkerRuntime
    meter: LossMeter

    @classmethod
    def join(cls, model: Any, transport: Transport, rule: WorkerRule, timeout: float,
             log: WorkerLog | None, say: Callable[[str], None], interrupted: Callable[[], bool],
             assignments: Assignments) -> Training:
        """Become a member of the run that `transport` is connected to.

        Raises TransportError; ValueError for a model that cannot be trained together.
        """
        replica, usage = open_replica(model), Usage()
        joined = transport.join(replica.layout, replica.read, timeout)
        runtime = WorkerRuntime(transport, replica, rule, joined, log, say, interrupted, usage,
                                assignments)
        return cls(runtime, LossMeter(model))

    def start(self, model: Any) -> None:
        """Wait for the others and for W, and adopt it. Raises TransportError."""
        self.runtime.start()
        derive(model)

    @property
    def error(self) -> TransportError | None:
        """Why the connection has ended; None while it has not."""
        return self.runtime.transport.error

    def step_done(self, batch: int, planned: int | None, logs: dict) -> bool:
        """A step has ended with the epoch's `batch` of `planned` (None: not known).

        Returns True if that was the epoch's last step, or may have been.
        """
        step = self.meter.step(batch, planned, logs)
        self.runtime.step_done(step.samples, step.loss, self.meter.batches - 1, step.batches)
        return planned is None or self.meter.batches == planned

    def progress(self) -> str:
        """Steps, loss, version and share of computing, in one line."""
        report = self.runtime.report()
        return (f"step {self.runtime.steps_before + report.steps:,} | loss {report.loss:.4f} | "
                f"version {self.runtime.agent.version} | computing {report.share('compute'):.0%}")
