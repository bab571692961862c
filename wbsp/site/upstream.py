"""The line of a site's server to the server above, of which it is a worker.

A worker has a thread that trains, and one that communicates. A site's server has one loop, and this
line is a part of it: joining, pushing and fetching are states between two events of the loop, so
that the site answers its own workers meanwhile. What is decided between two versions is
`wbsp.core.site.worker.SiteWorker`; the client and the connection are those of every worker.

A cut leaves only when a checkpoint of this site, or its standby, holds it. So a resumed site, and a
standby that takes over, know what the site may have pushed. No other cut is taken before: otherwise
`RuleBroken` is raised. A cut that the server above lacks becomes progress again; a cut that it has
is no longer part of the progress. The site's workers resend the pushes that the checkpoint or the
standby lacks. No cut has contained these pushes, because a cut leaves only after its checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import astuple, replace
from typing import NoReturn

import numpy as np
import zmq

from wbsp import timeouts
from wbsp.access import Access
from wbsp.core.agent import Cut, Expect, Leave
from wbsp.core.engine import Engine
from wbsp.core.messages import (
    LearningRate,
    Measured,
    Message,
    Reattached,
    StopRun,
    WorkHeld,
    spans_of,
)
from wbsp.core.participant import Participant
from wbsp.core.rules import RuleBroken
from wbsp.core.site.work import SiteWorkState
from wbsp.core.site.worker import Lacks, SiteWorker, Work, objection
from wbsp.core.stats import Report
from wbsp.core.work.sequence import AGAIN
from wbsp.process.host import Host
from wbsp.ps.checkpoint.state import AboveState, RunState
from wbsp.ps.config import AboveError, Model, Reporter
from wbsp.sync.base import UNFIT
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import total_size
from wbsp.tensors.site_progress import SiteProgress
from wbsp.wire import client as c
from wbsp.wire.errors import ForeignServer, TransportError
from wbsp.wire.joining import Joining
from wbsp.wire.line import read_version
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.requests import AskVersion, VersionAt
from wbsp.worker.comm.communication import Driver
from wbsp.worker.comm.connection import Connection
from wbsp.worker.metrics import Recorder
from wbsp.worker.shared_participant import Rejections

_LINGER = 1.0  # seconds in which the last messages may leave
_GRAIN = 0.05  # seconds between two looks at these


class Upstream:
    """Implementation of `wbsp.ps.config.Above`, and of the client's `Member`; of the site's loop.

    Joining takes these steps, each after the answer to the previous one: Hello; Join, once the
    site's first worker has brought its model; W_0, if the server above has none; the frozen values,
    if those of the server above differ.
    """

    def __init__(self, access: Access, site: int, on: Host, reporter: Reporter):
        """Set up; the first `poll` connects.

        Args:
            access: to the server above.
            site: index of this site among the workers there.
            on: the host of the site's server.
            reporter: of the site's run.
        """
        self._access, self._site, self._on = access, site, on
        self._now = reporter.clock.run
        self._say: Callable[[str], None] = lambda text: reporter.say(f"site {site}: {text}")
        self._worker = SiteWorker()
        self._engine: Engine | None = None  # None: the site has not begun
        self._poller: zmq.Poller | None = None  # of the site's loop
        self._driver: Driver | None = None
        self._gone = self._closed = False  # nothing arrives any more; nothing is handled any more
        self._signs: Callable[[], int] = lambda: 0
        self._known = AboveState()  # in the checkpoint that this site resumes from
        # Joining.
        self._patience = access.timeout  # in seconds, for the server above to answer
        self._awaits: type[Message] | None = None  # the answer
        self._asked_at = 0.0
        self._model: Model | None = None
        self._welcome: m.Welcome | None = None
        self._joining: Joining | None = None
        # As a member.
        self._recorder: Recorder
        self._rejections = Rejections(self._say)
        self._run = ""
        self._cut: Cut | None = None  # waits for a checkpoint, and is not sent
        self._mark = 0  # of the ledger when the cut was taken
        self._kept: Work | None = None  # in the newest cut, until its answer
        self._next_seq = 0
        self._told: list[Measured | LearningRate] = []
        self._version_at: VersionAt | None = None
        self._reads: Executor | None = None  # files of versions
        self._tells: dict[type[Message], tuple[Message, float]] = {}  # and when: not confirmed
        self._waited = self._stirred = False
        self._leaves: str | None = None  # why this site leaves without the last version
        self._told_final = False

    # The `Part` of the loop.

    def register(self, poller: zmq.Poller) -> None:
        self._poller = poller
        if self._driver is not None and not self._gone:
            self._driver.connection.wake(poller)

    def delay(self) -> float:
        return math.inf if self._driver is None or self._gone else self._driver.connection.delay()

    def serve(self) -> None:
        """Exchange messages with the server above. Raises `AboveError`."""
        driver = self._driver
        if driver is None or self._gone:
            return
        try:
            driver.turn(driver.connection.poll(0.0))
            if driver.over(self._on.clock.monotonic()):
                self._let_go()
        except TransportError as error:
            other = (isinstance(error, ForeignServer) and self._welcome is None
                     and self._access.other())
            self._let_go()
            if other:
                self._connect()
            elif not self.settled:
                self._fail(f"the server above: {error}")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._reads is not None:
            self._reads.shutdown(wait=False, cancel_futures=True)
        driver, clock = self._driver, self._on.clock
        if driver is None or self._gone:
            return
        with contextlib.suppress(TransportError):
            if not self._worker.left:
                driver.send(m.Leaving(self._leaves or "its server ends", False, None))
            driver.close(clock.monotonic() + _LINGER)
            while not driver.over(clock.monotonic()):
                driver.turn(driver.connection.poll(_GRAIN))
        self._let_go()

    def _let_go(self) -> None:
        self._gone = True
        if self._driver is not None:
            self._driver.connection.close()

    def _fail(self, reason: str) -> NoReturn:
        self._worker.settle()
        raise AboveError(reason)

    # Joining.

    def bring(self, model: Model) -> None:
        self._model = model

    def initial(self) -> tuple[np.ndarray, FrozenValues] | None:
        first, model, joining = self._worker.first, self._model, self._joining
        if first is None or model is None:
            return None
        frozen = None if joining is None else joining.frozen
        return first, (model.frozen if frozen is None else
                       FrozenValues(model.frozen.layout, frozen))

    def _connect(self) -> None:
        access, on = self._access, self._on
        connection = Connection(access, self._say, on)
        if self._poller is not None:
            connection.wake(self._poller)
        client = c.Client(connection, access.address, on.scheduler.random, self._say)
        self._gone = False
        self._driver = Driver(client, connection, self)
        connection.monitor.seek(on.clock.monotonic(), self._patience)
        self._ask(m.Hello(m.PROTOCOL, self._site, {}, own=on.scheduler.random(16),
                          replaces=bool(self._known.run)))

    def _ask(self, request: c.Request) -> None:
        assert self._driver is not None
        self._awaits, self._asked_at = c.answer_to(request), self._on.clock.monotonic()
        self._driver.send(request)

    def _wait(self) -> None:
        """Look at how long the server above takes to answer. Raises `AboveError`."""
        if self._awaits in (None, m.Welcome) or self._driver is None:  # that is the monitor's
            return
        if self._on.clock.monotonic() > self._patience + max(
                self._asked_at, self._driver.client.progress_at):
            self._let_go()
            self._fail(f"the server above: the server at {self._access.address} sent no "
                       f"{self._awaits.__name__} within {self._patience:g} s")

    def _answered(self, message: Message) -> None:
        """Take the next step of joining. Raises `AboveError`."""
        self._awaits = None
        model, joining = self._model, self._joining
        if isinstance(message, m.Welcome):
            self._welcome = message
            if (reason := objection(message.rule, message.run.sync)) is not None:
                self._fail(reason)
            if self._known.run not in ("", message.run.id):
                self._fail(f"the server above serves run {message.run.id}, and this site is part "
                           f"of run {self._known.run}: resume that one, or start this site "
                           "without --resume")
            if model is not None:
                self._join(model)
        elif joining is not None and model is not None:
            try:
                request = joining.answered(message)
            except TransportError as error:
                self._fail(f"the server above: {error}")
            if request is not None:
                self._ask(request)
            elif joining.joined is not None:
                self._enter(joining.joined, model)

    def _join(self, model: Model) -> None:
        driver, work, frozen = self._driver, self._worker.work, model.frozen
        assert driver is not None
        claim, data = None, model.data
        if work is not None:
            claim, data = self._held(), work.data
        try:
            self._joining = Joining(m.Join(
                list(model.layout), driver.connection.door, model.layers, data, model.first_epoch,
                frozen.layout, frozen.digest if frozen.layout else "", False, list(model.local),
                list(model.entries), claim), lambda: (model.vector, frozen.vector))
        except TransportError as error:
            self._fail(f"the server above: {error}")
        driver.client.session.shares(None if data is None else self._held)
        self._ask(self._joining.request)

    def _held(self) -> WorkHeld:
        """Return what this site claims of the data that all workers share."""
        work, joining = self._worker.work, self._joining
        if work is None:  # it has not begun
            joined = None if joining is None else joining.joined
            assert joined is not None and joined.work is not None
            place = joined.work
            return WorkHeld(place.data, place.at, [], True, place.own, [], joined.seq)
        unsent = self._cut is not None
        return work.held(self._next_seq - unsent, not unsent)

    def _enter(self, joined: m.Joined, model: Model) -> None:
        """Begin as a member of the run above.

        Raises:
            AboveError: another process is this site now.
        """
        driver, welcome = self._driver, self._welcome
        assert driver is not None and welcome is not None
        self._run = welcome.run.id
        self._settle_cut(joined.seq)
        self._recorder = Recorder(joined.now, None, self._on)
        self._recorder.step_begins("compute")
        self._next_seq = joined.seq
        self._worker.admit(
            Participant(self._site, welcome.rule, joined.seq, joined.run_steps), joined.work,
            None if model.data is None else model.data.epochs)
        driver.carry_out(driver.client.listen(self, total_size(model.layout)))
        self._say(f"is a worker of the server at {self._access.address} ({welcome.run.sync})")

    def _settle_cut(self, due: int) -> None:
        """Decide whether the newest cut of the process before counts above.

        Args:
            due: number of the next cut that the server above expects.

        Raises:
            AboveError: another process is this site now.
        """
        if not self._known.run or self._driver is None:
            return
        known, progress, worker = self._known.next_seq, self._progress, self._worker
        if due > known:
            self._fail(f"another process has taken the place of site {self._site}: start "
                       "this one without --resume")
        session = self._driver.client.session
        if progress.cut is not None and due == known:
            session.owe(progress.owed, progress.cut)
            progress.answered(session.sending.unsent)
            if worker.work is not None:
                worker.work.ledger.answered(True)
        else:
            if progress.cut is not None and self._kept is not None:
                known -= 1
                worker.take_back(self._kept)
            session.owe(progress.owed, None)
        self._kept = None
        if due < known:
            self._say(f"cuts {due} to {known - 1} are lost: the server above resumed without them, "
                      "and the process that held them has ended")

    # The site's own run.

    def begin(self, engine: Engine, state: RunState | None, model: Model,
              signs: Callable[[], int]) -> None:
        self._engine, self._signs = engine, signs
        if state is None:
            self._worker.begin(engine)
        else:
            self._known = known = state.above or AboveState()
            self._run, self._next_seq = known.run, known.next_seq
            self._kept = None if known.kept is None else Work(*known.kept)
            self._worker.begin(engine, Work(known.steps, known.samples, known.seconds), state.work,
                               known.work or SiteWorkState())
            if known.final or state.over:
                self._worker.settle(final=True)
            self._patience = timeouts.WORKER_PATIENCE
            self._model = model
        engine.observe(self._made, lambda: self.settled)

    def _made(self, now: float) -> None:
        self._worker.made(now)
        self.follow()

    @property
    def pauses(self) -> bool:
        return self._worker.waits

    @property
    def stopped(self) -> str | None:
        return self._worker.stopped

    @property
    def settled(self) -> bool:
        return self._worker.settled

    @property
    def hurries(self) -> int | None:
        return None if self._cut is None else self._mark

    def stirred(self) -> bool:
        stirred, self._stirred = self._stirred, False
        return stirred

    def poll(self) -> None:
        worker, engine, now = self._worker, self._engine, self._now()
        if worker.settled:
            return
        if self._driver is None:
            self._connect()
        self._wait()
        if self._welcome is not None and self._model is not None and self._joining is None:
            self._join(self._model)
        if worker.participant is None:
            return
        if engine is None:
            if worker.stopped is not None and worker.idle:
                self._fail(f"the run above has ended before it began here: {worker.stopped}")
            return
        worker.go_on(now)
        self.follow()
        self._tell_again()
        self._send_if_safe()
        if worker.waits != self._waited:
            self._waited = worker.waits
            worker.rested(now)
            self._recorder.enter("wait" if self._waited else "compute")

    def finish(self, interrupted: str | None) -> None:
        self._worker.finish(self._now())
        self.follow()
        self._leaves = self._leaves or interrupted
        if self._leaves is not None and self._worker.participant is None:
            self._worker.settle()

    def farewell(self) -> None:
        if self._worker.final and self._driver is not None and not (
                self._told_final or self._gone):
            self._told_final = True
            self._driver.send(m.Goodbye())
            self._driver.close(self._on.clock.monotonic() + _LINGER)

    def give_up(self, reason: str) -> None:
        if not self.settled:
            self._say(f"{reason}; its uncut progress is in its checkpoint")
            self._worker.settle()

    def state(self) -> AboveState:
        kept, uncut, work = self._kept, self._worker.uncut, self._worker.work
        return AboveState(self._run, self._next_seq, uncut.steps, uncut.samples, uncut.seconds,
                          None if kept is None else astuple(kept),
                          self._worker.final, None if work is None else work.beside())

    # The `Member` of the client, and the `Owner` of its driver.

    @property
    def waits(self) -> bool:
        agent = self._worker.agent
        return agent is not None and agent.waiting == "model"

    def report(self) -> Report:
        return replace(self._recorder.report(), signs=self._signs(),
                       behind=self._engine.present if self._engine else 0)

    def take(self, command: c.Command) -> None:
        if self._closed:
            return
        self._stirred = True
        match command:
            case c.Answered(message):
                self._answered(message)
            case c.Acked(ack, seconds):
                self._acked(ack, seconds)
            case c.Fetched(version, vector, nbytes, seconds):
                self._recorder.fetched(version, seconds, nbytes)
                self._worker.fetched(version, vector, self._now())
            case c.Received(message):
                self._received(message)

    def follow(self) -> None:
        """Carry out what the site's worker commands."""
        commands, driver = self._worker.commands, self._driver
        while commands:
            command = commands.popleft()
            assert driver is not None
            match command:
                case Work():
                    self._recorder.step_done(command.steps, command.samples, math.nan)
                case Cut():
                    self._hold(command)
                case Leave():
                    self._leave(driver)
                case Lacks(samples):
                    self._say(f"the run above has ended without this site's last {samples:,} "
                              "examples")
                case Expect() | Message():
                    driver.send(command)

    def _acked(self, ack: m.Ack, seconds: float) -> None:
        assert self._driver is not None
        self._recorder.acked(ack.seq, seconds, len(m.encode(ack)))
        self._rejections.acked(ack, self._on.clock.monotonic())
        self._kept = None
        # what a format has left of an update that is not finite is dropped with it
        self._progress.answered(None if ack.reason in UNFIT
                                else self._driver.client.session.sending.unsent)
        self._received(ack)

    def _received(self, message: m.Message) -> None:
        worker, now = self._worker, self._now()
        if isinstance(message, Measured | LearningRate):
            self._told.append(message)
        elif isinstance(message, VersionAt):
            self._version_at = message
            self._tells.pop(AskVersion, None)
        elif isinstance(message, Reattached):  # messages in transit are lost
            self._tells = {kind: (told, -math.inf) for kind, (told, _) in self._tells.items()}
        before = 0 if worker.work is None else worker.work.ledger.epoch
        worker.received(message, now)
        if (work := worker.work) is not None and work.ledger.epoch > before and self._engine:
            self._engine.log(now, "epoch", epoch=work.ledger.epoch, epochs=work.data.epochs,
                             version=self._engine.store.latest.version)

    # Pushes.

    @property
    def _progress(self) -> SiteProgress:
        progress = self._worker.progress
        assert progress is not None, "a site's store has tensors"
        return progress

    def _hold(self, cut: Cut) -> None:
        """Hold the cut until a checkpoint has it."""
        engine, driver = self._engine, self._driver
        assert engine is not None and driver is not None
        if self._cut is not None:
            raise RuleBroken(f"site {self._site} takes cut {cut.push.seq} before cut "
                             f"{self._cut.push.seq} has left")
        self._cut, self._mark, self._next_seq = cut, engine.ledger.mark, cut.push.seq + 1
        self._kept = Work(cut.push.steps, cut.push.samples, cut.push.seconds)
        client = driver.client
        self._recorder.cut(client.update_bytes or 4 * client.session.wire.words(engine.store.size))
        self._stirred = True  # its checkpoint is urgent

    def _send_if_safe(self) -> None:
        """Push the newest cut if a checkpoint, or the standby, holds it."""
        engine = self._engine
        if self._cut is not None and engine is not None and engine.ledger.durable > self._mark:
            cut, self._cut = self._cut, None
            self._push(cut)

    def _push(self, cut: Cut) -> None:
        update = self._progress.cut
        assert self._driver is not None and update is not None
        self._driver.send(c.SendUpdate(cut.push, update, cut.fetch, spans=spans_of(cut.push)))

    def _leave(self, driver: Driver) -> None:
        self._recorder.close()
        driver.send(m.Leaving(self._leaves or "finished", self._leaves is None, None))
        if self._leaves is not None:
            self._worker.settle()

    # Messages to all workers, and the versions of epochs.

    def tell(self, message: Message) -> None:
        known = self._tells.get(type(message))
        if (isinstance(message, Measured) and known is not None
                and isinstance(known[0], Measured) and known[0].epoch >= message.epoch):
            return  # the first results of an epoch count
        self._tells[type(message)] = message, -math.inf
        self._tell_again()  # before this site leaves

    def _tell_again(self) -> None:
        """Send messages to all workers, and repeat them until the server above has confirmed."""
        now, driver = self._on.clock.monotonic(), self._driver
        if driver is None or self._gone or self._worker.participant is None:
            return
        for kind, (message, at) in [*self._tells.items()]:
            if self._confirmed(message):
                del self._tells[kind]
            elif now - at >= AGAIN:
                self._tells[kind] = message, now
                driver.send(message)

    def _confirmed(self, message: Message) -> bool:
        engine = self._engine
        match message:
            case StopRun():
                return self.stopped is not None
            case Measured() | LearningRate() if engine is not None:
                known = engine.measured if isinstance(message, Measured) else engine.rate
                return known is not None and known.epoch >= message.epoch
        return False

    def told(self) -> list[Measured | LearningRate]:
        told, self._told = self._told, []
        return told

    def ask_version(self, ask: AskVersion) -> None:
        self._version_at = None
        self.tell(ask)

    def version_at(self) -> VersionAt | None:
        at, self._version_at = self._version_at, None
        return at

    def read_version(self, at: VersionAt, path: pathlib.Path) -> Future[str | None]:
        assert self._driver is not None, "its server has answered"
        self._reads = self._reads or self._on.scheduler.pool("wbsp-above-versions")
        place, token = self._driver.connection.monitor.route.address, self._access.token

        def read() -> str | None:
            with path.open("wb") as file:
                return read_version(place, at, token, file, self._on)
        return self._reads.submit(read)
