"""One `fit` of a Keras model as a part of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from wbsp.replica.layers import constrain, derive, makes_averages, remarks, statistics
from wbsp.replica.model import check_whole, open_replica
from wbsp.replica.states import states
from wbsp.runlog.worker import WorkerLog
from wbsp.sync.base import WorkerRule
from wbsp.worker.assignments import Assignments
from wbsp.worker.comm.client import Transport
from wbsp.worker.comm.connection import TransportError
from wbsp.worker.keras.loss_meter import LossMeter
from wbsp.worker.metrics import Usage
from wbsp.worker.runtime import WorkerRuntime


class Training(NamedTuple):
    """A worker's runtime for the model that `fit` trains, and the meter of its steps."""

    runtime: WorkerRuntime
    meter: LossMeter
    say: Callable[[str], None]

    @classmethod
    def join(cls, model: Any, transport: Transport, rule: WorkerRule, timeout: float,
             log: WorkerLog | None, say: Callable[[str], None], interrupted: Callable[[], bool],
             assignments: Assignments) -> Training:
        """Become a member of the run that `transport` is connected to.

        Raises TransportError; ValueError for a model that cannot be trained together.
        """
        replica, usage = open_replica(model), Usage()
        for remark in remarks(model):
            say(f"worker {transport.worker}: {remark}")
        joined = transport.join(replica.layout, replica.read, timeout, states(model))
        runtime = WorkerRuntime(transport, replica, rule, joined, log, say, interrupted, usage,
                                assignments)
        return cls(runtime, LossMeter(model), say)

    def start(self, model: Any) -> None:
        """Wait for the others and for W, and adopt it. Raises TransportError."""
        before = statistics(model)
        self.runtime.start()
        derive(model)
        for one in before:
            if one.differ:
                self._say(f"layer {one.layer.name} was adapted to other data than the run's, and "
                          "computes with the run's mean and variance from here on: have all "
                          "workers adapt it to the same data")

    def finish(self, model: Any, reason: str, final: bool, averaged: bool = True) -> bool:
        """Hand over the uncut progress and leave; `final`: with the run's final version, and what
        the model's optimizer and its constraints make of it at the end of `fit`.

        averaged: the optimizer's averages, if it makes any, are at hand
        Returns True if the model holds the optimizer's averages. Raises TransportError when the
        server is lost.
        """
        self.runtime.finish(reason, final)
        if not final:
            return False
        derive(model)
        if broken := constrain(model):
            more = f" and {len(broken) - 1} more" if broken[1:] else ""
            self._say(f"the final version breaks the constraint of {broken[0].path}{more}: "
                      "versions are sums of updates, and know none. This model was made to keep "
                      "it; the server's checkpoint does not")
        if not self.runtime.report().steps or not makes_averages(model):
            return False
        if averaged:
            model.optimizer.finalize_variable_values(model.trainable_weights)
            self._say("the optimizer has use_ema: fit leaves the averages of this worker's steps, "
                      "as it does without a server; the run's final version, which all workers "
                      "share, is in the server's checkpoint")
        else:
            self._say("the optimizer has use_ema, but Keras has no averages left where training "
                      "ends before its last epoch, under SwapEMAWeights(swap_on_epoch=True): fit "
                      "leaves the run's final version")
        return averaged

    @property
    def error(self) -> TransportError | None:
        """Why the connection has ended; None while it has not."""
        return self.runtime.transport.error

    def step_done(self, model: Any, batch: int, planned: int | None, logs: dict) -> None:
        """A step has ended with the epoch's `batch` of `planned` (None: not known).

        Raises TransportError; ValueError for a model that got new variables in it.
        """
        first, step = self.meter.batches == 0, self.meter.step(batch, planned, logs)
        if first:
            check_whole(model, self.runtime.replica.layout)
        self.runtime.step_done(step.samples, step.loss, self.meter.batches - 1, step.batches)

    def _say(self, text: str) -> None:
        self.say(f"worker {self.runtime.transport.worker}: {text}")

    def progress(self) -> str:
        """Steps, loss, version and share of computing, in one line."""
        report = self.runtime.report()
        return (f"step {self.runtime.steps_before + report.steps:,} | loss {report.loss:.4f} | "
                f"version {self.runtime.agent.version} | computing {report.share('compute'):.0%}")
