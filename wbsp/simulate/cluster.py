"""The virtual-time cluster: the real decisions, in a world of which every second is known.

The synchronization models, the engine, the store and the workers' agents are the objects that run
on real machines. What is simulated is what lies around them: the compute thread, the network and
the passing of time. A message goes through the same stations as in the real runtime:

    cut -> upload -> engine.push -> Ack; with its grant the newest version -> download -> adopt
    granted in some other way:   Granted -> Fetch -> the newest version -> download -> adopt

An upload or a download takes the link's latency plus its bytes at the link's bandwidth, shared
with others at the server's interface; a control message takes the latency alone, so that messages
to one worker arrive in the order in which the engine sent them. Only an Ack gives way to what
arrives at the very same moment: workers that push together learn of the version they made together,
and WBSP with equal speeds is BSP. (Where messages take time, whoever pushed last has the version
first, and the speeds are not equal any more.)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from wbsp.ps.effects import Ack, Effect, Model
from wbsp.ps.engine import Engine
from wbsp.ps.store import Snapshot, Store
from wbsp.runlog.report import Report
from wbsp.simulate.clock import Clock
from wbsp.simulate.links import INF, FairShareLink
from wbsp.simulate.machine import Incarnation, Machine, Observer
from wbsp.simulate.worker import ClusterContext, SimulatedWorker
from wbsp.simulate.workload import TimingWorkload, Workload
from wbsp.sync.base import Push, SyncModel
from wbsp.worker.agent import Agent


class Evaluation(NamedTuple):
    """Quality of the newest version at some time."""

    time: float
    version: int
    metrics: dict[str, float]


class Cluster:
    """N workers and a server in virtual time; `run` it, then read its public attributes.

    model:         decides; workers[i] is the machine of worker i; workload: what they train
    model_bytes:   of one update and of one version on the wire
    ingress, egress: bytes/s of the server's interface, shared by all workers
    apply_seconds: the server's time for one push; messages behind it wait their turn
    detect_seconds: until the server knows that a worker is lost
    expected:      workers that begin together; default: all that come at the first moment
    stop_samples:  ends the run after so many pushed samples
    evaluate, check_period: evaluate(snapshot) -> metrics, at the begin, at every period of virtual
                   seconds and at the end; a metrics["accuracy"] >= target ends the run
    log, observer: see `Engine` and `Observer`

    A worker's book runs from its coming to its leaving (or end); each second of its compute thread
    is booked once, in `reports[i].seconds`.
    """

    def __init__(self, model: SyncModel, workers: Sequence[Machine],
                 workload: Workload | None = None, *, model_bytes: float = 0.0,
                 ingress: float = INF, egress: float = INF, apply_seconds: float = 0.0,
                 detect_seconds: float = 0.0, expected: int | None = None,
                 stop_samples: float = INF,
                 evaluate: Callable[[Snapshot], dict[str, float]] | None = None,
                 check_period: float = 5.0, target: float = INF,
                 log: Callable[..., None] | None = None, observer: Observer | None = None):
        if not workers:
            raise ValueError("a cluster needs at least one worker")
        first = min(worker.lives[0].start for worker in workers)
        together = sum(worker.lives[0].start == first for worker in workers)
        self.clock = Clock()
        self.workers = list(workers)
        self.workload: Workload = TimingWorkload() if workload is None else workload
        self.engine = Engine(model, Store(self.workload.initial()),
                             together if expected is None else expected, stop_samples,
                             **({} if log is None else {"log": log}))
        self.reports = [Report(push_bytes=int(model_bytes), pull_bytes=int(model_bytes))
                        for _ in workers]
        self.evaluations: list[Evaluation] = []
        self.ended: float | None = None  # when the last worker had left
        self._world = ClusterContext(
            self.clock, self.workload, observer, FairShareLink(self.clock, ingress),
            FairShareLink(self.clock, egress), model_bytes, self._push, self._serve,
            self._query, self._leave, self._retired)
        self._apply_seconds, self._detect_seconds = apply_seconds, detect_seconds
        self._free_at = 0.0  # when the server has applied all that has arrived
        self._evaluate, self._period, self._target = evaluate, check_period, target
        self._alarm: float | None = None  # the last that was set
        self._hosts: dict[int, SimulatedWorker] = {}  # worker -> its newest life
        self._known: dict[int, SimulatedWorker] = {}  # worker -> the newest life that has joined
        self._present = sum(len(worker.lives) for worker in workers)  # lives not over
        for index, worker in enumerate(workers):
            for life in worker.lives:
                self.clock.at(life.start, self._come, index, life)
        if evaluate is not None:
            self.clock.at(0.0, self._check)

    def run(self, until: float = INF) -> None:
        """Go on until training is over or virtual second `until`, after which it can go on.

        Raises RuntimeError when workers wait for something that will never happen.
        """
        with nullcontext() if self.engine.store.size else _few_collections():
            over = self.clock.run(until)
        if over:
            stuck = [host.index for host in self._hosts.values() if not host.over]
            if stuck:
                raise RuntimeError(f"nothing more will happen, but workers {stuck[:8]} wait "
                                   f"({self.engine.model.name}; {len(self.engine.active)} workers "
                                   f"are here, {self.engine.expected} were expected)")
        for host in self._hosts.values():
            host.settle()

    # Workers come and go.

    def _come(self, index: int, life: Incarnation) -> None:
        old = self._hosts.get(index)
        if old is not None:
            old.die()
        if self.engine.done:
            self._retired()
            return
        host = SimulatedWorker(self._world, index, self.workers[index], self.reports[index])
        self._hosts[index] = host
        if life.end < INF and life.lost:
            self.clock.at(life.end, self._lose, host)
        elif life.end < INF:
            self.clock.at(life.end, host.dismiss)
        host.send(self._in_turn, 0.0, self._join)

    def _lose(self, host: SimulatedWorker) -> None:
        host.die()
        self.clock.after(self._detect_seconds, self._in_turn, host, 0.0, self._miss)

    def _retired(self) -> None:
        self._present -= 1

    # The server.

    def _in_turn(self, host: SimulatedWorker, cost: float, act: Callable[..., None],
                 *args: Any) -> None:
        """Act at once, or behind what came before; `cost`: the server's seconds for it."""
        now = self.clock.now
        if cost or self._free_at > now:
            self._free_at = max(self._free_at, now) + cost
            self.clock.at(self._free_at, act, host, *args)
        else:
            act(host, *args)

    def _join(self, host: SimulatedWorker) -> None:
        old = self._known.get(host.index)
        if old is not None:
            self._forget(old, "replaced by its own return")
        self._known[host.index] = host
        host.known = True
        host.agent = Agent(host.index, self.engine.model.rule,
                           self.engine.ledger.next_seq(host.index))
        self._tell(self.engine.join(host.index, self.clock.now))

    def _push(self, host: SimulatedWorker, push: Push, update: np.ndarray | None,
              fetch: int) -> None:
        self._in_turn(host, self._apply_seconds, self._apply, push, update, fetch)

    def _apply(self, host: SimulatedWorker, push: Push, update: np.ndarray | None,
               fetch: int) -> None:
        self._tell(self.engine.push(push, update, self.clock.now, fetch))

    def _serve(self, host: SimulatedWorker, fetch: int) -> None:
        self._in_turn(host, 0.0, self._send_newest, fetch)

    def _send_newest(self, host: SimulatedWorker, fetch: int) -> None:
        """Answer fetch number `fetch`: the version is fixed now."""
        if host.alive:
            self._tell(self.engine.fetch(host.index, fetch))

    def _query(self, host: SimulatedWorker, number: int, steps: int, seconds: float) -> None:
        self._in_turn(host, 0.0, self._answer, number, steps, seconds)

    def _answer(self, host: SimulatedWorker, number: int, steps: int, seconds: float) -> None:
        self._tell(self.engine.query(host.index, number, steps, seconds, self.clock.now))

    def _leave(self, host: SimulatedWorker) -> None:
        self._in_turn(host, 0.0, self._forget, "finished", True)

    def _miss(self, host: SimulatedWorker) -> None:
        self._forget(host, "lost")

    def _forget(self, host: SimulatedWorker, reason: str, finished: bool = False) -> None:
        if not host.known:
            return
        host.known = False
        self._tell(self.engine.leave(host.index, self.clock.now, reason, finished))
        self._note_end()

    def _note_end(self) -> None:
        if self.engine.done and self.ended is None:
            self.ended = self.clock.now
            if self._evaluate is not None:
                self._measure()

    def _tell(self, effects: Iterable[Effect]) -> None:
        """Send the engine's effects on their way, and heed the model's alarm."""
        known, clock = self._known, self.clock
        for effect in effects:
            host = known[effect.worker]
            if type(effect) is Ack:
                clock.late(host.worker.latency, host.receive, effect)
            elif type(effect) is Model:
                if host.alive:
                    host.download(effect.number, effect.snapshot)
            else:
                clock.after(host.worker.latency, host.receive, effect)
        alarm = self.engine.model.alarm
        if alarm is not None and alarm != self._alarm:
            self._alarm = alarm
            self.clock.at(max(alarm, self.clock.now), self._ring, alarm)

    def _ring(self, alarm: float) -> None:
        if alarm == self.engine.model.alarm and self._present:
            self._tell(self.engine.tick(self.clock.now))

    def _check(self) -> None:
        """A check period begins."""
        if self.engine.done or not self._present:
            return
        accuracy = self._measure()
        if accuracy >= self._target:
            self._tell(self.engine.stop(f"accuracy {accuracy:.4f} reached", self.clock.now))
            self._note_end()
        self.clock.after(self._period, self._check)

    def _measure(self) -> float:
        """Evaluate the newest version, unless that was done before; return its accuracy."""
        snapshot, past = self.engine.store.latest, self.evaluations
        measured = past and past[-1].version == snapshot.version
        metrics = past[-1].metrics if measured else self._evaluate(snapshot)
        past.append(Evaluation(self.clock.now, snapshot.version, metrics))
        return metrics.get("accuracy", 0.0)


@contextmanager
def _few_collections() -> Iterator[None]:
    """A study of time alone makes no reference cycles, and to look for them among all that is
    pending, again and again, takes up to a third of a large cluster's time."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
