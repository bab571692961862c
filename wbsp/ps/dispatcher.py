"""Dispatcher of workers' messages: it checks each and passes it to the responsible part.

Messages that no correct worker sends are counted and logged, and change nothing.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import zmq

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.site.gate import Gate
from wbsp.limits import one_line
from wbsp.ps.config import Above, Reporter, RunInfo
from wbsp.ps.readers import Readers
from wbsp.ps.replication.primary import Replication
from wbsp.ps.sessions.admission import Admission, Begin, Entrance, Lobby
from wbsp.ps.sessions.handlers import Handlers, Peer
from wbsp.ps.sessions.registry import SessionRegistry
from wbsp.ps.sessions.replies import HeldPush, Replies
from wbsp.ps.sessions.requests import Requests
from wbsp.ps.sessions.session import WorkerSession, body_of
from wbsp.ps.sharding.coordinator import Shards
from wbsp.tensors.layout import TensorSpec, total_size
from wbsp.wire.guard import no_file_left
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.sockets import ServerSocket

_WITH_FLOATS = m.Initial | m.Update | m.Kept  # these come with floats, or are heads of them
_FRAMES = 20  # of a traceback, in the log
_VALIDATES, _ENDS = "to validate the last epoch", "to end training"
_HANGS = {_VALIDATES: timeouts.VALIDATOR_HANGS, _ENDS: timeouts.LOOP_HANGS}
_WORKS = 5.0  # seconds since its last sign of work, within which a worker works
_LOOK = 0.25  # seconds between two checks of all workers, which take time if there are many


class Dispatcher:
    """The server's side of all messages; used only by the event loop.

    Args:
        record: as in `Server`.
        on_initial: takes the first worker's W_0 and frozen values.
        above: the server above, of a site; None: this is none.
        key: of the server's own evaluator, for which the first version waits; b"": it has none.
    """

    def __init__(self, socket: ServerSocket, info: RunInfo, reporter: Reporter, shards: Shards,
                 record: Callable[..., dict[str, Any]],
                 on_initial: Begin, above: Above | None = None, key: bytes = b""):
        self._socket = socket
        self._say = reporter.say
        self._clock = reporter.clock
        self._above = above
        self.info = info
        self.on = socket.on
        self.sessions = SessionRegistry(socket, info.config, reporter, shards, info.series)
        self.replication = Replication(info, record, socket, self.sessions, reporter)
        self.readers = Readers(socket, info, reporter, self._tell_worker,
                               self.sessions.idle_at_work, self.sessions.log, key)
        self._lobby = Lobby(info, self.sessions, self._clock, self.replication, on_initial,
                            lambda: self.readers.ready)
        self.entrance: Entrance = self._lobby
        self._handlers = self._handlers_of(self._lobby)
        self._look_at = -math.inf  # own time of the next check of all workers
        self._full = False  # the file descriptors were exhausted at that check

    def begin(self, engine: Engine, layout: list[TensorSpec],
              durable: Callable[[], bool] = lambda: True) -> Requests:
        """Admit the workers that wait for a model, which exists now, once that is `durable`."""
        above = self._above
        gate: Gate[HeldPush] = Gate() if above is None else Gate(lambda: above.pauses)
        replies = Replies(engine, self.sessions, self.info, gate)
        self.sessions.expect(self.sessions.planes.most(total_size(layout)))
        requests = Requests(engine, self.sessions, replies, gate, self._clock,
                            None if above is None else above.tell)
        admission = Admission(self._lobby, requests, layout, durable)
        self.entrance, self._handlers = admission, self._handlers_of(admission, requests)
        admission.admit_all()
        return requests

    def _handlers_of(self, *parts: Entrance | Requests) -> Handlers:
        """Return the handlers of these parts, and of the permanent ones."""
        handlers = Handlers({s.Lead: self._is_no_shard})
        for part in (self.sessions, self.replication, self.readers, *parts):
            handlers.add(part.handlers())
        return handlers

    def wait(self, now: float) -> None:
        """As `Lobby.wait`."""
        self._lobby.wait(now)

    def register(self, poller: zmq.Poller) -> None:
        """Register the links of shared memory with `poller`."""
        if self.sessions.lending.fd is not None:
            poller.register(self.sessions.lending.fd, zmq.POLLIN)

    def delay(self) -> float:
        """Return the seconds until a message may be sent."""
        return min(self.sessions.queues.delay(self._clock.now()), self.readers.versions.delay())

    def serve(self) -> None:
        """Send the messages that may leave now."""
        now = self._clock.now()
        self.sessions.queues.flush(now)
        self.sessions.lending.flush(now)
        self.readers.versions.serve()

    def close(self) -> None:
        """Send the last messages, and release lent memory."""
        self.sessions.log.flush(at_once=True)
        self.sessions.lending.close()
        self.readers.close()

    def receive(self) -> None:
        """Handle received messages, for a limited time because of the timers."""
        for identity, *frames in self._socket.messages():
            self._carefully(identity.bytes, partial(self._handle, identity.bytes, frames))

    def take_over(self, earlier: Iterable[tuple[Peer, m.Message]]) -> None:
        """Replace the run's other server, which has ended.

        Args:
            earlier: peers that connected before this server was ready, and their messages.
        """
        self.replication.lost()
        for peer, message in earlier:
            with contextlib.suppress(m.WireError):
                self._handlers.anybody[type(message)](peer, message)

    def receive_shared(self) -> None:
        """Handle one message of each worker with shared memory, if it has sent one."""
        for link in self.sessions.lending.readable():
            session = self.sessions.get(link.identity)
            if session is None or session.inbox != link.inbox:
                continue  # another worker's message has ended it
            try:
                frames = link.receive()
            except OSError:
                session.unshare()
                continue
            if frames is not None:
                self._carefully(link.identity, partial(self._handle, link.identity, frames, True))

    def hear_shard(self, shard: int, message: m.Message) -> None:
        """Handle a shard's message about a worker, or about strangers."""
        if isinstance(message, s.Misuse):
            self.sessions.log.count(f"at a shard: {one_line(message.reason)}", message.count)
            return
        if not isinstance(message, s.Holds | s.Arriving):
            return
        worker = self.sessions.planes.worker_of(message.secret)
        session = None if worker is None else self.sessions.of(worker)
        if session is not None:  # it may have ended meanwhile
            handle = self._handlers.session[type(message)]
            self._carefully(session.identity, partial(handle, session, message, shard))

    def _carefully(self, identity: bytes, act: Callable[[], None]) -> None:
        """Handle a message of this peer; an invalid one affects only its sender."""
        try:
            act()
        except m.Impossible as error:  # a member would wait for an answer forever
            self.sessions.log.count(str(error))
            if session := self.sessions.get(identity):
                self.send_off(session, str(error))
        except m.WireError as error:
            self.sessions.log.count(str(error))
        except Exception as error:  # internal error: drop this worker, keep the run
            self._fail(identity, error)

    def check_silence(self) -> None:
        """Drop lost workers, and count peers that never sent a valid message."""
        self.sessions.watch()
        self.sessions.log.flush()
        if self.entrance is self._lobby:
            self._lobby.check()
        if (now := self._clock.now()) >= self._look_at:
            self._look_at = now + _LOOK
            self._look_at_files()
            for session in list(self.sessions):
                self._carefully(session.identity, partial(self._lose_if_gone, session))

    def _look_at_files(self) -> None:
        full, self._full = self._full, no_file_left()
        if self._full and not full:
            self.sessions.log.tell("open files", (
                "the limit of open files is reached: new connections wait; raise the limit "
                "(ulimit -n) and start this server again with --resume"
                ), "no_file_left")

    def poll_standby(self) -> None:
        """Do the standby's periodic work; an internal error affects the standby, not the run."""
        try:
            self.replication.poll()
            if isinstance(self.entrance, Admission):
                self.entrance.go_on()
        except Exception as error:
            self.sessions.log.tell(
                "faults of the server", f"replication to the standby failed: {error!r}; trying "
                "again (events.jsonl has the traceback)", "error",
                traceback=traceback.format_exception(error)[-_FRAMES:])

    def _lose_if_gone(self, session: WorkerSession) -> None:
        if reason := self.sessions.lost(session):
            self.lose(session, reason)

    def woke(self, now: float) -> None:
        """Handle the end of a suspension: messages from before it may still arrive."""
        self.replication.woke(now)
        self.sessions.woke(now)

    def lose_idle(self, since: float, patience: float, left: bool) -> list[int]:
        """Drop workers without progress for `patience` seconds, from `since` on; return them.

        Args:
            left: also those that have left, and can fetch the final version now.
        """
        dropped = []
        for session in self.sessions.idle(since, patience):
            if self.readers.closing(session.worker) or not (session.joined or left):
                continue
            what = "its last push" if session.joined else "the final version"
            self._say(f"worker {session.worker}: no progress on {what} for {patience:g} "
                      "s; ending the run without it")
            self.send_off(session, f"no progress for {patience:g} s")
            dropped.append(session.worker)
        return dropped

    def lose_hanging(self, since: float) -> tuple[list[int], str, float | None]:
        """Drop workers that hang although all data are trained, from `since` on.

        One that validates the last epoch has `VALIDATOR_HANGS` to show a sign of work, and one that
        has not left `LOOP_HANGS`; one that waits for results has no limit, because others' ends it.

        Returns:
            The workers that are waited for, what for, and the seconds left; None: they work.
        """
        idle: dict[str, dict[int, float]] = {what: {} for what in _HANGS}  # seconds of workers
        for session in list(self.sessions):
            worker, closing = session.worker, self.readers.closing(session.worker)
            if session.plane is None or closing == "waits" or not (closing or session.joined):
                continue
            what = _VALIDATES if closing else _ENDS
            idle[what][worker] = seconds = self.sessions.idle_at_work(worker, since)
            if seconds > _HANGS[what]:
                del idle[what][worker]
                self._say(f"worker {worker}: no sign of work for {_HANGS[what]:g} s, and all data "
                          f"are trained: no longer waiting for it {what}")
                self.send_off(session, f"it hangs: no sign of work for {_HANGS[what]:g} s")
        what = _VALIDATES if idle[_VALIDATES] else _ENDS
        newest = min(idle[what].values(), default=0.0)
        return [*idle[what]], what, None if newest < _WORKS else _HANGS[what] - newest

    def idle_for(self, since: float, patience: float, left: bool) -> tuple[list[int], float]:
        """Return the members whose end `lose_idle` waits for, and the seconds of that wait."""
        now = self._clock.now()
        seconds = {session.worker: patience - (now - max(since, session.progress.changed))
                   for session in self.sessions
                   if session.plane is not None and (session.joined or left)
                   and not self.readers.closing(session.worker)}
        return [*seconds], max(seconds.values(), default=0.0)

    def send_off(self, session: WorkerSession, reason: str) -> None:
        """End a session for good: the worker must not reconnect."""
        self.sessions.send(session.identity, m.Refused(
            f"worker {session.worker} was given up: {one_line(reason)}"))
        self.lose(session, reason)

    def send_all_off(self, reason: str) -> None:
        """End all sessions for good, and send the workers the last messages."""
        for session in list(self.sessions):
            self.send_off(session, reason)
        self.serve()

    def lose(self, session: WorkerSession, reason: str) -> None:
        """End the session of a lost worker."""
        self.entrance.lose(session, reason)

    def _handle(self, identity: bytes, frames: list[zmq.Frame], linked: bool = False) -> None:
        """Handle a message; `linked`: over a link that proves its sender.

        Raises:
            WireError: the message is invalid.
        """
        session = self.sessions.get(identity)
        line = None
        if frames and not linked:
            line = self._socket.received(frames[0], session is not None
                                         or self.replication.knows(identity), frames[1:])
        try:
            message = _decoded(frames)
        except m.WireError as error:
            if session is None or not (linked or session.line is line):
                raise
            # It repeats the message, and waits for the answer forever.
            raise m.Impossible(f"worker {session.worker} sent what no message of a worker is "
                               f"({error})") from None
        anybody = None if linked else self._handlers.anybody.get(type(message))
        if anybody is not None:
            body_of(message, frames, session)
            anybody(Peer(identity, line, frames[0]), message)
            self.sessions.log.introduced(identity)
        elif session is None:  # perhaps a worker that has not noticed that this is another process
            self.sessions.send(identity, m.Unknown())
            self.sessions.log.stray(identity,
                                    f"{type(message).__name__} from an unknown session")
        elif not linked and session.line is not line:
            self.sessions.answer(identity, m.Unknown())  # a new connection, not identified yet
        else:
            body = body_of(message, frames, session)
            session.liveness.hear(self._clock.now())
            self.readers.versions.arrived()
            handle = self._handlers.session.get(type(message))
            if handle is None:
                raise m.WireError(f"worker {session.worker} sent {type(message).__name__} out of "
                                  "turn")
            handle(session, message, *([body] if isinstance(message, _WITH_FLOATS) else []))

    def _tell_worker(self, worker: int, message: m.Message) -> None:
        if session := self.sessions.of(worker):
            self.sessions.send(session.identity, message)

    def _is_no_shard(self, peer: Peer, lead: s.Lead) -> None:
        self.sessions.answer(peer.identity, s.Denied("it is a server, not a shard"))

    def _fail(self, identity: bytes, error: Exception) -> None:
        """Continue without the worker whose message caused an internal error."""
        reason = one_line(f"handling its message failed: {error!r}")
        self.sessions.log.tell("faults of the server", kind="error",
                                traceback=traceback.format_exception(error)[-_FRAMES:])
        if session := self.sessions.get(identity):
            reason = f"worker {session.worker}: {reason} (events.jsonl has the traceback)"
            self.sessions.refuse(identity, session.worker, reason)
            self.lose(session, reason)
        else:
            self.sessions.log.count(reason)


def _decoded(frames: list[zmq.Frame]) -> m.Message:
    """Return the message in the first of these frames. Raises WireError."""
    if not 1 <= len(frames) <= 2:
        raise m.WireError(f"a message of {len(frames)} frames")
    return m.decode(m.FromWorker, frames[0].buffer)
