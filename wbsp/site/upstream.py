"""The connection of a site's server to the server above, of which it is a worker.

The compute thread of a worker trains, waits and adopts. A site has none: its event loop does this
work between two versions, without waiting. `SiteWorker` replaces `WorkerRuntime`, and
`SiteProgress` replaces the replica. The agent, the communication thread and the connection are
those of every worker.

A cut leaves only when a checkpoint of this site, or its standby, holds it. So a resumed site, and a
standby that takes over, know what the site may have pushed. No other cut is taken before: otherwise
`RuleBroken` is raised. A cut that the server above lacks becomes progress again; a cut that it has
is no longer part of the progress. The site's workers resend what the checkpoint or the standby
lacks, and no cut contained that.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import numpy as np

from wbsp import timeouts
from wbsp.core.agent import Command, Cut, Expect
from wbsp.core.engine import Engine
from wbsp.core.messages import (
    LearningRate,
    Measured,
    Message,
    Reattached,
    Stop,
    StopRun,
    Withdrawn,
    WorkPlace,
    spans_of,
)
from wbsp.core.messages import Work as Given
from wbsp.core.participant import Participant
from wbsp.core.rules import RuleBroken
from wbsp.core.site.work import SiteWork, SiteWorkState
from wbsp.core.site.worker import SiteWorker, Work, objection
from wbsp.core.stats import Report
from wbsp.core.work.sequence import AGAIN
from wbsp.core.work_ledger import WorkState
from wbsp.process.host import HOST, Host
from wbsp.ps.checkpoint.state import AboveState, RunState
from wbsp.ps.config import AboveError, Model
from wbsp.site.share import SiteShare
from wbsp.sync.base import UNFIT
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import total_size
from wbsp.tensors.site_progress import SiteProgress
from wbsp.wire.client import SendUpdate
from wbsp.wire.errors import ForeignServer, TransportError
from wbsp.wire.line import read_version
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.reading import AskVersion, VersionAt
from wbsp.worker.comm.communication import Next
from wbsp.worker.comm.transport import Transport
from wbsp.worker.metrics import Recorder
from wbsp.worker.shared_participant import SharedParticipant

_GRAIN = 0.2  # seconds between two looks at whether the site ends, of the joining thread


@dataclass(frozen=True)
class Way:
    """Address of the server above, and this site's index and connection there.

    Attributes:
        address: host:port, or several of them, separated by commas.
        site: index of this site among the workers there.
        token: the secret between the two, or None.
        bandwidth: bytes/s in each direction, or None.
        share: share memory with a server of this machine and user, if there is no bandwidth.
        timeout: seconds to wait for that server at the start.
        other: returns a token to try if that server refuses this one, or None.
    """

    address: str
    site: int
    token: bytes | None = None
    bandwidth: float | None = None
    share: bool = True
    timeout: float = timeouts.CONNECT
    other: Callable[[], bytes | None] = lambda: None

    def __call__(self, on: Host, say: Callable[[str], None]) -> Upstream:
        """Return a connection, which `poll` or `begin` starts."""
        return Upstream(self, say, on)


class _Still:
    """Frozen values with the interface of `wbsp.replica.frozen.Frozen` for a connection."""

    def __init__(self, values: FrozenValues):
        self.layout, self.digest = values.layout, values.digest
        self.size = total_size(values.layout)
        self._values = values

    def read(self) -> np.ndarray:
        return self._values.vector


class _Joined(NamedTuple):
    """Result of the joining thread."""

    welcome: m.Welcome
    joined: m.Joined
    model: Model
    frozen: FrozenValues  # of the run above


class _Listener(SharedParticipant):
    """Participant of a site, which notes the answer to the newest cut and wakes the event loop.

    Args:
        share: of the data that all workers of the run share; None: each has its own.
        wake: wakes the event loop; any thread may call it.
        behind: returns the number of the site's active workers; any thread may call it.
        signs: returns a number that changes as the site's workers work; any thread may call it.

    Attributes:
        answered: number of the newest answered cut; guarded by `changed`.
        unfit: a cut since the last version was rejected because of its values; guarded by
            `changed`.
        news: what concerns these data, for the event loop, in order; guarded by `changed`.
    """

    def __init__(self, participant: Participant, recorder: Recorder, say: Callable[[str], None],
                 on: Host, share: SiteShare | None, wake: Callable[[], object],
                 behind: Callable[[], int], signs: Callable[[], int]):
        super().__init__(participant, recorder, say, None, on=on)
        self.answered, self.unfit = -1, False
        self.news: list[Message] = []
        self._shared, self._wake, self._behind, self._signs = share, wake, behind, signs

    def acked(self, ack: m.Ack, seconds: float) -> Next:
        with self.changed:
            self.answered = ack.seq
            self.unfit = self.unfit or ack.reason in UNFIT
            self.news.append(ack)
            if self._shared is not None:
                self._shared.answered()
        return super().acked(ack, seconds)

    def received(self, message: m.Message) -> Next:
        if self._shared is not None and isinstance(message, _NEWS):
            with self.changed:
                if isinstance(message, Given | Withdrawn | Reattached):
                    self._shared.heard(message)
                self.news.append(message)
            self._wake()
        return super().received(message)

    def report(self) -> Report:
        return replace(super().report(), behind=self._behind(), signs=self._signs())

    def failed(self) -> None:
        super().failed()
        self._wake()

    def _follow(self, commands: Sequence[Command]) -> Next:
        fetch = super()._follow(commands)
        self._wake()
        return fetch


_NEWS = Given, Withdrawn, Reattached, Stop, Measured, LearningRate, VersionAt


class Upstream(SiteWorker):
    """Implementation of `wbsp.ps.config.Above`, for the site's event loop.

    Attributes:
        wakes: a file descriptor that can be read when `poll` is due.
    """

    def __init__(self, way: Way, say: Callable[[str], None], on: Host = HOST):
        super().__init__()
        self._way = way
        self._say = lambda text: say(text.replace(f"worker {way.site}:", f"site {way.site}:", 1))
        self._on = on
        self._waker, self._woken = on.network.pair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self.wakes = self._woken.fileno()
        self._signs: Callable[[], int] = lambda: 0
        self._closing = False
        self._models: queue.SimpleQueue[Model] = on.scheduler.queue()
        self._found: queue.SimpleQueue[_Joined | AboveError] = on.scheduler.queue()
        self._transport: Transport | None = None
        self._begun = False
        self._patience = way.timeout  # in seconds, for the server above to answer
        self._known = AboveState()  # in the checkpoint that this site resumes from
        self._listener: _Listener | None = None
        self._recorder: Recorder
        self._frozen: FrozenValues
        self._run = ""
        self._first: np.ndarray | None = None  # W_0
        self._cut: Cut | None = None  # waits for a checkpoint, and is not sent
        self._mark = 0  # of the ledger when the cut was taken
        self._kept: Work | None = None  # in the newest cut, until its answer
        self._next_seq = 0
        self._share: SiteShare | None = None  # of the data that all workers share
        self._place: WorkPlace | None = None  # in these
        self._wanted: int | None = None  # epochs of the loop of this site's first worker
        self._told: list[Measured | LearningRate] = []
        self._version_at: VersionAt | None = None
        self._asks_version: AskVersion | None = None  # the open question
        self._reads: Executor | None = None  # files of versions
        self._tells: dict[type[Message], tuple[Message, float]] = {}  # and when: not confirmed
        self._waited = False
        self._leaves: str | None = None  # why this site leaves without the last version
        self._final = self._told_final = False

    # Life cycle.

    def bring(self, model: Model) -> None:
        self._models.put(model)

    def initial(self) -> tuple[np.ndarray, FrozenValues] | None:
        return None if self._first is None else (self._first, self._frozen)

    def begin(self, engine: Engine, state: RunState | None, model: Model,
              signs: Callable[[], int]) -> None:
        self._engine, self._signs = engine, signs
        if state is None:
            self._recorder.step_begins("compute")
            if self._place is not None:
                self._begin_work(engine, self._place, self._wanted)
        else:
            self._known = known = state.above or AboveState()
            self.settled = self._final = known.final or state.over
            self._run, self._next_seq = known.run, known.next_seq
            self._kept = None if known.kept is None else Work(*known.kept)
            self._uncut = Work(known.steps, known.samples, known.seconds)
            self._untold = replace(self._uncut)
            if state.work is not None:
                self._resume(engine, state.work, known.work or SiteWorkState())
            if not self.settled:
                self._patience = timeouts.WORKER_PATIENCE
                self._models.put(model)
        self._samples, self._pushes = engine.trained, engine.accepted
        self._version = engine.store.latest.version
        engine.observe(self._made)

    def _resume(self, engine: Engine, state: WorkState, beside: SiteWorkState) -> None:
        """Resume with the data that all workers share."""
        # what it held may be others' by now
        paused = lambda: self.waits or self._listener is None  # noqa: E731
        work = SiteWork(state.data, engine.model.rule, paused, state, beside)
        engine.share_data(work)
        ledger = work.ledger
        if self._progress.cut is None:  # its answer is known
            ledger.answered(True)
        own = ledger.undone.with_all(ledger.uncut.spans)
        self._share = SiteShare(state.data, 0, self._on, True, own.spans, ledger.sent.spans,
                                self._next_seq)

    def close(self, returns: bool = False) -> None:
        if self._closing:
            return
        self._closing = True
        if self._reads is not None:
            self._reads.shutdown(wait=False, cancel_futures=True)
        if self._transport is not None:
            if not (returns or self._told_finish) and self._transport.error is None:
                self._transport.leave(self._leaves or "its server ends", finished=False)
            self._transport.close()
        self._waker.close()
        self._woken.close()

    def woke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1024)

    # Joining runs in a thread, because it waits for the server above.

    def _join(self) -> None:
        way, timeout = self._way, self._patience
        try:
            transport, welcome = self._introduced(way.token)
            sync, run = welcome.run.sync, welcome.run.id
            if (reason := objection(welcome.rule, sync)) is not None:
                raise AboveError(reason)
            if self._known.run not in ("", run):
                raise AboveError(
                    f"the server above serves run {run}, and this site is part of run "
                    f"{self._known.run}: resume that one, or start this site without --resume")
            model = self._model()
            still = _Still(model.frozen) if model.frozen.layout else None
            if model.data is not None and self._share is None:
                self._share = SiteShare(model.data, model.first_epoch, self._on)
                self._wanted = model.data.epochs
            joined = transport.join(model.layout, lambda: model.vector, timeout, model.layers,
                                    self._share, still, False,  # type: ignore[arg-type]
                                    model.local, model.entries)
            if self._share is not None and joined.work is None:
                raise AboveError(f"the server above at {way.address} assigns no examples")
            frozen = model.frozen
            if joined.frozen and still is not None:
                frozen = FrozenValues(frozen.layout, transport.frozen(still.size, timeout))
            self._found.put(_Joined(welcome, joined, model, frozen))
        except AboveError as error:
            self._found.put(error)
        except (TransportError, ValueError) as error:
            self._found.put(AboveError(f"the server above: {error}"))
        except Exception as error:  # the event loop must not wait forever
            self._found.put(AboveError(f"joining the server above failed: {error!r}"))

    def _introduced(self, token: bytes | None) -> tuple[Transport, m.Welcome]:
        """Return a connection to the server above, and its answer.

        Raises:
            TransportError: it does not answer, or refuses.
        """
        way = self._way
        transport = self._transport = Transport(
            way.address, way.site, token, way.bandwidth, self._say, lambda: self._closing,
            share=way.share, on=self._on)
        self._token = token
        try:
            return transport, transport.hello({}, self._patience,
                                              replaces=bool(self._known.run))
        except ForeignServer:
            if (other := way.other()) is None:
                raise
        transport.close()
        return self._introduced(other)

    def _model(self) -> Model:
        while not self._closing:
            with contextlib.suppress(queue.Empty):
                return self._models.get(timeout=_GRAIN)
        raise AboveError("the site ends")

    def _take_joined(self) -> None:
        """Start as a member if the joining thread has finished.

        Raises:
            AboveError: joining failed.
        """
        try:
            found = self._found.get(timeout=0.0)
        except queue.Empty:
            return
        if isinstance(found, Exception):
            self.settled = True
            raise found
        transport, joined = self._transport, found.joined
        assert transport is not None
        self._run, self._frozen = found.welcome.run.id, found.frozen
        self._settle_cut(joined.seq, transport)
        participant = Participant(self._way.site, found.welcome.rule, joined.seq,
                                  joined.run_steps)
        self._recorder = Recorder(joined.now, None, self._on)
        self._next_seq = joined.seq
        self._listener = _Listener(participant, self._recorder, self._say, self._on, self._share,
                                   lambda: self._waker.send(b"\0"),
                                   lambda: self._engine.present if self._engine else 0,
                                   lambda: self._signs())
        if self._share is not None and joined.work is not None:
            self._share.begin(joined.work, joined.seq, joined.work.own)
            self._place = joined.work
            if self._work is not None:
                self._work.begin(joined.work, True, None)
        transport.listen(self._listener, found.model.layout)
        self._say(f"site {self._way.site}: is a worker of the server at {self._way.address} "
                  f"({found.welcome.run.sync})")

    def _settle_cut(self, due: int, transport: Transport) -> None:
        """Decide whether the newest cut of the process before counts above.

        Args:
            due: number of the next cut that the server above expects.

        Raises:
            AboveError: another process is this site now.
        """
        if not self._known.run:
            return
        known, progress = self._known.next_seq, self._progress
        if due > known:
            self.settled = True
            raise AboveError(f"another process has taken the place of site {self._way.site}: start "
                             "this one without --resume")
        decided, work = None, self._work
        if progress.cut is not None:
            if due == known:
                decided = progress.cut
                if work is not None:
                    work.ledger.answered(True)
            elif self._kept is not None:
                known -= 1
                progress.take_back()
                if work is not None:
                    work.ledger.take_back_cut()
                self._count(self._kept)
        self._kept = None
        transport.owe(progress.owed, decided)
        if due < known:
            self._say(f"site {self._way.site}: cuts {due} to {known - 1} are lost: the server "
                      "above resumed without them, and the process that held them has ended")

    # The loop.

    @property
    def hurries(self) -> int | None:
        return None if self._cut is None else self._mark

    def poll(self, now: float) -> None:
        if self.settled:
            return
        if not self._begun:
            self._begun = True
            self._on.scheduler.thread(self._join, "wbsp-above").start()
        self._take_joined()
        listener, transport = self._listener, self._transport
        if listener is None or transport is None:
            return
        if transport.error is not None and not self._closing:
            self.settled = True
            raise AboveError(f"the server above: {transport.error}")
        self._hear(now)
        with listener.changed:
            self._due += listener.commands
            listener.commands = []
            answered = listener.answered
        if self._kept is not None and self._cut is None and answered == self._next_seq - 1:
            self._kept = None
            self._progress.answered()
            self._progress.owed = transport.unsent
        if self._engine is None and self.stopped is not None and not self._due:
            self.settled = True
            raise AboveError(f"the run above has ended before it began here: {self.stopped}")
        self._carry_out(now)
        self._starve_if_dry(now)
        self._finish_if_due(now)
        self._ask_for_work(now)
        self._tell_again()
        self._send_if_safe()
        waits = self.waits
        if waits != self._waited:
            self._waited = waits
            self._since = now
            self._recorder.enter("wait" if waits else "compute")
        transport.wake()

    def finish(self, now: float, interrupted: str | None) -> None:
        self._finish(now)
        self._leaves = self._leaves or interrupted
        if self._leaves is not None and self._listener is None:
            self.settled = True

    def _lacks(self, work: Work) -> None:
        self._say(f"site {self._way.site}: the run above has ended without this site's last "
                  f"{work.samples:,} examples")

    def farewell(self) -> None:
        if self._final and self._transport is not None and not self._told_final:
            self._told_final = True
            self._transport.request(m.Goodbye())
            self._transport.end()

    def give_up(self, reason: str) -> None:
        if not self.settled:
            self._say(f"site {self._way.site}: {reason}; its uncut progress is in its checkpoint")
            self.settled = True

    # The data that all workers share.

    def _hear(self, now: float) -> None:
        """Handle what the server above has said about them."""
        listener, engine, work = self._listener, self._engine, self._work
        if listener is None or engine is None:
            return
        with listener.changed:
            news, listener.news = listener.news, []
        for message in news:
            if isinstance(message, Measured | LearningRate):
                self._told.append(message)
            elif isinstance(message, VersionAt):
                self._version_at, self._asks_version = message, None
            elif work is not None:
                if isinstance(message, Reattached) and self._asks_version is not None:
                    self.ask_version(self._asks_version)
                before = work.ledger.epoch
                self._heard(message, now)
                if isinstance(message, m.Ack):
                    work.ledger.above = max(work.ledger.above, message.examples)
                if (epoch := work.ledger.epoch) > before:
                    engine.log(now, "epoch", epoch=epoch, epochs=work.data.epochs,
                               version=engine.store.latest.version)

    def tell(self, message: Message) -> None:
        self._tells[type(message)] = message, -math.inf
        self._tell_again()  # before this site leaves

    def _tell_again(self) -> None:
        """Send what workers say to all, and again until the server above has confirmed it."""
        engine, now = self._engine, self._on.clock.monotonic()
        if engine is None or self._transport is None:
            return
        for message, at in [*self._tells.values()]:
            known = engine.measured if isinstance(message, Measured) else engine.rate
            if (self.stopped is not None if isinstance(message, StopRun) else
                    known is not None and isinstance(message, Measured | LearningRate)
                    and known.epoch >= message.epoch):
                del self._tells[type(message)]
            elif now - at >= AGAIN:
                self._tells[type(message)] = message, now
                self._transport.request(message)

    def ask_version(self, ask: AskVersion) -> None:
        self._version_at, self._asks_version = None, ask
        if self._transport is not None:
            self._transport.request(ask)
            self._transport.wake()

    def version_at(self) -> VersionAt | None:
        at, self._version_at = self._version_at, None
        return at

    def read_version(self, at: VersionAt, path: pathlib.Path
                     ) -> Future[str | None]:
        assert self._transport is not None, "its server has answered"
        self._reads = self._reads or self._on.scheduler.pool("wbsp-above-versions")
        place = self._transport.place

        def read() -> str | None:
            with path.open("wb") as file:
                return read_version(place, at, self._token, file, self._on)
        return self._reads.submit(read)

    def told(self) -> list[Measured | LearningRate]:
        told, self._told = self._told, []
        return told

    def _with_spans(self, cut: Cut, now: float) -> Cut:
        self._hear(now)  # the answer to the cut before
        return super()._with_spans(cut, now)

    def state(self) -> AboveState:
        kept, uncut, work = self._kept, self._uncut, self._work
        return AboveState(self._run, self._next_seq, uncut.steps, uncut.samples, uncut.seconds,
                          None if kept is None else astuple(kept),
                          self._final, None if work is None else work.beside())

    # Between two versions.

    @property
    def _progress(self) -> SiteProgress:
        progress = super()._progress
        assert progress is not None, "a site's store has tensors"
        return progress

    @property
    def _member(self) -> Participant | None:
        return None if self._listener is None else self._listener.participant

    def _act(self, event: Callable[[Participant], list[Command]]) -> None:
        listener = self._listener
        assert listener is not None
        with listener.changed:
            super()._act(event)

    def _request(self, command: Command) -> None:
        assert self._transport is not None and isinstance(command, Expect | Message)
        self._transport.request(command)

    def _leave(self) -> None:
        assert self._transport is not None
        self._recorder.close()
        self._transport.leave(self._leaves or "finished", finished=self._leaves is None)
        self.settled = self._leaves is not None

    def _tell_step(self, now: float) -> None:
        self._recorder.step_done(self._untold.steps, self._untold.samples, math.nan)
        super()._tell_step(now)

    def _carry_out(self, now: float) -> None:
        super()._carry_out(now)
        assert self._transport is not None
        self._transport.wake()

    def _take(self, cut: Cut, now: float) -> None:
        engine, transport = self._engine, self._transport
        assert engine is not None and transport is not None
        if self._cut is not None:
            raise RuleBroken(f"site {self._way.site} takes cut {cut.push.seq} before cut "
                             f"{self._cut.push.seq} has left")
        owed = transport.unsent
        super()._take(cut, now)
        self._progress.owed = owed
        self._cut, self._mark, self._next_seq = cut, engine.ledger.mark, cut.push.seq + 1
        self._kept = Work(cut.push.steps, cut.push.samples, cut.push.seconds)
        self._recorder.cut(transport.update_bytes(engine.store.size))
        self._waker.send(b"\0")  # its checkpoint is urgent

    def _send_if_safe(self) -> None:
        """Push the newest cut if a checkpoint, or the standby, holds it."""
        engine, transport = self._engine, self._transport
        if self._cut is None or engine is None or engine.ledger.durable <= self._mark:
            return
        assert transport is not None and self._progress.cut is not None
        cut, self._cut = self._cut, None
        if self._share is not None:
            self._share.sends(cut.push)
        transport.request(SendUpdate(cut.push, self._progress.cut, cut.fetch,
                                     spans=spans_of(cut.push)))
        transport.wake()

    def _adopt(self, version: int, now: float) -> None:
        listener, engine, transport = self._listener, self._engine, self._transport
        assert listener is not None and transport is not None
        vector = listener.take_version(version)
        if engine is None:
            self._first, self._fresh = vector, False
            return
        with listener.changed:
            drop, listener.unfit = listener.unfit, False
        self._become(vector, version, now, drop)
        if self._fresh:
            self._fresh = False
            self._recorder.step_begins("compute")
        if listener.agent.finished:
            self._final = self.settled = True
