"""A simulated server: the real engine, which handles one message after another.

The server reaches its workers through their machines' links and its own interface. Only an Ack is
sent after all messages that arrive at its moment: workers that push together are granted the
version that they made together, and WBSP with equal speeds is BSP. (Where messages take time, the
last worker to push has the version first, and the speeds are no longer equal.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from wbsp.core.agent import Command, Cut, Leave
from wbsp.core.engine import Engine
from wbsp.core.goal import Goal
from wbsp.core.messages import Ack, AskWork, CutQuery, Fetch, Model, Outgoing, SharedData
from wbsp.core.store import Snapshot
from wbsp.simulate.nodes.worker import Context, Join, Peer
from wbsp.simulate.world.clock import Turns
from wbsp.simulate.world.server import ServerSpec


class Evaluation(NamedTuple):
    """Quality of the newest version at some time."""

    time: float
    version: int
    metrics: dict[str, float]


@dataclass
class Evaluator:
    """Measure versions, each one once: at the begin, at every period of virtual time, at the end.

    Attributes:
        evaluate: snapshot -> metrics.
        period: seconds between two measurements.
        growth: part of the elapsed time that replaces `period` when it is longer.
        target: metrics that reach it end the run; None: none do.
        results: an entry for each measurement.
    """

    evaluate: Callable[[Snapshot], dict[str, float]]
    period: float = 5.0
    growth: float = 0.0
    target: Goal | None = None
    results: list[Evaluation] = field(default_factory=list)

    def measure(self, now: float, snapshot: Snapshot) -> str | None:
        """Measure the newest version; return how it reaches the target, or None.

        Args:
            now: seconds.
            snapshot: the version.

        Raises:
            ValueError: the version has no value of the target's metric; one line.
        """
        past = self.results
        measured = past and past[-1].version == snapshot.version
        metrics = past[-1].metrics if measured else self.evaluate(snapshot)
        past.append(Evaluation(now, snapshot.version, metrics))
        if self.target is None:
            return None
        value = self.target.value(metrics)
        if value is None:
            raise ValueError(f"--target={self.target}: no evaluation reports "
                             f"{self.target.metric!r}; reported: {', '.join(sorted(metrics))}")
        return (f"{self.target.metric} {value:.4f} reached" if self.target.reached(metrics)
                else None)


class SimulatedServer:
    """The server of a virtual-time cluster.

    Args:
        spec: its links, and its seconds for a push.
        data: data that all workers share; None: each has its own.
    """

    def __init__(self, context: Context, engine: Engine, spec: ServerSpec,
                 evaluator: Evaluator | None, data: SharedData | None = None):
        self.engine = engine
        self.ended: float | None = None  # when the last worker had left
        self.context, self._clock, self._turns = context, context.clock, Turns(context.clock)
        self._push_seconds = spec.push_seconds
        self._detect_seconds = spec.detect_seconds
        self._evaluator = evaluator
        self._data = data
        self._alarm: float | None = None  # the newest that was set
        self._joined: dict[int, Peer] = {}  # worker -> newest incarnation that joined

    def receive(self, worker: Peer, message: Join | Command,
                update: np.ndarray | None = None) -> None:
        """Handle a message of a worker, with its update if it is a Cut."""
        cost = self._push_seconds if isinstance(message, Cut) else 0.0
        self._turns.take(cost, self._handle, worker, message, update)

    # Events that no message brings.

    def lose(self, worker: Peer) -> None:
        """Lose a worker now; the server detects it later."""
        self._clock.after(self._detect_seconds, self._turns.take, 0.0, self._forget, worker, "lost")

    def check(self) -> None:
        """Begin a period of the evaluator."""
        evaluator = self._evaluator
        if evaluator is None or self.engine.done or not self.context.present:
            return
        reached = evaluator.measure(self._clock.now, self.engine.store.latest)
        if reached is not None:
            self._send(self.engine.stop(reached, self._clock.now))
            self._note_end()
        self._clock.after(max(evaluator.period, evaluator.growth * self._clock.now), self.check)

    def _handle(self, worker: Peer, message: Join | Command,
                update: np.ndarray | None) -> None:
        engine, now = self.engine, self._clock.now
        if isinstance(message, Cut | CutQuery) and not engine.members[worker.index].active:
            return  # let go before this came
        if isinstance(message, Cut):
            self._send(engine.push(message.push, update, now, message.fetch))
            self._note_end()  # sick workers may have been the last ones
        elif isinstance(message, CutQuery):
            self._send(engine.query(worker.index, message, now))
        elif isinstance(message, AskWork):
            if engine.members[worker.index].active:
                self._send(engine.ask_work(worker.index, message, now))
        elif isinstance(message, Leave):
            self._forget(worker, "finished", finished=True)
        elif isinstance(message, Join):
            self._join(worker, message.sgd)
        elif isinstance(message, Fetch) and worker.alive:
            self._send(engine.fetch(worker.index, message.request))

    def _join(self, worker: Peer, sgd: bool) -> None:
        index, engine = worker.index, self.engine
        if index in self._joined:
            self._forget(self._joined[index], "replaced by its own return")
        self._joined[index] = worker
        place = None if self._data is None else engine.open(index, self._data, 0)
        worker.admit(engine.model.rule, engine.ledger.next_seq(index), engine.steps, place)
        self._send(engine.join(index, self._clock.now, sgd))

    def _forget(self, worker: Peer, reason: str, finished: bool = False) -> None:
        index = worker.index
        if self._joined.get(index) is worker and self.engine.members[index].active:
            self._send(self.engine.leave(index, self._clock.now, reason, finished))
            self._note_end()

    def _note_end(self) -> None:
        if self.engine.done and self.ended is None:
            self.ended = self._clock.now
            if self._evaluator is not None:
                self._evaluator.measure(self.ended, self.engine.store.latest)

    def _send(self, outgoing: Iterable[Outgoing]) -> None:
        """Send each message to its worker, and set the model's alarm."""
        self._tell(outgoing)
        alarm, clock = self.engine.model.alarm, self._clock
        if alarm is not None and alarm != self._alarm:
            self._alarm = alarm
            clock.at(max(alarm, clock.now), self._ring, alarm)

    def _tell(self, outgoing: Iterable[Outgoing]) -> None:
        joined, clock = self._joined, self._clock
        for index, message in outgoing:
            worker = joined[index]
            machine = worker.machine
            if isinstance(message, Ack):
                clock.late(machine.latency, worker.receive, message)
            elif not isinstance(message, Model):
                clock.after(machine.latency, worker.receive, message)
            elif worker.alive:
                snapshot = self.engine.store.latest
                size = self.context.payload.version(snapshot, worker.held)
                worker.incoming = self.context.interface.send(
                    machine, size, worker.receive_model, message, snapshot, size)

    def _ring(self, alarm: float) -> None:
        if alarm == self.engine.model.alarm and self.context.present:
            self._send(self.engine.tick(self._clock.now))
