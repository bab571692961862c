"""The virtual-time cluster: the real decisions, in a world of which every second is known.

The synchronization models, the engine, the store and the workers' agents are the objects that run
on real machines. What is simulated is what lies around them: the compute thread, the network and
the passing of time. A message goes through the same stations as in the real runtime:

    cut -> upload -> engine.push -> Ack -> (granted: Fetch -> newest version -> download -> adopt)

An upload or a download takes the link's latency plus its bytes at the link's bandwidth, shared
with others at the server's interface; a control message takes the latency alone, so that messages
to one worker arrive in the order in which the engine sent them. Only an Ack gives way to what
arrives at the very same moment: workers that push together learn of the version they made together,
and WBSP with equal speeds is BSP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from wbsp.ps.engine import Ack, Directed, Effect, Engine, Granted, Stop
from wbsp.ps.store import Snapshot, Store
from wbsp.runlog.report import Report, TimeBook
from wbsp.simulate.clock import Clock
from wbsp.simulate.links import INF, Interface, Transfer
from wbsp.simulate.machine import Life, Observer, Worker
from wbsp.simulate.workload import TimingWorkload, Workload
from wbsp.sync.base import Push, SyncModel
from wbsp.worker.agent import Adopt, Agent, Command, Cut, Fetch


class Evaluation(NamedTuple):
    """Quality of the newest version at some time."""

    time: float
    version: int
    metrics: dict[str, float]


class _Host:
    """One life of a worker."""

    __slots__ = ("index", "worker", "report", "book", "agent", "alive", "over", "known",
                 "computing", "leaving", "snapshot", "transfer", "push_since", "pull_since")

    def __init__(self, index: int, worker: Worker, report: Report, now: float):
        self.index, self.worker, self.report = index, worker, report
        self.book = TimeBook(now)
        self.book.seconds = report.seconds  # one sum over all lives
        self.agent: Agent | None = None  # until the server knows it
        self.alive = True
        self.over = False  # has left, or is dead
        self.known = False  # the server counts it in
        self.computing = self.leaving = False
        self.snapshot: Snapshot | None = None  # newest fetched
        self.transfer: Transfer | None = None  # newest, which may be over
        self.push_since = 0.0
        self.pull_since: float | None = None  # None: no fetch under way


class Cluster:
    """N workers and a server in virtual time; `run` it, then read its public attributes.

    model:         decides; workers[i] is the machine of worker i; workload: what they train
    model_bytes:   of one update and of one version on the wire
    ingress, egress: bytes/s of the server's interface, shared by all workers
    apply_seconds: the server's time for one push; messages behind it wait their turn
    detect_seconds: until the server knows that a worker is lost
    expected:      workers that begin together; default: all that come at the first moment
    stop_samples:  ends the run after so many pushed samples
    evaluate, check_period: evaluate(snapshot) -> metrics, at every period of virtual seconds and
                   at the end; a metrics["accuracy"] >= target ends the run
    log, observer: see `Engine` and `Observer`

    A worker's book runs from its coming to its leaving (or end); each second of its compute thread
    is booked once, in `reports[i].seconds`.
    """

    def __init__(self, model: SyncModel, workers: Sequence[Worker],
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
        self._bytes = model_bytes
        self._ingress = Interface(self.clock, ingress)
        self._egress = Interface(self.clock, egress)
        self._apply_seconds, self._detect_seconds = apply_seconds, detect_seconds
        self._free_at = 0.0  # when the server has applied all that has arrived
        self._evaluate, self._period, self._target = evaluate, check_period, target
        self._observer = observer
        self._alarm: float | None = None  # the last that was set
        self._hosts: dict[int, _Host] = {}  # worker -> its newest life
        self._known: dict[int, _Host] = {}  # worker -> the newest life that has joined
        self._present = sum(len(worker.lives) for worker in workers)  # lives not over
        for index, worker in enumerate(workers):
            for life in worker.lives:
                self.clock.at(life.start, self._come, index, life)
        if evaluate is not None:
            self.clock.at(check_period, self._check)

    def run(self, until: float = INF) -> None:
        """Go on until training is over or virtual second `until`, after which it can go on.

        Raises RuntimeError when workers wait for something that will never happen.
        """
        if self.clock.run(until):
            stuck = [host.index for host in self._hosts.values() if not host.over]
            if stuck:
                raise RuntimeError(f"nothing more will happen, but workers {stuck[:8]} wait "
                                   f"({self.engine.model.name}; {len(self.engine.active)} workers "
                                   f"are here, {self.engine.expected} were expected)")
        for host in self._hosts.values():
            if not host.over:
                self._book(host, host.book.kind)

    # The life of a worker.

    def _come(self, index: int, life: Life) -> None:
        old = self._hosts.get(index)
        if old is not None:
            self._die(old)
        if self.engine.done:
            self._present -= 1
            return
        host = _Host(index, self.workers[index], self.reports[index], self.clock.now)
        self._hosts[index] = host
        if life.end < INF:
            self.clock.at(life.end, self._lose if life.lost else self._dismiss, host)
        self.clock.after(host.worker.latency, self._arrive, host, 0.0, self._join)

    def _lose(self, host: _Host) -> None:
        self._die(host)
        self.clock.after(self._detect_seconds, self._miss, host)

    def _dismiss(self, host: _Host) -> None:
        host.leaving = True

    def _die(self, host: _Host) -> None:
        host.alive = False
        self._retire(host)
        if host.transfer is not None:
            host.transfer.cancel()

    def _retire(self, host: _Host) -> None:
        if not host.over:
            self._book(host, "wait")
            host.over = True
            self._present -= 1

    # The compute thread.

    def _proceed(self, host: _Host) -> None:
        """Start the next step if nothing stands in the way, else book what is waited for."""
        agent = host.agent
        if host.computing or agent.finished:
            return
        if agent.waiting is None:
            if agent.stopped is None and not host.leaving:
                self._begin_step(host)
                return
            self._obey(host, agent.finish())
            if agent.finished:
                return
        kind = "pull" if host.pull_since is not None else (
            "push" if agent.waiting == "ack" else "wait")
        if kind != host.book.kind:
            self._book(host, kind)

    def _begin_step(self, host: _Host) -> None:
        now = self.clock.now
        seconds = host.worker.step(host.report.steps, now)
        if not 0 <= seconds < INF:
            raise ValueError(f"worker {host.index}: a step time must be 0 s or more and finite, "
                             f"not {seconds} (step {host.report.steps} at {now:g} s)")
        host.computing = True
        if host.book.kind != "compute":
            self._book(host, "compute")
        self.clock.after(seconds, self._end_step, host, seconds)

    def _end_step(self, host: _Host, seconds: float) -> None:
        if not host.alive:
            return
        host.computing = False
        samples, loss = self.workload.step(host.index)
        report = host.report
        report.steps += 1
        report.samples += samples
        report.loss = loss
        if self._observer is not None:
            self._book(host, "compute")
            self._observer.step(host.index, self.clock.now, loss, report)
        self._obey(host, host.agent.step_done(samples, seconds))
        self._proceed(host)

    def _book(self, host: _Host, kind: str) -> None:
        book, now = host.book, self.clock.now
        if self._observer is not None and now > book.since:
            self._observer.span(host.index, "compute", book.kind, book.since, now)
        book.switch(kind, now)

    # Between worker and server.

    def _obey(self, host: _Host, commands: Iterable[Command]) -> None:
        """Carry out what the agent wants."""
        clock, worker = self.clock, host.worker
        for command in commands:
            kind = type(command)
            if kind is Cut:
                update = self.workload.cut(host.index)
                host.push_since = clock.now
                host.transfer = self._ingress.carry(
                    self._bytes, worker.up, worker.latency, 0.0,
                    self._arrive, host, self._apply_seconds, self._push, command.push, update)
            elif kind is Fetch:
                host.pull_since = clock.now
                clock.after(worker.latency, self._arrive, host, 0.0, self._serve)
            elif kind is Adopt:
                if self._observer is not None:
                    self._observer.adopt(host.index, clock.now, command.version, command.how)
                self.workload.adopt(host.index, host.snapshot.vector, command.how)
            else:  # Leave
                self._retire(host)
                clock.after(worker.latency, self._arrive, host, 0.0, self._leave)

    def _receive(self, host: _Host, effect: Effect) -> None:
        """A control message has come down."""
        if not host.alive:
            return
        agent, kind = host.agent, type(effect)
        if kind is Ack:
            self._end_push(host)
            commands = agent.acked(effect.granted, effect.hold)
        elif kind is Granted:
            commands = agent.granted(effect.version)
        elif kind is Directed:
            commands = agent.directed(effect.direct)
        elif kind is Stop:
            commands = agent.stop(effect.reason)
        else:  # Final
            commands = agent.final(effect.version)
        self._obey(host, commands)
        self._proceed(host)

    def _end_push(self, host: _Host) -> None:
        report, now = host.report, self.clock.now
        report.pushes += 1
        report.last_push_seconds = now - host.push_since
        report.push_seconds += report.last_push_seconds
        if self._observer is not None:
            self._observer.span(host.index, "network", "push", host.push_since, now)

    def _fetched(self, host: _Host, snapshot: Snapshot) -> None:
        """A version has come down, whole."""
        if not host.alive:
            return
        report, now = host.report, self.clock.now
        report.pulls += 1
        report.last_pull_seconds = now - host.pull_since
        report.pull_seconds += report.last_pull_seconds
        if self._observer is not None:
            self._observer.span(host.index, "network", "pull", host.pull_since, now)
        host.pull_since = None
        host.snapshot = snapshot
        self._obey(host, host.agent.fetched(snapshot.version))
        self._proceed(host)

    # The server.

    def _arrive(self, host: _Host, cost: float, act: Callable[..., None], *args: Any) -> None:
        """A message is there, whole: act on it at once, or behind those that came before it."""
        if not host.alive:
            return
        now = self.clock.now
        if cost or self._free_at > now:
            self._free_at = max(self._free_at, now) + cost
            self.clock.at(self._free_at, act, host, *args)
        else:
            act(host, *args)

    def _join(self, host: _Host) -> None:
        old = self._known.get(host.index)
        if old is not None:
            self._forget(old, "replaced by its own return")
        self._known[host.index] = host
        host.known = True
        host.agent = Agent(host.index, self.engine.model.rule,
                           self.engine.ledger.next_seq(host.index))
        self._tell(self.engine.join(host.index, self.clock.now))

    def _push(self, host: _Host, push: Push, update: np.ndarray | None) -> None:
        self._tell(self.engine.push(push, update, self.clock.now))

    def _serve(self, host: _Host) -> None:
        """Answer a fetch: the version is fixed now."""
        if host.alive:
            host.transfer = self._egress.carry(
                self._bytes, host.worker.down, 0.0, host.worker.latency,
                self._fetched, host, self.engine.store.latest)

    def _leave(self, host: _Host) -> None:
        self._forget(host, "finished", finished=True)

    def _miss(self, host: _Host) -> None:
        """The server finds that a worker is lost, once it has handled what came from it."""
        if self._free_at > self.clock.now:
            self.clock.at(self._free_at, self._miss, host)
        else:
            self._forget(host, "lost")

    def _forget(self, host: _Host, reason: str, finished: bool = False) -> None:
        if not host.known:
            return
        host.known = False
        self._tell(self.engine.leave(host.index, self.clock.now, reason, finished))
        if self.engine.done and self.ended is None:
            self.ended = self.clock.now
            if self._evaluate is not None:
                self._measure()

    def _tell(self, effects: Iterable[Effect]) -> None:
        """Send the engine's effects on their way, and heed the model's alarm."""
        known, clock = self._known, self.clock
        for effect in effects:
            host = known[effect.worker]
            plan = clock.late if type(effect) is Ack else clock.after
            plan(host.worker.latency, self._receive, host, effect)
        alarm = self.engine.model.alarm
        if alarm is not None and alarm != self._alarm:
            self._alarm = alarm
            self.clock.at(max(alarm, self.clock.now), self._ring, alarm)

    def _ring(self, alarm: float) -> None:
        if alarm == self.engine.model.alarm and self._present:
            self._tell(self.engine.tick(self.clock.now))

    def _check(self) -> None:
        """A check period has passed."""
        if not self._present:
            return
        accuracy = self._measure()
        if accuracy >= self._target:
            self._tell(self.engine.stop(f"accuracy {accuracy:.4f} reached", self.clock.now))
        self.clock.after(self._period, self._check)

    def _measure(self) -> float:
        """Evaluate the newest version, unless that was done before; return its accuracy."""
        snapshot, past = self.engine.store.latest, self.evaluations
        measured = past and past[-1].version == snapshot.version
        metrics = past[-1].metrics if measured else self._evaluate(snapshot)
        past.append(Evaluation(self.clock.now, snapshot.version, metrics))
        return metrics.get("accuracy", 0.0)
