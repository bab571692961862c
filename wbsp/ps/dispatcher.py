"""Dispatcher of workers' messages: each is checked, and handed to the part of the server it is for.

Whatever no correct worker sends is counted, logged, and changes nothing.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import zmq

from wbsp.core.engine import Engine
from wbsp.limits import one_line
from wbsp.ps.config import Reporter, RunInfo
from wbsp.ps.readers import Readers
from wbsp.ps.replication.primary import Replication
from wbsp.ps.sessions.admission import Admission, Begin, Entrance, Lobby
from wbsp.ps.sessions.handlers import Handlers, Peer
from wbsp.ps.sessions.registry import SessionRegistry
from wbsp.ps.sessions.replies import Replies
from wbsp.ps.sessions.requests import Requests
from wbsp.ps.sessions.session import WorkerSession, body_of, other_protocol
from wbsp.ps.sharding.coordinator import Shards
from wbsp.tensors.layout import TensorSpec, total_size
from wbsp.wire.guard import no_file_left
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.sockets import ServerSocket

_WITH_FLOATS = m.Initial | m.Update | m.Kept  # these come with floats, or are heads of them
_FRAMES = 20  # of a traceback, in the log
_LOOK = 0.25  # seconds between two looks at all workers, which take a while where they are many


class Dispatcher:
    """The server's side of every conversation; used by the event loop alone.

    files_at:   tells where the run's files are handed out, as of `RunFiles.at`
    record:     as in `Server`
    on_initial: takes what the first worker brings; None: no worker is asked
    """

    def __init__(self, socket: ServerSocket, info: RunInfo, reporter: Reporter, shards: Shards,
                 files_at: Callable[[], m.FilesAt], record: Callable[..., dict[str, Any]],
                 on_initial: Begin | None):
        self._socket = socket
        self._say = reporter.say
        self._clock = reporter.clock
        self._files_at = files_at
        self.info = info
        self.on = socket.on
        shards.hear = self.hear_shard
        self.sessions = SessionRegistry(socket, info.config, reporter, shards, info.series)
        self.replication = Replication(info, record, socket, self.sessions, reporter)
        self.readers = Readers(socket, info, reporter, files_at, self._tell_worker)
        self._lobby = Lobby(info, self.sessions, self._clock, self.replication, on_initial)
        self.entrance: Entrance = self._lobby
        self._handlers = self._handlers_of(self._lobby)
        self._look_at = -math.inf  # own time of the next look at all workers
        self._full = False  # no file was left to open, at that look

    def begin(self, engine: Engine, layout: list[TensorSpec]) -> Requests:
        """There is a model: admit the workers that wait for it."""
        replies = Replies(engine, self.sessions, self.info)
        self.sessions.expect(self.sessions.planes.most(total_size(layout)))
        requests = Requests(engine, self.sessions, replies, self._clock)
        admission = Admission(self._lobby, requests, layout)
        self.entrance, self._handlers = admission, self._handlers_of(admission, requests)
        admission.admit_all()
        return requests

    def _handlers_of(self, *parts: Entrance | Requests) -> Handlers:
        """The methods of these parts, and of those that are there all the time."""
        handlers = Handlers({m.Watch: self._tell_watcher, s.Lead: self._is_no_shard})
        for part in (self.sessions, self.replication, self.readers, *parts):
            handlers.add(part.handlers())
        return handlers

    def register(self, poller: zmq.Poller) -> None:
        """Have `poller` wake up when a worker says something in memory that is shared with it."""
        if self.sessions.lending.fd is not None:
            poller.register(self.sessions.lending.fd, zmq.POLLIN)

    def delay(self) -> float:
        """Seconds until there may be something to send."""
        return self.sessions.queues.delay(self._clock.now())

    def serve(self) -> None:
        """Send what may leave by now."""
        now = self._clock.now()
        self.sessions.queues.flush(now)
        self.sessions.lending.flush(now)

    def close(self) -> None:
        """Say what is still to be said, and take back what was lent."""
        self.sessions.log.flush(at_once=True)
        self.sessions.lending.close()
        self.readers.close()

    def receive(self) -> None:
        """Take what has come in, but come back often enough for the timers."""
        for identity, *frames in self._socket.messages():
            self._carefully(identity.bytes, partial(self._handle, identity.bytes, frames))

    def take_over(self, earlier: Iterable[tuple[Peer, m.Message]]) -> None:
        """This server is there in the place of the run's other one, which has ended; `earlier`:
        who came before it was ready, and with which message."""
        self.replication.lost()
        for peer, message in earlier:
            with contextlib.suppress(m.WireError):
                self._handlers.anybody[type(message)](peer, message)

    def receive_shared(self) -> None:
        """One message of each worker with which memory is shared, if it has sent one."""
        for link in self.sessions.lending.readable():
            session = self.sessions.get(link.identity)
            if session is None or session.inbox != link.inbox:
                continue  # another worker's message has ended it
            try:
                frames = link.receive()
            except OSError:
                self.sessions.planes.unshare(session)
                continue
            if frames is not None:
                self._carefully(link.identity, partial(self._handle, link.identity, frames, True))

    def hear_shard(self, shard: int, message: m.Message) -> None:
        """A shard says something of a worker, or of strangers."""
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
        """Do what a message of this peer asks for; a wrong one costs its sender alone."""
        try:
            act()
        except m.Impossible as error:  # a member would wait for an answer for ever
            self.sessions.log.count(str(error))
            if session := self.sessions.get(identity):
                self.send_off(session, str(error))
        except m.WireError as error:
            self.sessions.log.count(str(error))
        except Exception as error:  # internal error: drop this worker, keep the run
            self._fail(identity, error)

    def check_silence(self) -> None:
        """Give up workers that are gone, and count peers that never spoke properly."""
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
                "this process can open no more files: it accepts no connection, and new peers "
                "wait; raise the limit (ulimit -n) and start this server again with --resume"
                ), "no_file_left")

    def poll_standby(self) -> None:
        """What time brings about at the standby; a fault costs it, and not the run."""
        try:
            self.replication.poll()
        except Exception as error:
            self.sessions.log.tell(
                "faults of the server", f"looking after the standby failed: {error!r}; trying "
                "again (events.jsonl has the traceback)", "error",
                traceback=traceback.format_exception(error)[-_FRAMES:])

    def _lose_if_gone(self, session: WorkerSession) -> None:
        if reason := self.sessions.lost(session):
            self.lose(session, reason)

    def woke(self, now: float) -> None:
        """This process has slept: what it has not heard meanwhile it may still hear."""
        self.replication.woke(now)
        self.sessions.woke(now)

    def lose_idle(self, since: float, patience: float) -> None:
        """Give up workers without progress for `patience` seconds, from `since` on."""
        for session in self.sessions.idle(since, patience):
            if self.readers.closing(session.worker):
                continue
            what = "its last push" if session.joined else "the final version"
            self._say(f"worker {session.worker}: no progress on {what} for {patience:g} "
                      "s; ending without it")
            self.send_off(session, f"no progress for {patience:g} s")

    def idle_for(self, since: float, patience: float) -> tuple[list[int], float]:
        """The members whose end `lose_idle` waits for, and seconds until it waits no more."""
        now = self._clock.now()
        left = {session.worker: patience - (now - max(since, session.progress.changed))
                for session in self.sessions
                if session.plane is not None and not self.readers.closing(session.worker)}
        return [*left], max(left.values(), default=0.0)

    def send_off(self, session: WorkerSession, reason: str) -> None:
        """End a session for good: the worker is not to come again."""
        self.sessions.send(session.identity, m.Refused(
            f"worker {session.worker} was given up: {one_line(reason)}"))
        self.lose(session, reason)

    def lose(self, session: WorkerSession, reason: str) -> None:
        """End a session without a word from the worker."""
        self.entrance.lose(session, reason)

    def _handle(self, identity: bytes, frames: list[zmq.Frame], linked: bool = False) -> None:
        """Take a message; `linked`: over a link that proves whose it is. Raises WireError."""
        session = self.sessions.get(identity)
        line = None
        if frames and not linked:
            line = self._socket.received(frames[0], session is not None
                                         or self.replication.knows(identity), frames[1:])
        if not 1 <= len(frames) <= 2:
            raise m.WireError(f"a message of {len(frames)} frames")
        message = m.decode(m.FromWorker, frames[0].buffer)
        body = body_of(message, frames, session)
        anybody = None if linked else self._handlers.anybody.get(type(message))
        if anybody is not None:
            anybody(Peer(identity, line, frames[0]), message)
        elif session is None:
            self.sessions.send(identity, m.Unknown())
            raise m.WireError(f"{type(message).__name__} from an unknown session")
        elif not linked and session.line is not line:
            self.sessions.answer(identity, m.Unknown())  # a new connection: who is it?
        else:
            session.liveness.hear(self._clock.now())
            handle = self._handlers.session.get(type(message))
            if handle is None:
                raise m.WireError(f"worker {session.worker} sent {type(message).__name__} out of "
                                  "turn")
            handle(session, message, *([body] if isinstance(message, _WITH_FLOATS) else []))

    def _tell_watcher(self, peer: Peer, watch: m.Watch) -> None:
        """Another process serves those who watch the run: say where."""
        if session := self.sessions.get(peer.identity):
            raise m.WireError(f"worker {session.worker} sent Watch in its session")
        if reason := other_protocol("who watches", watch.protocol):
            self.sessions.answer(peer.identity, m.Refused(reason))
        else:
            self.sessions.answer(peer.identity, self._files_at())

    def _tell_worker(self, worker: int, message: m.Message) -> None:
        if session := self.sessions.of(worker):
            self.sessions.send(session.identity, message)

    def _is_no_shard(self, peer: Peer, lead: s.Lead) -> None:
        self.sessions.answer(peer.identity, s.Denied("it is a server, and no shard"))

    def _fail(self, identity: bytes, error: Exception) -> None:
        """A message was one too many for the server: go on without the worker that sent it."""
        reason = one_line(f"handling its message failed: {error!r}")
        self.sessions.log.tell("faults of the server", kind="error",
                                traceback=traceback.format_exception(error)[-_FRAMES:])
        if session := self.sessions.get(identity):
            reason = f"worker {session.worker}: {reason} (events.jsonl has the traceback)"
            self.sessions.refuse(identity, session.worker, reason)
            self.lose(session, reason)
        else:
            self.sessions.log.count(reason)
