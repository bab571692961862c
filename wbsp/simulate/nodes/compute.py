"""The compute thread of a simulated worker, what all workers share, and who listens to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wbsp.core.stats import Lane, Phase, PhaseTimer, Report
from wbsp.core.work_sequence import WorkSequence
from wbsp.simulate.nodes.server import SimulatedServer
from wbsp.simulate.workloads.base import Workload
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.links import INF, Interface
from wbsp.simulate.world.machine import Machine
from wbsp.simulate.world.payload import Payload
from wbsp.simulate.world.shards import Shards
from wbsp.sync.base import Direct, WorkerRule


class Observer:
    """Listener to what happens on the workers; override the methods you need. Times in seconds.

    What happens on the server goes to the engine's `log`.
    """

    def span(self, worker: int, lane: Lane, kind: Phase, start: float, end: float) -> None:
        """A period has ended. Lane "compute": the thread was in phase `kind`, one of `PHASES`;
        lane "network": a push until its answer, or a fetch ("pull") until the model arrived."""

    def step(self, worker: int, now: float, loss: float, report: Report) -> None:
        """A step has ended; `report` holds the running totals up to this step."""

    def adopt(self, worker: int, now: float, version: int, how: str) -> None:
        """A version is about to become the live model."""


@dataclass(frozen=True)
class ClusterContext:
    """The objects that all workers of a cluster share.

    interface: of the server, for updates of the bytes that `payload` says
    """

    clock: Clock
    workload: Workload
    observer: Observer | None
    server: SimulatedServer
    interface: Interface | Shards
    payload: Payload


class ComputeThread:
    """The compute thread of one incarnation: trains steps and books its seconds.

    A server that directs batch sizes either fixes the size of all steps to come, or assigns to each
    step a piece of the stream of examples that all workers share.
    """

    __slots__ = ("context", "index", "machine", "report", "timer", "busy", "batch", "assigned",
                 "newest_start", "work")

    def __init__(self, context: ClusterContext, index: int, machine: Machine, report: Report):
        self.context, self.index, self.machine, self.report = context, index, machine, report
        self.timer = PhaseTimer(context.clock.now)
        self.timer.seconds = report.seconds  # one sum over all incarnations
        self.busy = False  # in a step
        self.batch: int | None = None  # examples of a step, if the server has directed a size
        self.assigned: list[tuple[int, int]] = []  # (examples, start) of the next steps
        self.newest_start = -1  # of an assignment
        self.work: WorkSequence | None = None  # in data that all share

    def enter(self, phase: Phase) -> None:
        """End the period of the present phase now, and begin one of `phase`."""
        timer, now, observer = self.timer, self.context.clock.now, self.context.observer
        if observer is not None and now > timer.since:
            observer.span(self.index, "compute", timer.phase, timer.since, now)
        timer.switch(phase, now)

    def begin_step(self, rule: WorkerRule,
                   done: Callable[[float, tuple[int, ...]], None]) -> None:
        """Start a step; done(seconds, examples) is called at its end.

        Without an assignment, a worker of the shared stream waits for one instead. Raises
        ValueError for a step time that is negative or not finite.
        """
        clock, index = self.context.clock, self.report.steps
        if self.work is not None:
            taken = self.work.take(self.batch or self.context.workload.batch)
            if taken is None:
                self.enter("data")
                return
            examples: tuple[int, ...] = taken.stop - taken.start, taken.start
        elif self.assigned:
            examples = self.assigned.pop(0)
        elif rule.shared:
            self.enter("data")
            return
        else:
            examples = () if self.batch is None else (self.batch,)
        parts = rule.micro_batches
        share = examples[0] / self.context.workload.batch if examples else 1.0
        seconds = self.machine.seconds(index, clock.now, share / parts, parts)
        if not 0 <= seconds < INF:
            raise ValueError(f"worker {self.index}: a step time must be 0 s or more and finite, "
                             f"not {seconds} (step {index} at {clock.now:g} s)")
        self.busy = True
        if self.timer.phase != "compute":
            self.enter("compute")
        clock.after(seconds, done, seconds, examples)

    def end_step(self, examples: tuple[int, ...]) -> tuple[int, float]:
        """Train the step that has ended, on `examples`; return (samples, loss)."""
        context, report = self.context, self.report
        self.busy = False
        samples, loss = context.workload.step(self.index, *examples)
        report.steps += 1
        report.samples += samples
        report.loss = loss
        if self.work is not None:
            self.work.train(samples)
        if context.observer is not None:
            self.enter("compute")
            context.observer.step(self.index, context.clock.now, loss, report)
        return samples, loss

    def assign(self, direct: Direct) -> None:
        """Follow what `direct` says of the examples to come; a repeated assignment counts once."""
        if direct.batch is None:
            return
        if direct.start is None:
            self.batch = direct.batch
        elif direct.start > self.newest_start:
            self.newest_start = direct.start
            self.assigned.append((direct.batch, direct.start))
