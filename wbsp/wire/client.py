"""A member's line to a server, without socket, thread or clock: what it sends, and when.

    client.send(request, now)            a request of the member
    client.receive(message, ..., now)    a message of the server, or of one of its shards
    client.connected(now)                its connection is a new one, perhaps to another server
    client.due(now)                      time has passed

Each returns commands, which the driver carries out in their order: messages and vectors to send,
and what the member learns. What the client must know of its connection is a `Line`.

A reconnection may lead to another server. So a member introduces itself with Reattach, and all
other messages wait until the server and its shards know this worker.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import structs

from wbsp import timeouts
from wbsp.core.agent import Expect
from wbsp.core.messages import Span
from wbsp.core.rules import RuleBroken
from wbsp.core.stats import Report
from wbsp.limits import one_line
from wbsp.process.throttle import Throttle
from wbsp.sync.base import Push
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.wire.assembly import VectorAssembly
from wbsp.wire.errors import TransportError, refused
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import Claim, answer, attachment
from wbsp.wire.session import Session

# Seconds for which a member that is refused without proof searches for its run's server, which may
# be restarted, or replaced by its standby.
_DOUBT = 60.0
_NOTICE = 10.0  # seconds between two lines about an unreachable shard
Shares = tuple[float | None, float | None]  # 0..1, of processors and memory in use; None: not known


class Line(Protocol):
    """What a client must know of its connection.

    Attributes:
        made: a connection has existed.
        broken: from a break until the reconnection.
        host: at which the server was reached.
        sent: number of messages sent, without the urgent ones.
        all_sent: no message waits to be sent.
        returned: as in `Fetch`.
        door: name of the socket for servers of this machine to share memory; "": none (now).
        contact: key of a first contact, as of `ServerSocket.contact`.
    """

    @property
    def made(self) -> bool: ...
    @property
    def broken(self) -> bool: ...
    @property
    def host(self) -> str: ...
    @property
    def sent(self) -> int: ...
    @property
    def all_sent(self) -> bool: ...
    @property
    def returned(self) -> int: ...
    @property
    def door(self) -> str: ...
    @property
    def contact(self) -> bytes: ...

    def transferring(self, now: float) -> bool:
        """Return whether a rate limit delays a message in either direction."""


class Member(Protocol):
    """What a client must know of its member, once that trains."""

    @property
    def waits(self) -> bool:
        """True if it waits for a version."""

    def report(self) -> Report:
        """Return its totals."""


# Commands for the connection.


class Post(NamedTuple):
    """Send the server, or a shard, a message; an urgent one replaces an older urgent one."""

    message: m.Message
    urgent: bool = False
    shard: int | None = None


class Put(NamedTuple):
    """Send a vector (float32 [size]), each chunk after the message `header`(offset).

    Attributes:
        parts: for each shard, if the server has shards; none: its range of the vector.
    """

    vector: np.ndarray
    header: Callable[[int], m.Update | m.Kept | m.Initial]
    parts: Sequence[np.ndarray] = ()


class Arrange(NamedTuple):
    """Use the shards and the shared memory of the server's answer from here on."""

    answer: m.Joined | m.Resend | m.Reattached


class Detach(NamedTuple):
    """Share no memory until a server answers again."""


class TurnAway(NamedTuple):
    """Leave a peer that does not serve for the next address."""

    reason: str


class Served(NamedTuple):
    """The peer serves."""


# Commands for the member.


class Answered(NamedTuple):
    """The answer to a request before the member trains."""

    message: m.Message


class Acked(NamedTuple):
    """The answer to the newest push, `seconds` after the request."""

    ack: m.Ack
    seconds: float


class Fetched(NamedTuple):
    """The requested version, of `nbytes` on the line, `seconds` after the request."""

    version: int
    vector: np.ndarray
    nbytes: int
    seconds: float


class Received(NamedTuple):
    """Any other message to a member."""

    message: m.Message


Command = (Post | Put | Arrange | Detach | TurnAway | Served
           | Answered | Acked | Fetched | Received)


class SendUpdate(NamedTuple):
    """Push an update, which must not be written to any more.

    Attributes:
        update: float32 [size], on the host when the client gets it.
        fetch: number of the fetch that the push carries; 0: none.
        usage: returns the machine's load for the push; called when it is sent.
        spans: positions of the run's shared data in the push.
        words: the update in the run's format, once it is ready to be sent.
        sent: the decoded words, which are the pushed update.
    """

    push: Push
    update: Any
    fetch: int = 0
    usage: Callable[[], Shares] = lambda: (None, None)
    spans: Sequence[Span] = ()
    words: np.ndarray | None = None
    sent: np.ndarray | None = None


class SendInitial(NamedTuple):
    """Give the server its W_0, float32 [size], and the frozen values."""

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


def answer_to(request: Request) -> type[m.Message]:
    """Return the type of the message that answers this request, which is answered."""
    return _ANSWERS[type(request)]


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
            self.progresses(now)

    def progresses(self, now: float) -> None:
        """Note progress."""
        self.progress_at = now

    def is_repeated(self, now: float) -> None:
        """Note that the request is sent again."""
        self.sent_at = now

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


class Client:
    """A member's line to one server after another.

    Attributes:
        session: its membership in the run.
        group: the server's shards, or None.
        update_bytes: of the newest update; None before the first.
    """

    def __init__(self, line: Line, address: str, random: Callable[[int], bytes],
                 say: Callable[[str], None] = lambda text: None,
                 patience: float = timeouts.WORKER_PATIENCE):
        """Start.

        Args:
            line: the connection.
            address: of the server, for errors.
            random: returns the given number of random bytes.
            say: prints a console line.
            patience: seconds for which to try to reach a shard.
        """
        self._line, self._address, self._random = line, address, random
        self._say, self._patience = say, patience
        self.session = Session(random, say)
        self.group: m.ShardGroup | None = None
        self._shards: Shards | None = None
        self._pending: PendingRequest | None = None
        self._attaching: PendingRequest | None = None  # Reattach, while it is not answered
        self._member: Member | None = None
        self._inbox: Inbox | None = None
        self._early: list[m.Message] = []  # messages to a member, received before `listen`
        self._held: list[Request] = []  # without an answer, for a server that knows this worker
        self._chunks_at_server = 0  # of the vector that this worker sends, or of the W_0 it awaits
        self._heartbeat_at = 0.0
        self._presents = False  # its introduction is to be proven first: requests wait for Welcome
        self._left = False  # the last message ends the session: the server forgets this worker
        self._closes = False
        self._refused_at: float | None = None  # without proof, for the first time since it attached
        self.update_bytes: int | None = None
        self._answer: tuple[m.Ack, Request] | None = None  # to a push, for the resend buffer
        self._commands: list[Command] = []

    @property
    def pending(self) -> Request | None:
        """The request that is not answered, or None."""
        return None if self._pending is None else self._pending.request

    @property
    def progress_at(self) -> float:
        """Time of the pending request's newest progress; 0 if none is pending. For any thread."""
        pending = self._pending
        return pending.progress_at if pending else 0.0

    @property
    def ready(self) -> bool:
        """False while vectors cannot be sent, because a shard does not know this worker."""
        return self._shards is None or self._shards.ready

    @property
    def cut_off(self) -> bool:
        """True from a break until server and shards know this worker again. For any thread."""
        return self._line.broken or self._attaching is not None or not self.ready

    # Inputs.

    def send(self, request: Request, now: float) -> list[Command]:
        """Send a request, and repeat it until it is answered; or send a message without an answer.

        A fetch that a push has carried is sent only if the push is lost.

        Raises:
            RuleBroken: another request is not answered yet, and would never be.
        """
        if self._answer is not None:
            self._keep()
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
                self._send(request, now)
            return self._done()
        match request:
            case SendUpdate():
                words, sent = self.session.encode(request.update)
                request = request._replace(words=words, sent=sent)
            case m.Hello():
                self.session.introduces(request)
            case m.Join():
                self.session.asks_to_join(request)
            case m.Leaving():
                self.session.leaves(request.finished)
                request = structs.replace(request, report=self._report())
        self._pending = PendingRequest(request, self._counts(), now, now, now)
        if isinstance(request, Expect) and self._inbox:
            # a part of the answer may have come before
            for early in self._inbox.early(request.fetch.request, self.group):
                self._pass_on(*early, now)
        elif not self.cut_off:
            self._send(request, now)
        return self._done()

    def listen(self, member: Member, size: int) -> list[Command]:
        """Pass messages to this member from here on; its model has `size` floats."""
        self._member, self._inbox = member, Inbox(size, self.session.wire)
        early, self._early = self._early, []
        return [Received(message) for message in early]

    def close(self) -> None:
        """Begin nothing more: the connection is closed soon."""
        self._closes = True

    def woke(self, seconds: float) -> None:
        """Handle the end of a suspension of some `seconds`."""
        if self._refused_at is not None:
            self._refused_at += seconds
        if self._shards is not None:
            self._shards.woke(seconds)

    def connected(self, now: float) -> list[Command]:
        """Introduce this worker over a new connection."""
        if self._answer is not None:
            self._keep()
        self._introduce(now)
        return self._done()

    def shard_changed(self, shard: int, connected: bool, now: float) -> list[Command]:
        """Handle a shard's connection, which is a new one, or broken."""
        assert self._shards is not None
        self._commands += self._shards.changed(shard, connected, now)
        return self._done()

    def receive(self, message: m.Message, chunk: memoryview | None, now: float,
                shard: int | None = None) -> list[Command]:
        """Handle a message of the server, or of a shard, with its chunk, if it has one.

        Raises:
            TransportError: this worker cannot continue.
            WireError: the message is invalid; see `misread`.
        """
        if self._answer is not None:
            self._keep()
        if shard is None:
            self._handle(message, chunk, now)
        elif self._shards is not None:
            self._commands += self._shards.receive(shard, message, now)
            if (isinstance(message, m.Model) and message.place is None and chunk is not None
                    and self._shards.proven(shard)):
                self._handle(message, chunk, now)
        return self._done()

    def misread(self, error: m.WireError) -> list[Command]:
        """Handle a message that no correct server sends.

        Raises:
            TransportError: the server has sent it.
        """
        if not self.session.member or self._trusted:
            raise TransportError(f"the server at {self._address} sent {error}") from None
        return [TurnAway(f"the process at {self._address} is not the run's server: it sent "
                         f"{error}")]

    def due(self, now: float) -> list[Command]:
        """Return what is due now: a heartbeat, a request again, an introduction to a shard.

        Raises:
            TransportError: a shard is unreachable for too long.
        """
        if self._answer is not None:
            self._keep()
        line = self._line
        if self._shards is not None and not self._shards.ready:
            self._commands += self._shards.due(now, line.broken)
            if self._shards.ready:  # for the first time or again
                self._resend_lacking()
                self._repeat_request(now)
        if not line.made or line.broken:
            return self._done()
        pending = self._attaching or self._pending
        # not at once: it would cost time in each step
        if pending and pending.idle(now) > timeouts.REQUEST_STALLED / 60:
            pending.observe(self._counts(), now)
            if line.transferring(now):
                pending.progresses(now)
            if (self.ready and line.all_sent
                    and pending.idle(now) > timeouts.REQUEST_STALLED):
                if self._presents:  # its introduction was lost
                    self._introduce(now)
                self._send_again(pending, now)
        if (now >= self._heartbeat_at and not self._closes and self._introduced
                and not self._left and self._attaching is None):
            self._heartbeat_at = now + timeouts.WORKER_BEAT
            self._do(Post(m.Heartbeat(self._report(), self._counts()[1]), urgent=True))
        return self._done()

    def _keep(self) -> None:
        """Keep the newest answered push; only now, because the member waits for its answer."""
        assert self._answer is not None
        (ack, request), self._answer = self._answer, None
        if isinstance(request, SendUpdate) and request.sent is not None:
            self.session.answered(request.push, request.sent, ack, request.spans)

    # Sending.

    def _do(self, command: Command) -> None:
        self._commands.append(command)

    def _done(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    def _send(self, request: Request, now: float) -> None:
        """Send a request, for the first time or again, in its present form."""
        line, session = self._line, self.session
        match request:
            case SendUpdate(push=push, words=words, fetch=fetch) if words is not None:
                parts = session.parts(words, self.group)
                self.update_bytes = 4 * sum(part.size for part in parts)
                size = words.size if self.group else parts[0].size
                self._do(Put(words if self.group else parts[0], lambda offset: m.Update(
                    push, offset, size, fetch, session.held, line.returned), parts))
            case m.Fetch(number) | Expect(m.Fetch(number)):
                self._do(Post(m.Fetch(number, session.held, line.returned)))
            case SendInitial(vector, frozen):
                size = vector.size + frozen.size
                self._do(Put(vector, lambda offset: m.Initial(offset, size)))
                if frozen.size:
                    self._do(Put(frozen, lambda offset: m.Initial(vector.size + offset, size)))
            case Attach():
                self._do(Post(session.reattach(
                    line.door, self._member is None or self._member.waits, now)))
            case m.Hello():
                self._do(Post(session.introduction))
            case m.Message():
                self._do(Post(request))

    def _send_again(self, pending: PendingRequest, now: float) -> None:
        pending.is_repeated(now)
        request = pending.request
        if isinstance(request, SendUpdate) and request.sent is not None:
            # it may still be in flight when the first sending is answered
            request.sent.flags.writeable = False
        self._send(request, now)

    def _repeat_request(self, now: float) -> None:
        """Send the pending request again; the server counts no push twice."""
        if self._pending and self._attaching is None and self.ready:
            self._send_again(self._pending, now)

    def _resend_lacking(self) -> None:
        """Send the sum that the server lacks, if any, once its shards are ready."""
        if self.ready and (lacking := self.session.lacking()) is not None:
            work, total = lacking
            self._do(Put(total, lambda offset: m.Kept(work, offset, total.size)))

    @property
    def _introduced(self) -> bool:
        """True once the server knows this session; before, it accepts only Hello."""
        return self._pending is None or not isinstance(self._pending.request, m.Hello)

    def _counts(self) -> tuple[int, ...]:
        models = self._inbox.chunks if self._inbox else 0
        return self._line.sent, models, self._chunks_at_server

    def _report(self) -> Report | None:
        return self._member.report() if self._member else None

    # Messages.

    def _handle(self, message: m.Message, chunk: memoryview | None, now: float) -> None:
        session = self.session
        match message:
            case m.Ack() | m.Model() if self._attaching is None:  # first: most messages are
                self._pass_on(message, chunk, now)
            case m.Alive():
                self._chunks_at_server = message.chunks
                if self._attaching is None:  # a new server counts marks of its own until it answers
                    session.kept.drop(message.durable)
            case m.Elect() | m.Leading() | m.NotServing():
                if self._trusted and (promise := session.choose(
                        message, now, self._attaching is None)):
                    self._do(Post(promise))
                if isinstance(message, m.NotServing):
                    self._do(TurnAway(one_line(message.reason)))
            case m.Challenge():
                if self._attaching is not None:
                    self._meet(message, self._attaching.request, now)
                elif not session.member and session.meets(message):
                    self._do(Post(session.introduction))
            case m.Refused():
                self._refused(message, now)
            case m.Unknown():
                if self._attaching is None and not self._presents:
                    self._introduce(now)
            case m.Resend():
                if self._attaching is not None and self._trusted:
                    self._arrange(message, now)
                    session.resends(message.seq)
                    self._resend_lacking()
            case m.Reattached():
                if (self._attaching is not None and self._trusted
                        and not self._turned_away(message.epoch)):
                    self._go_on(message, now)
            case m.FrozenPart():
                if self._take_answered(message):  # else: answered twice
                    self._do(Answered(message))
            case m.VersionAt() if self._take_answered(message):
                self._do(Answered(message))
            case m.Welcome() | m.Joined() if session.member:
                pass  # answered twice; or a stranger, where the server was
            case m.Welcome():
                session.welcomed(message)
                if not self._turned_away(message.epoch):
                    self._do(Served())
                    if self._take_answered(message):  # else: answered twice
                        self._do(Answered(message))
                    if self._presents:
                        self._presents = False
                        self._request_again(now)
            case m.Joined():
                if not self._turned_away(message.epoch) and self._take_answered(message):
                    if not message.send_initial:
                        session.admitted(message, now)
                        self._presents = False  # as a member from here on, if it must
                        self._arrange(message, now)
                    self._do(Answered(message))
            case _:
                if self._attaching is None:  # else: left by the broken connection; it arrives again
                    self._pass_on(message, chunk, now)

    def _arrange(self, answer: m.Joined | m.Resend | m.Reattached, now: float) -> None:
        self._do(Arrange(answer))
        if answer.group != self.group:
            self.group = answer.group
            self._shards = None if answer.group is None else Shards(
                answer.group, self._line.host, self._random, self._say, self._patience, now)

    def _turned_away(self, epoch: int) -> bool:
        """Leave a server of a lower epoch than this worker knows; return whether it is one."""
        reason = self.session.outdated(epoch)
        if reason is not None:
            self._do(TurnAway(reason))
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
                refusal.proof, answer(self._line.contact, claim.nonce, "refused",
                                      refusal.reason)):
            raise refused(reason, refusal.over, refusal.ends, refusal.follows)
        if self._refused_at is None:
            self._refused_at = now
        if now - self._refused_at > _DOUBT:
            raise refused(reason, refusal.over, refusal.ends, refusal.follows)
        self._do(TurnAway(
            f"the process at {self._address} refuses this worker, and has not proven that it is of "
            f"the same user, token or run ({reason}); searching for the run's server for up to "
            f"{_DOUBT:g} s"))

    @property
    def _trusted(self) -> bool:
        """Return whether the peer has proven that it is the run's server, or its standby.

        It did by making this worker a member, or by a later answer.
        """
        session = self.session
        return (session.member and not self._line.broken
                and (self._attaching is None or session.claim.bond is not None))

    def _meet(self, challenge: m.Challenge, introduction: Request, now: float) -> None:
        """Answer a challenge of the peer, which proves its own identity, too."""
        met = self.session.claim.meets(challenge)
        if met is False:
            self._do(TurnAway(f"the process at {self._address} has not proven that it is of this "
                              "worker's run"))
        elif met:
            self._send(introduction, now)

    def _pass_on(self, message: m.Message, chunk: memoryview | None, now: float) -> None:
        """Pass a message to a member, now or when it listens."""
        inbox = self._inbox
        if inbox is None:
            self._early.append(message)
            return
        match message:
            case m.Ack():
                if pending := self._take_answered(message):  # else: answered twice
                    self._do(Acked(message, now - pending.requested_at))
                    self._answer = message, pending.request
            case m.Model():
                pending = self._pending
                if pending is None or not pending.is_answered_by(message):
                    inbox.put_by(message, chunk, self.group)
                elif (whole := inbox.take(
                        message, chunk, self.group, self.session.sparse)) is not None:
                    self._pending = None
                    self.session.received(message.version, inbox.held)
                    self._do(Fetched(message.version, *whole, now - pending.requested_at))
            case _:
                self._take_answered(message)
                self._do(Received(message))

    def _take_answered(self, message: m.Message) -> PendingRequest | None:
        """Remove and return the request that this message answers, or None."""
        pending = self._pending
        if pending is None or not pending.is_answered_by(message):
            return None
        self._pending = None
        return pending

    # Reconnections.

    def _introduce(self, now: float) -> None:
        """Introduce this worker again; a member's pending request waits for the answer."""
        self._do(Detach())
        session = self.session
        if session.was is not None:
            session.was.renew()
        if session.member:
            session.claim.renew()
            self._attaching = PendingRequest(Attach(), self._counts(), now, now, now)
            self._send(self._attaching.request, now)
            return
        if self._introduced and session.hello is not None:
            self._do(Post(session.introduction))
            self._presents = session.was is not None
        if not self._presents:
            self._request_again(now)

    def _request_again(self, now: float) -> None:
        """Repeat the request of a worker that is no member, which a server may have lost."""
        join = self.session.join
        if (self._pending and isinstance(self._pending.request, m.Join | SendInitial)
                and join is not None):
            # also during the transfer of W_0: another worker may be asked for it
            self._pending = PendingRequest(join, self._counts(), now, now, now)
            if not self.cut_off:
                self._send(join, now)
        else:
            self._repeat_request(now)

    def _go_on(self, answer: m.Reattached, now: float) -> None:
        """Continue with a server that knows this worker, and lacks none of its pushes."""
        self._attaching, self._left = None, False
        self._arrange(answer, now)
        self._do(Served())
        self._refused_at = None
        self.session.reattached(answer)
        self._pass_on(answer, None, now)
        if answer.ack is not None:
            self._pass_on(answer.ack, None, now)
        for held in self._held:
            if not isinstance(held, m.AskWork):  # the member asks anew
                self._send(held, now)
        self._held.clear()
        self._repeat_request(now)


class Inbox:
    """The version that arrives at a member; `chunks`: of versions received so far."""

    def __init__(self, size: int, wire: Codec = FLOAT32):
        """Start; `size`: of the model, in floats; `wire`: format of differences."""
        self.chunks = 0
        self._versions = VectorAssembly(size, wire)
        self._group: m.ShardGroup | None = None  # the shards that send the versions' ranges
        self._early: list[tuple[m.Model, memoryview | None, m.ShardGroup]] = []

    def put_by(self, model: m.Model, chunk: memoryview | None, group: m.ShardGroup | None) -> None:
        """Keep an early chunk, because a shard may be faster than the server's grant."""
        if group is not None:
            self._early = [one for one in self._early if one[0].request == model.request]
            self._early.append((model, chunk, group))

    def early(self, request: int | None,
              group: m.ShardGroup | None) -> list[tuple[m.Model, memoryview | None]]:
        """Return the early chunks of the answer to this request, from these shards."""
        early, self._early = self._early, []
        return [(model, chunk) for model, chunk, origin in early
                if model.request == request and origin == group]

    @property
    def held(self) -> int:
        """Version that the server may add differences to; NONE: none."""
        return self._versions.held

    def take(self, model: m.Model, chunk: memoryview | None, group: m.ShardGroup | None,
             keep: bool = False) -> tuple[np.ndarray, int] | None:
        """Take a chunk; `keep`: as in `VectorAssembly.add`.

        Returns:
            The model, float32 [size], and the number of received bytes, if this chunk completed it;
            else None.

        Raises:
            WireError: the chunk is invalid.
        """
        if chunk is None:
            raise m.WireError("a model without values")
        if group != self._group:  # earlier chunks of the shards may be of another version
            self._group = group
            self._versions.divide(1 if group is None else len(group.addresses))
        self.chunks += 1
        return self._versions.add(model, chunk, keep)


@dataclass
class _Shard:
    """The connection to one shard; times are seconds of the monotonic clock."""

    name: str
    claim: Claim
    connected: bool = False
    known: bool = False  # it knows this worker
    strange: bool = False  # the process there has not proven that it is the shard
    presented_at: float = 0.0

    def changed(self, connected: bool) -> None:
        """Note a new connection, or the end of one."""
        self.connected = connected
        self.known = self.strange = False
        self.claim.renew()

    def meets(self, challenge: m.Challenge) -> bool:
        """Return whether to introduce this worker, because the shard has just proven itself."""
        met = self.claim.meets(challenge)
        if met is not None:
            self.strange = not met
        return bool(met)

    def knows(self) -> None:
        """Note that the shard knows this worker."""
        self.known = True

    def introduction(self, name: int, now: float) -> s.Present:
        """Return this worker's introduction."""
        self.presented_at = now
        return self.claim.sealed(s.Present(name))


class Shards:
    """A member's introductions to the shards of its server.

    A shard accepts messages only from a worker that has introduced itself over the same connection,
    and answers the introduction once its server has announced the worker; each proves to the other
    that it knows their secret. Until all shards have answered, messages that need them are not
    sent; those in flight when a connection broke are then repeated.

    Attributes:
        ready: all shards know this worker.
    """

    def __init__(self, group: m.ShardGroup, here: str, random: Callable[[int], bytes],
                 say: Callable[[str], None], patience: float, now: float):
        """Start; `here`: the host at which the server was reached."""
        self._name, key = attachment(group.secret)
        self._all = [_Shard(f"{host or here}:{port}", Claim(random, key))
                     for host, port in group.addresses]
        self._say, self._patience = say, patience
        self.ready = False
        self._unready_since = now
        self._notice = Throttle(_NOTICE, now + _NOTICE)

    def proven(self, number: int) -> bool:
        """Return whether the process there has proven that it is the shard."""
        return self._all[number].claim.bond is not None

    def changed(self, number: int, connected: bool, now: float) -> list[Command]:
        """As `Client.shard_changed`."""
        self._unready(now)
        self._all[number].changed(connected)
        return [self._introduction(number, now)] if connected else []

    def receive(self, number: int, message: m.Message, now: float) -> list[Command]:
        """Handle a message of the process there, but for versions."""
        shard = self._all[number]
        if isinstance(message, m.Challenge):
            if shard.meets(message):
                return [self._introduction(number, now)]
        elif (isinstance(message, s.Ready) and message.name == self._name
                and shard.claim.bond is not None):
            if shard.known:  # a slice arrived too early there: all are repeated
                self._unready(now)
            shard.knows()
        return []

    def due(self, now: float, alone: bool) -> list[Command]:
        """Return the introductions that are due; update `ready`.

        Args:
            now: seconds.
            alone: the server is lost, too, and the next one may have other shards.

        Raises:
            TransportError: a shard is unreachable for too long.
        """
        self.ready = all(shard.known for shard in self._all)
        if self.ready:
            return []
        if alone:
            self._unready_since = now
            self._notice.rest(now)
            return []
        missing = next(shard for shard in self._all if not shard.known)
        waited = now - self._unready_since
        if waited > self._patience:
            raise TransportError(f"the shard at {missing.name} is unreachable for "
                                 f"{self._patience:g} s, but its server is connected")
        if self._notice.due(now):
            self._say((f"the process at {missing.name} has not proven that it is a shard of this "
                       "worker's run" if missing.strange else
                       f"no connection to the shard at {missing.name}") + "; trying for another "
                      f"{self._patience - waited:.0f} s")
        return [self._introduction(number, now) for number, shard in enumerate(self._all)
                if shard.connected and not shard.known
                and now - shard.presented_at > timeouts.PRESENT_AGAIN]

    def woke(self, seconds: float) -> None:
        """Handle the end of a suspension, in which no shard could be reached."""
        self._unready_since += seconds

    def _unready(self, now: float) -> None:
        if self.ready:
            self.ready, self._unready_since = False, now
            self._notice.rest(now)

    def _introduction(self, number: int, now: float) -> Post:
        return Post(self._all[number].introduction(self._name, now), shard=number)
