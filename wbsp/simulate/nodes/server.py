"""A simulated server: the real engine, which hears one message after another.

The server reaches its workers through their machines' links and its own interface. Only an Ack
gives way to what arrives at the very same moment: workers that push together learn of the version
they made together, and WBSP with equal speeds is BSP. (Where messages take time, the last of the
workers to push has the version first, and the speeds are not equal any more.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from wbsp.core.agent import Agent
from wbsp.core.engine import Engine
from wbsp.core.messages import (
    Ack,
    AskWork,
    CutQuery,
    Fetch,
    Message,
    Model,
    Outgoing,
    SharedData,
    ToWorker,
)
from wbsp.core.store import Snapshot
from wbsp.simulate.world.clock import Clock, Turns
from wbsp.simulate.world.links import Interface, Transfer
from wbsp.simulate.world.machine import Machine
from wbsp.simulate.world.payload import Payload
from wbsp.simulate.world.shards import Shards, Slices
from wbsp.sync.base import Push


class Evaluation(NamedTuple):
    """Quality of the newest version at some time."""

    time: float
    version: int
    metrics: dict[str, float]


class Evaluator:
    """Measures versions, each one once; `results` holds an entry for each measurement.

    evaluate: snapshot -> metrics; period: virtual seconds between two measurements, or the part
    `growth` of the time gone by where that is longer; a metrics["accuracy"] of at least `target`
    ends the run
    """

    def __init__(self, evaluate: Callable[[Snapshot], dict[str, float]], period: float,
                 growth: float, target: float):
        self.period, self.growth, self.target = period, growth, target
        self.results: list[Evaluation] = []
        self._evaluate = evaluate

    def measure(self, now: float, snapshot: Snapshot) -> float:
        """The accuracy of `snapshot`, the newest version."""
        past = self.results
        measured = past and past[-1].version == snapshot.version
        metrics = past[-1].metrics if measured else self._evaluate(snapshot)
        past.append(Evaluation(now, snapshot.version, metrics))
        return metrics.get("accuracy", 0.0)


class Worker(Protocol):
    """A worker as its server reaches it; the server sets `agent` and `incoming`."""

    index: int
    machine: Machine
    agent: Agent
    alive: bool
    incoming: Transfer | Slices | None

    @property
    def held(self) -> int | None: ...

    def share(self, at: int) -> None: ...

    def receive(self, message: ToWorker) -> None: ...

    def receive_model(self, model: Model, snapshot: Snapshot, size: float) -> None: ...


class SimulatedServer:
    """The server of a virtual-time cluster; workers call it when a message of theirs has arrived.

    interface:      for versions, of the bytes that `payload` says
    apply_seconds:  time for one push, for which later messages wait
    detect_seconds: time until the server knows that a worker is lost
    data:           that all workers train together; None: each has its own
    """

    def __init__(self, clock: Clock, engine: Engine, interface: Interface | Shards,
                 payload: Payload, apply_seconds: float, detect_seconds: float,
                 evaluator: Evaluator | None, data: SharedData | None = None):
        self.engine = engine
        self.present = 0  # incarnations of workers that are here or still to come
        self.ended: float | None = None  # when the last worker had left
        self._clock, self._interface, self._turns = clock, interface, Turns(clock)
        self._payload = payload
        self._apply_seconds, self._detect_seconds = apply_seconds, detect_seconds
        self._evaluator = evaluator
        self._data = data
        self._alarm: float | None = None  # the newest that was set
        self._joined: dict[int, Worker] = {}  # worker -> newest incarnation that joined
        self._requests: dict[type[Message], Callable[[Worker, Any], None]] = {
            Fetch: self._fetch, CutQuery: self._query, AskWork: self._ask_work}

    # Messages of workers.

    def join(self, worker: Worker) -> None:
        """A worker asks for admission."""
        self._turns.take(0.0, self._join, worker)

    def push(self, worker: Worker, push: Push, update: np.ndarray | None,
             fetch: int) -> None:
        """An update has arrived whole; `fetch` as in `Engine.push`."""
        self._turns.take(self._apply_seconds, self._push, push, update, fetch)

    def request(self, worker: Worker, request: Message) -> None:
        """A worker asks for something that the engine answers."""
        self._turns.take(0.0, self._requests[type(request)], worker, request)

    def leave(self, worker: Worker) -> None:
        """A worker has finished."""
        self._turns.take(0.0, self._forget, worker, "finished", True)

    # Events that no message brings.

    def lose(self, worker: Worker) -> None:
        """A worker is lost now; the server will know in `detect_seconds`."""
        self._clock.after(self._detect_seconds, self._turns.take, 0.0, self._forget, worker, "lost")

    def check(self) -> None:
        """A period of the evaluator begins."""
        evaluator = self._evaluator
        if evaluator is None or self.engine.done or not self.present:
            return
        accuracy = evaluator.measure(self._clock.now, self.engine.store.latest)
        if accuracy >= evaluator.target:
            self._send(self.engine.stop(f"accuracy {accuracy:.4f} reached", self._clock.now))
            self._note_end()
        self._clock.after(max(evaluator.period, evaluator.growth * self._clock.now), self.check)

    def _join(self, worker: Worker) -> None:
        index, engine = worker.index, self.engine
        if index in self._joined:
            self._forget(self._joined[index], "replaced by its own return")
        self._joined[index] = worker
        place = None if self._data is None else engine.open(index, self._data, 0)
        worker.agent = Agent(index, engine.model.rule, engine.ledger.next_seq(index), engine.steps,
                             None if place is None else place.at)
        if place is not None:
            worker.share(place.at)
        self._send(engine.join(index, self._clock.now))

    def _push(self, push: Push, update: np.ndarray | None, fetch: int) -> None:
        self._send(self.engine.push(push, update, self._clock.now, fetch))

    def _fetch(self, worker: Worker, fetch: Fetch) -> None:
        if worker.alive:
            self._send(self.engine.fetch(worker.index, fetch.request))

    def _query(self, worker: Worker, query: CutQuery) -> None:
        self._send(self.engine.query(worker.index, query, self._clock.now))

    def _ask_work(self, worker: Worker, ask: AskWork) -> None:
        if self.engine.members[worker.index].active:
            self._send(self.engine.ask_work(worker.index, ask, self._clock.now))

    def _forget(self, worker: Worker, reason: str, finished: bool = False) -> None:
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
                size = self._payload.version(snapshot, worker.held)
                worker.incoming = self._interface.send(machine, size, worker.receive_model, message,
                                                       snapshot, size)
        alarm = self.engine.model.alarm
        if alarm is not None and alarm != self._alarm:
            self._alarm = alarm
            clock.at(max(alarm, clock.now), self._ring, alarm)

    def _ring(self, alarm: float) -> None:
        if alarm == self.engine.model.alarm and self.present:
            self._send(self.engine.tick(self._clock.now))
