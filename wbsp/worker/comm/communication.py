"""The communication thread: requests of the worker, answers of the server, heartbeats.

This thread sends the heartbeats, so that a worker in a long step is never mistaken for a lost one.
It passes members' messages to a `Listener`, and is independent of models and rules.

A reconnection may lead to another server. So a member introduces itself with Reattach, and all
other messages wait until the server and its shards know this worker.
"""

from __future__ import annotations

import hmac
import queue
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from wbsp import timeouts
from wbsp.core.agent import Expect
from wbsp.core.messages import Span
from wbsp.core.rules import RuleBroken
from wbsp.core.stats import Report
from wbsp.limits import one_line
from wbsp.process.host import HOST, Host
from wbsp.replica.base import Vector
from wbsp.sync.base import Push
from wbsp.wire.liveness import Nap
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import answer
from wbsp.worker.comm.connection import Connection
from wbsp.worker.comm.inbox import Inbox, Listener, Next
from wbsp.worker.comm.session import Session
from wbsp.worker.errors import TransportError, refused

# Seconds for which a member that is refused without proof searches for its run's server, which may
# be restarted, or replaced by its standby.
_DOUBT = 60.0
_SETTLE = 0.005  # seconds of silence after which there is time to add to the resend buffer
Shares = tuple[float | None, float | None]  # 0..1, of processors and memory in use; None: not known


@dataclass(eq=False)
class SendUpdate:
    """Push an update, which must not be written to any more.

    Attributes:
        update: the communication thread waits for it, and copies it to the host.
        fetch: number of the fetch that the push carries; 0: none.
        usage: returns the machine's load for the push; called by that thread.
        spans: positions of the run's shared data in the push.
        words: the update in the run's format, once it is ready to be sent.
        sent: the decoded words, which are the pushed update.
    """

    push: Push
    update: Vector
    fetch: int = 0
    usage: Callable[[], Shares] = lambda: (None, None)
    spans: Sequence[Span] = ()
    words: np.ndarray | None = None
    sent: np.ndarray | None = None


class SendInitial(NamedTuple):
    """Give the server its W_0, float32 [size], and what is frozen."""

    vector: np.ndarray
    frozen: np.ndarray


class Attach(NamedTuple):
    """Introduce a member over a new connection."""


Request = SendUpdate | SendInitial | Attach | Expect | m.Message
# The type of the message that answers a request; all other messages are not answered.
_ANSWERS: dict[type, type[m.Message]] = {
    m.Hello: m.Welcome, m.Join: m.Joined, SendInitial: m.Joined, Attach: m.Reattached,
    SendUpdate: m.Ack, m.Fetch: m.Model, Expect: m.Model, m.CutQuery: m.CutDecision,
    m.Leaving: m.Final, m.AskPast: m.VersionAt, m.AskFrozen: m.FrozenPart}


@dataclass
class PendingRequest:
    """The one request of a worker that the server has not answered yet.

    Times are seconds of the monotonic clock.

    Attributes:
        counts: of messages and chunks that were sent or received; a change is progress.
    """

    request: Request
    counts: tuple[int, ...]
    requested_at: float
    sent_at: float  # for the last time
    progress_at: float  # time of the newest part of the request or of its answer

    def is_answered_by(self, message: m.Message) -> bool:
        """Return whether the message is the answer to this request, and not to an earlier one."""
        return (type(message) is _ANSWERS[type(self.request)]
                and _number(message) == _number(self.request))

    def may_end_for(self, request: Request) -> bool:
        """Return whether `request` may take the place of this one, which is not answered.

        A worker may leave at any time, and one that is no member joins again behind a break.
        """
        if isinstance(request, m.Leaving):
            return not request.finished
        return isinstance(request, m.Join) and isinstance(self.request, m.Join | SendInitial)

    def observe(self, counts: tuple[int, ...], now: float) -> None:
        """Note progress if a count has changed."""
        if counts != self.counts:
            self.counts = counts
            self.progress_at = now

    def idle(self, now: float) -> float:
        """Return the seconds since the request was sent, or since the last progress."""
        return now - max(self.sent_at, self.progress_at)


def _number(message: Request) -> int | None:
    """Return the number of a request, or of the one that a message answers, or None."""
    match message:
        case SendUpdate():
            return message.push.seq
        case m.Ack():
            return message.seq
        case m.Fetch() | m.Model():
            return message.request
        case Expect():
            return message.fetch.request
        case m.CutQuery() | m.CutDecision():
            return message.number
        case m.AskFrozen() | m.FrozenPart():
            return message.offset
    return None


class CallQueue:
    """Calls from the compute thread to the communication thread, in order.

    Both threads need Python's one interpreter lock. So the compute thread appends while it is busy,
    which is cheap, and wakes the communication thread when it is about to leave Python for long.
    The wake-up is a byte between two sockets, so that the communication thread can wait for it and
    for the server at once; the system's sockets take half as long as ZeroMQ's.

    Attributes:
        wakes: a file descriptor, readable after a `wake`.
    """

    def __init__(self, on: Host = HOST):
        self._calls: deque[tuple[Callable[..., None], Any]] = deque()
        self._waker, self._woken = on.network.pair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self.wakes = self._woken.fileno()

    def __len__(self) -> int:
        """Return the number of calls that have not been made."""
        return len(self._calls)

    # Used by the compute thread.

    def append(self, call: Callable[..., None], *arguments: Any) -> None:
        """Queue a call for the communication thread, at the next `wake` or earlier."""
        self._calls.append((call, arguments))

    def wake(self) -> None:
        """Wake the communication thread if calls are queued."""
        if self._calls:
            self._waker.send(b"\0")  # in vain where the thread has ended, or has many to read

    def close(self) -> None:
        """Close the queue after the thread's end."""
        self._waker.close()
        self._woken.close()

    # Used by the communication thread.

    def take_wake(self) -> None:
        """Read the bytes of `wake`."""
        self._woken.recv(1024)

    def make(self) -> None:
        """Make all calls."""
        while self._calls:
            call, arguments = self._calls.popleft()
            call(*arguments)


class Communication:
    """Body of the communication thread. Other threads call only through `CallQueue`.

    Attributes:
        error: why the thread has ended; None while it runs.
        handshake: answers to Hello and Join; the error, if the thread ends.
        session: this worker's membership in the run.
        update_bytes: of the newest update; None before the first.
    """

    def __init__(self, connection: Connection, calls: CallQueue, address: str,
                 say: Callable[[str], None] = lambda text: None):
        """Start; `say`: prints a console line."""
        self.error: TransportError | None = None
        self.handshake: queue.SimpleQueue[m.Message | TransportError] = (
            connection.on.scheduler.queue())
        self._connection = connection
        self._calls = calls
        self._address = address
        self._pending: PendingRequest | None = None
        self.session = Session(say, connection.on)
        self._attaching: PendingRequest | None = None  # Reattach, while it is not answered
        self._inbox: Inbox | None = None
        self._early: list[m.Message] = []  # messages to a member, received before `listen`
        self._held: list[Request] = []  # without an answer, for a server that knows this worker
        self._chunks_at_server = 0  # of the vector that this worker sends, or of the W_0 it awaits
        self._heartbeat_at = 0.0
        self._presents = False  # its introduction is to be proven first: requests wait for Welcome
        self._left = False  # the last message ends the session: the server forgets this worker
        self._refused_at: float | None = None  # without proof, for the first time since it attached
        self._closes_by: float | None = None
        self.update_bytes: int | None = None

    @property
    def progress_at(self) -> float:
        """Time of the pending request's newest progress; 0 if none is pending. For any thread."""
        pending = self._pending
        return pending.progress_at if pending else 0.0

    @property
    def cut_off(self) -> bool:
        """True from a break until server and shards know this worker again. For any thread."""
        return (self._connection.monitor.broken or self._attaching is not None
                or not self._connection.plane.ready)

    def run(self) -> None:
        """Communicate until `close`, or until the server is lost."""
        try:
            self._loop()
            self._fail(TransportError("this worker has left the run"))
        except TransportError as error:
            self._fail(error)
        except Exception as error:  # the compute thread must not wait forever
            self._fail(TransportError(f"the communication thread failed: {error!r}"))
        finally:
            self._connection.close()

    # Calls of the compute thread.

    def request(self, request: Request) -> None:
        """Send a request, and repeat it until it is answered; or send a message without an answer.

        A fetch that a push has carried is sent only if the push is lost.

        Raises:
            RuleBroken: another request is not answered yet, and would never be.
        """
        pending = self._pending
        if pending is not None and type(request) in _ANSWERS and not pending.may_end_for(request):
            raise RuleBroken(f"{type(request).__name__} is requested while "
                             f"{type(pending.request).__name__} is not answered: a worker has one "
                             "request at a time")
        if isinstance(request, m.Goodbye) or (isinstance(request, m.Leaving)
                                              and not request.finished):
            self._left = True
        if type(request) not in _ANSWERS:
            if self._attaching is not None and not self._left:
                self._held.append(request)  # this server does not know this worker yet
            else:
                self._send(request)
            return
        match request:
            case SendUpdate():
                cpu, memory = request.usage()
                request.push = request.push._replace(cpu=cpu, memory=memory)
                request.words, request.sent = self.session.encode(np.asarray(request.update))
            case m.Hello():
                self.session.hello = request
            case m.Join():
                self.session.join = request
            case m.Leaving():
                self.session.left = request.finished
                request = structs.replace(request, report=self._report())
        now = self._connection.on.clock.monotonic()
        self._pending = PendingRequest(request, self._counts(), now, now, now)
        if isinstance(request, Expect) and self._inbox:
            # a part of the answer may have come before
            for early in self._inbox.early(request.fetch.request, self._connection.plane.group):
                self._fetch(self._pass_on(*early, now))
        elif not self.cut_off:
            self._send(request)

    def listen(self, listener: Listener, size: int) -> None:
        """Pass all messages to this member, whose model has `size` floats."""
        self._inbox = Inbox(listener, size, self.session.wire.versions)
        early = self._early
        self._early = []
        for message in early:
            self._fetch(listener.received(message))

    def close(self, deadline: float) -> None:
        """End the thread when all messages are sent, or at `deadline` (monotonic seconds)."""
        self._closes_by = deadline

    def _send(self, request: Request) -> None:
        """Queue a request, for the first time or again, in its present form."""
        plane, session = self._connection.plane, self.session
        match request:
            case SendUpdate(push=push, words=words, fetch=fetch) if words is not None:
                parts = session.parts(words, plane.group)
                self.update_bytes = 4 * sum(part.size for part in parts)
                size = words.size if plane.group else parts[0].size
                plane.put(words if plane.group else parts[0], lambda offset: m.Update(
                    push, offset, size, fetch, session.held, plane.returned), parts)
            case m.Fetch(number) | Expect(m.Fetch(number)):
                plane.post(m.Fetch(number, session.held, plane.returned))
            case SendInitial(vector, frozen):
                size = vector.size + frozen.size
                plane.put(vector, lambda offset: m.Initial(offset, size))
                if frozen.size:
                    plane.put(frozen, lambda offset: m.Initial(vector.size + offset, size))
            case Attach():
                inbox = self._inbox
                session.reattach(self._connection, inbox is None or inbox.listener.waits)
            case m.Hello():
                plane.post(session.introduction)
            case m.Message():
                plane.post(request)

    def _send_again(self, pending: PendingRequest, now: float) -> None:
        pending.sent_at = now
        request = pending.request
        if isinstance(request, SendUpdate) and request.sent is not None:
            # it may still be in flight when the first sending is answered
            request.sent.flags.writeable = False
        self._send(request)

    # The loop.

    def _loop(self) -> None:
        clock = self._connection.on.clock
        nap = Nap(clock.monotonic())
        while not self._closed(clock.monotonic()):
            patience = _SETTLE if self.session.kept.unsettled else timeouts.WORKER_BEAT / 4
            ready = self._connection.poll(self._calls.wakes, patience)
            if nap.over(now := clock.monotonic()):
                self._connection.woke(now, nap.seconds)
                if self._refused_at is not None:
                    self._refused_at += nap.seconds
            if ready.wake:
                self._calls.take_wake()
            self._calls.make()
            if ready.event and self._connection.read_event():
                self._introduce_again(clock.monotonic())
            if ready.message:
                self._receive()
            else:
                self.session.kept.settle()  # while the server or this worker is busy
            self._connection.flush()
            self._keep_alive(clock.monotonic())

    def _closed(self, now: float) -> bool:
        return self._closes_by is not None and (
            now > self._closes_by or not self._connection.monitor.made
            or (self._connection.all_sent and not self._calls))

    def _fail(self, error: TransportError) -> None:
        self.error = error
        self.handshake.put(error)
        if self._inbox:
            self._inbox.listener.failed()

    def _receive(self) -> None:
        try:
            while (received := self._connection.receive()) is not None:
                self._handle(*received, self._connection.on.clock.monotonic())
        except m.WireError as error:
            if not self.session.member or self._trusted:
                raise TransportError(f"the server at {self._address} sent {error}") from None
            self._connection.monitor.turn_away(
                f"the process at {self._address} is not the run's server: it sent {error}",
                self._connection.on.clock.monotonic())

    def _handle(self, message: m.Message, chunk: memoryview | None, now: float) -> None:
        match message:
            case m.Alive():
                self._chunks_at_server = message.chunks
                if self._attaching is None:  # a new server counts marks of its own until it answers
                    self.session.kept.drop(message.durable)
            case m.Elect() | m.Leading() | m.NotServing():
                if self._trusted and (promise := self.session.choose(
                        message, self._attaching is None)):
                    self._connection.plane.post(promise)
                if isinstance(message, m.NotServing):
                    self._connection.monitor.turn_away(one_line(message.reason), now)
            case m.Challenge():
                if self._attaching is not None:
                    self._meet(message, now)
                elif not self.session.member and self.session.meets(message):
                    self._connection.plane.post(self.session.introduction)
            case m.Refused():
                self._refused(message, now)
            case m.Unknown():
                if self._attaching is None and not self._presents:
                    self._introduce_again(now)
            case m.Resend():
                if self._attaching is not None and self._trusted:
                    self._connection.arrange(message)
                    self.session.lacks = message.seq
                    self.session.resend_lacking(self._connection)
            case m.Reattached():
                if (self._attaching is not None and self._trusted
                        and not self._turned_away(message.epoch, now)):
                    self._go_on(message, now)
            case m.FrozenPart():
                if self._take_answered(message):  # else: answered twice
                    self.handshake.put(message)
            case m.VersionAt() if self._take_answered(message):
                self.handshake.put(message)
            case m.Welcome() | m.Joined() if self.session.member:
                pass  # answered twice; or a stranger, where the server was
            case m.Welcome():
                self.session.welcomed(message)
                if not self._turned_away(message.epoch, now):
                    self._connection.monitor.served()
                    if self._take_answered(message):  # else: answered twice
                        self.handshake.put(message)
                    if self._presents:
                        self._presents = False
                        self._request_again(now)
            case m.Joined():
                if not self._turned_away(message.epoch, now) and self._take_answered(message):
                    if not message.send_initial:
                        self.session.admitted(message)
                        self._connection.arrange(message)
                    self.handshake.put(message)
            case _:
                if self._attaching is None:  # else: left by the broken connection; it comes again
                    self._fetch(self._pass_on(message, chunk, now))

    def _turned_away(self, epoch: int, now: float) -> bool:
        """Leave a server of a lower epoch than this worker knows; return whether it is one."""
        reason = self.session.outdated(epoch)
        if reason is not None:
            self._connection.monitor.turn_away(reason, now)
        return reason is not None

    def _refused(self, refusal: m.Refused, now: float) -> None:
        """Handle a refusal.

        A member does not trust every process, because another one may listen at its server's
        address.

        Raises:
            TransportError: the refusal is trusted.
        """
        reason, claim = one_line(refusal.reason), self.session.claim
        if not self.session.member or self._trusted or hmac.compare_digest(
                refusal.proof, answer(self._connection.contact, claim.nonce, "refused",
                                      refusal.reason)):
            raise refused(reason, refusal.over, refusal.ends, refusal.follows)
        if self._refused_at is None:
            self._refused_at = now
        if now - self._refused_at > _DOUBT:
            raise refused(reason, refusal.over, refusal.ends, refusal.follows)
        self._connection.monitor.turn_away(
            f"the process at {self._address} refuses this worker, and has not proven that it is of "
            f"the same user, token or run ({reason}); searching for the run's server for up to "
            f"{_DOUBT:g} s", now)

    @property
    def _trusted(self) -> bool:
        """Return whether the peer has proven that it is the run's server, or its standby.

        It did by making this worker a member, or by a later answer.
        """
        session = self.session
        return (session.member and not self._connection.monitor.broken
                and (self._attaching is None or session.claim.bond is not None))

    def _meet(self, challenge: m.Challenge, now: float) -> None:
        """Answer a challenge of the peer, which proves its own identity, too."""
        claim, attaching = self.session.claim, self._attaching
        met = claim.meets(challenge)
        if met is False:
            self._connection.monitor.turn_away(
                f"the process at {self._address} has not proven that it is of this worker's run",
                now)
        elif met and attaching is not None:
            self._send(attaching.request)

    def _pass_on(self, message: m.Message, chunk: memoryview | None, now: float) -> Next:
        """Pass a message to a member, now or when it listens; return the fetch that it needs then.
        """
        inbox = self._inbox
        if inbox is None:
            self._early.append(message)
            return None
        match message:
            case m.Ack():
                if pending := self._take_answered(message):  # else: answered twice
                    fetch = inbox.listener.acked(message, now - pending.requested_at)
                    request = pending.request
                    if isinstance(request, SendUpdate) and request.sent is not None:
                        self.session.answered(request.push, request.sent, message,
                                              request.spans)
                    return fetch
            case m.Model():
                pending, group = self._pending, self._connection.plane.group
                if pending is None or not pending.is_answered_by(message):
                    inbox.put_by(message, chunk, group)
                elif (whole := inbox.take(
                        message, chunk, group, self.session.sparse)) is not None:
                    self._pending = None
                    self.session.received(message.version, inbox.held)
                    return inbox.listener.fetched(message.version, *whole,
                                                  now - pending.requested_at)
            case _:
                self._take_answered(message)
                return inbox.listener.received(message)
        return None

    def _fetch(self, fetch: Next) -> None:
        """Request the listener's fetch, after all requests of the compute thread."""
        if fetch is not None:
            self._calls.make()
            self.request(fetch)

    def _take_answered(self, message: m.Message) -> PendingRequest | None:
        """Remove and return the request that this message answers, or None."""
        pending = self._pending
        if pending is None or not pending.is_answered_by(message):
            return None
        self._pending = None
        return pending

    # Reconnections.

    def _introduce_again(self, now: float) -> None:
        """Introduce this worker again; a member's pending request waits for the answer."""
        self._connection.detach()
        session = self.session
        if session.was is not None:
            session.was.renew()
        if session.member:
            session.claim.renew()
            self._attaching = PendingRequest(Attach(), self._counts(), now, now, now)
            self._send(self._attaching.request)
            return
        if self._introduced and session.hello is not None:
            self._connection.plane.post(session.introduction)
            self._presents = session.was is not None
        if not self._presents:
            self._request_again(now)

    def _request_again(self, now: float) -> None:
        """Repeat the request of a worker that is no member, which a server may have lost."""
        if (self._pending and isinstance(self._pending.request, m.Join | SendInitial)
                and self.session.join is not None):
            # also during the transfer of W_0: another worker may be asked for it
            self.request(self.session.join)
        else:
            self._repeat_request(now)

    def _go_on(self, answer: m.Reattached, now: float) -> None:
        """Continue with a server that knows this worker, and lacks none of its pushes."""
        self._attaching, self._left = None, False
        self._connection.arrange(answer)
        self._connection.monitor.served()
        self._refused_at = None
        self.session.reattached(answer)
        fetch = self._pass_on(answer, None, now)
        if answer.ack is not None:
            fetch = self._pass_on(answer.ack, None, now)
        for held in self._held:
            if not isinstance(held, m.AskWork):  # the listener asks anew
                self._send(held)
        self._held.clear()
        self._repeat_request(now)
        self._fetch(fetch)

    # Heartbeats.

    def _keep_alive(self, now: float) -> None:
        if self._connection.check(now):  # the shards are ready, for the first time or again
            self.session.resend_lacking(self._connection)
            self._repeat_request(now)
        if not self._connection.monitor.made or self._connection.monitor.broken:
            return
        if self._connection.let_go(now):
            self._introduce_again(now)
        pending = self._attaching or self._pending
        # not at once: it would cost time in each step
        if pending and pending.idle(now) > timeouts.REQUEST_STALLED / 60:
            pending.observe(self._counts(), now)
            if self._connection.transferring(now):
                pending.progress_at = now
            if (self._connection.plane.ready and self._connection.all_sent
                    and pending.idle(now) > timeouts.REQUEST_STALLED):
                if self._presents:  # its introduction was lost
                    self._introduce_again(now)
                self._send_again(pending, now)
        if (now >= self._heartbeat_at and self._closes_by is None and self._introduced
                and not self._left and self._attaching is None):
            self._heartbeat_at = now + timeouts.WORKER_BEAT
            self._connection.plane.post(m.Heartbeat(self._report(), self._counts()[1]), urgent=True)

    @property
    def _introduced(self) -> bool:
        """True once the server knows this session; before, it accepts only Hello."""
        return self._pending is None or not isinstance(self._pending.request, m.Hello)

    def _counts(self) -> tuple[int, ...]:
        models = self._inbox.chunks if self._inbox else 0
        return self._connection.sent, models, self._chunks_at_server

    def _report(self) -> Report | None:
        return self._inbox.listener.report() if self._inbox else None

    def _repeat_request(self, now: float) -> None:
        """Send the pending request again; the server counts no push twice."""
        if self._pending and (self._attaching is None and self._connection.plane.ready):
            self._send_again(self._pending, now)
