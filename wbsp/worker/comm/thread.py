"""The communication thread: requests of the worker, answers of the server, signs of life.

Heartbeats come from this thread, so that a worker in a long step is never mistaken for a dead one.
Members' messages are passed on to a `Listener`; nothing here knows a model or a rule.

A connection that is made again may lead to another server. So a member introduces itself with
Reattach, and whatever else there is to send waits until the server and its shards know this worker.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wbsp import timeouts
from wbsp.core.stats import Report
from wbsp.limits import one_line
from wbsp.process.host import HOST, Host
from wbsp.sync.base import Push
from wbsp.wire.liveness import Nap
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import answer
from wbsp.worker.comm.attachment import Attachment
from wbsp.worker.comm.channel import ServerChannel
from wbsp.worker.comm.connection import TransportError, refused
from wbsp.worker.comm.incoming import Listener, Membership

# Seconds for which a member that is refused without proof looks for its run's server: that may be
# started again, or its standby may take over.
_DOUBT = 60.0


@dataclass
class PendingRequest:
    """The one request of a worker that the server has not answered yet.

    Times are seconds of the monotonic clock.

    answer: type of the message that answers the request
    number: of the push, fetch or query, which the answer names; None: the answer names none
    send:   queues the request, for the first time and again
    counts: of messages and chunks that went out or came in; a change is progress
    """

    answer: type[m.Message]
    number: int | None
    send: Callable[[], None]
    counts: tuple[int, ...]
    requested_at: float
    sent_at: float  # for the last time
    progress_at: float  # when a part of the request or of its answer last went through
    cut: tuple[Push, np.ndarray] | None = None  # that a push hands over

    def is_answered_by(self, message: m.Message) -> bool:
        """True if the message is the answer to this request, and not to an earlier one."""
        return type(message) is self.answer and _number(message) == self.number

    def observe(self, counts: tuple[int, ...], now: float) -> None:
        """Note progress if a count has changed."""
        if counts != self.counts:
            self.counts, self.progress_at = counts, now

    def send_again(self, now: float) -> None:
        self.sent_at = now
        if self.cut is not None:  # it may be on its way yet when the first sending is answered
            self.cut[1].flags.writeable = False
        self.send()

    def idle(self, now: float) -> float:
        """Seconds since the request was sent, or since the last progress."""
        return now - max(self.sent_at, self.progress_at)


def _number(message: m.Message) -> int | None:
    """Number of the request that a message answers; None if the message names none."""
    match message:
        case m.Ack():
            return message.seq
        case m.Model():
            return message.request
        case m.CutDecision():
            return message.number
    return None


class CallQueue:
    """Calls that the compute thread hands over and the communication thread makes, in order.

    Both threads need Python's one interpreter lock. So the compute thread appends while it is busy,
    which costs it little, and wakes the communication thread when it is about to leave Python for
    long. The wake-up is a byte between two sockets, so that the communication thread can wait for
    it and for the server at once; those of the system take half as long as ZeroMQ's.

    wakes: a file descriptor, readable after a `wake`
    """

    def __init__(self, on: Host = HOST):
        self._calls: deque[Callable[[], None]] = deque()
        self._waker, self._woken = on.network.pair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self.wakes = self._woken.fileno()

    def __len__(self) -> int:
        """Number of calls that have not been made."""
        return len(self._calls)

    # Used by the compute thread.

    def append(self, call: Callable[[], None]) -> None:
        """Have the communication thread make this call, at the next `wake` or earlier."""
        self._calls.append(call)

    def wake(self) -> None:
        """Wake the communication thread, if there are calls for it."""
        if self._calls:
            with contextlib.suppress(OSError):  # the thread has ended, or has many to read
                self._waker.send(b"\0")

    def close(self) -> None:
        """The thread has ended."""
        self._waker.close()
        self._woken.close()

    # Used by the communication thread.

    def take_wake(self) -> None:
        """Read what `wake` has sent."""
        self._woken.recv(1024)

    def make(self) -> None:
        """Make all calls."""
        while self._calls:
            self._calls.popleft()()


class Communication:
    """Body of the communication thread. Other threads call through `CallQueue` alone.

    error:      why the thread has ended; None while it runs
    handshake:  answers to Hello and Join; the error, if the thread ends
    attachment: this worker's place in the run
    """

    def __init__(self, channel: ServerChannel, calls: CallQueue, address: str,
                 say: Callable[[str], None] = lambda text: None):
        """`say`: prints one line for a person."""
        self.error: TransportError | None = None
        self.handshake: queue.SimpleQueue[m.Message | TransportError] = (
            channel.on.scheduler.queue())
        self._channel, self._calls, self._address = channel, calls, address
        self._pending: PendingRequest | None = None
        self.attachment = Attachment(say, channel.on)
        self._attaching: PendingRequest | None = None  # Reattach, while it is not answered
        self._membership: Membership | None = None
        self._early: list[m.Message] = []  # messages to a member, received before `listen`
        self._chunks_at_server = 0  # of the vector that this worker sends, or of the W_0 it awaits
        self._heartbeat_at = 0.0
        self._refused_at: float | None = None  # without proof, for the first time since it attached
        self._closes_by: float | None = None

    @property
    def progress_at(self) -> float:
        """When the pending request last made progress; 0 if none is pending. For any thread."""
        pending = self._pending
        return pending.progress_at if pending else 0.0

    @property
    def cut_off(self) -> bool:
        """True from a break until server and shards know this worker again. For any thread."""
        return (self._channel.connection.broken or self._attaching is not None
                or not self._channel.ready)

    def run(self) -> None:
        """Communicate until `close`, or until the server is lost."""
        try:
            self._loop()
            self._fail(TransportError("this worker has left the run"))
        except TransportError as error:
            self._fail(error)
        except Exception as error:  # whatever it is, the compute thread must not wait for ever
            self._fail(TransportError(f"the communication thread failed: {error!r}"))
        finally:
            self._channel.close()

    # Calls of the compute thread.

    def hello(self, hello: m.Hello) -> None:
        """Introduce this worker."""
        self.attachment.hello = hello
        self.request(m.Welcome, lambda: self._channel.post(self.attachment.introduction))

    def join(self, join: m.Join) -> None:
        """Ask for membership."""
        self.attachment.join = join
        self.request(m.Joined, lambda: self._channel.post(join))

    def push(self, push: Push, update: np.ndarray, fetch: int) -> None:
        """Send an update, and keep it when it is answered."""
        sending = self.attachment.sending
        words, sent = sending.send(update)
        self.request(m.Ack, lambda: self._channel.hand_over(words, lambda offset: m.Update(
            push, offset, words.size, fetch, self.attachment.held, self._channel.returned),
            sending.wire.parts(words)), push.seq, cut=(push, sent))

    def request(self, answer: type[m.Message], send: Callable[[], None],
                number: int | None = None, carried: bool = False,
                cut: tuple[Push, np.ndarray] | None = None) -> None:
        """Send a request, and again until it is answered.

        carried: an earlier message stands for the request; it is sent only if that is lost
        cut:     that the request hands over
        """
        now = self._channel.on.clock.monotonic()
        self._pending = PendingRequest(answer, number, send, self._counts(), now, now, now, cut)
        if carried and self._membership:  # a part of the answer may have come before
            for early in self._membership.early(number, self._channel.group):
                self._pass_on(*early, now)
        elif not self.cut_off:
            send()

    def listen(self, listener: Listener, size: int) -> None:
        """Pass on all messages to this member, whose model has `size` floats."""
        self._membership = Membership(listener, size, self.attachment.wire.versions)
        for message in self._early:
            listener.received(message)
        self._early.clear()

    def leave(self, reason: str, finished: bool) -> None:
        """Announce that the training ends; see `messages.Leaving`."""
        report, self.attachment.left = self._report(), finished
        self.request(m.Final, lambda: self._channel.post(m.Leaving(reason, finished, report)))

    def close(self, deadline: float) -> None:
        """End the thread when all messages are sent, or at `deadline` (monotonic seconds)."""
        self._closes_by = deadline

    # The loop.

    def _loop(self) -> None:
        clock = self._channel.on.clock
        nap = Nap(clock.monotonic())
        while not self._closed(clock.monotonic()):
            ready = self._channel.poll(self._calls.wakes,
                                       self.attachment.patience(timeouts.WORKER_BEAT / 4))
            if nap.over(now := clock.monotonic()):
                self._channel.woke(now, nap.seconds)
                if self._refused_at is not None:
                    self._refused_at += nap.seconds
            if ready.wake:
                self._calls.take_wake()
            self._calls.make()
            if ready.event and self._channel.read_event():
                self._introduce_again(clock.monotonic())
            if ready.message:
                self._receive()
            else:
                self.attachment.settle()  # while the server is busy with a push, or this worker
            self._channel.flush()
            self._keep_alive(clock.monotonic())

    def _closed(self, now: float) -> bool:
        return self._closes_by is not None and (
            now > self._closes_by or not self._channel.connection.made
            or (self._channel.all_sent and not self._calls))

    def _fail(self, error: TransportError) -> None:
        self.error = error
        self.handshake.put(error)
        if member := self._membership:
            member.listener.failed()

    def _receive(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                self._handle(*received, self._channel.on.clock.monotonic())
                self._calls.make()  # the listener may have requested a fetch
        except m.WireError as error:
            if self.attachment.kept is None or self._trusted:
                raise TransportError(f"the server at {self._address} sent {error}") from None
            self._channel.connection.turn_away(
                f"the process at {self._address} is not the run's server: it sent {error}",
                self._channel.on.clock.monotonic())

    def _handle(self, message: m.Message, chunk: memoryview | None, now: float) -> None:
        match message:
            case m.Alive():
                self._chunks_at_server = message.chunks
                if self._attaching is None:  # a new server counts marks of its own until it answers
                    self.attachment.saved(message.durable)
            case m.Elect() | m.Leading() | m.NotServing():
                if self._trusted and (promise := self.attachment.choose(
                        message, self._attaching is None)):
                    self._channel.post(promise)
                if isinstance(message, m.NotServing):
                    self._channel.connection.turn_away(one_line(message.reason), now)
            case m.Challenge():
                if self._attaching is not None:
                    self._meet(message, now)
            case m.Refused():
                self._refused(message, now)
            case m.Unknown():
                if self._attaching is None:
                    self._introduce_again(now)
            case m.Resend():
                if self._attaching is not None and self._trusted:
                    self._channel.arrange(message)
                    self.attachment.lacks = message.seq
                    self.attachment.resend_lacking(self._channel)
            case m.Reattached():
                if (self._attaching is not None and self._trusted
                        and not self._turned_away(message.epoch, now)):
                    self._go_on(message, now)
            case m.Welcome() | m.Joined() if self.attachment.kept is not None:
                pass  # answered twice; or a stranger, where the server was
            case m.Welcome() | m.Joined():
                if isinstance(message, m.Welcome):
                    self.attachment.welcomed(message)
                if self._turned_away(message.epoch, now):
                    return
                if isinstance(message, m.Welcome):
                    self._channel.connection.served()
                if self._take_answered(message):  # else: answered twice
                    self.handshake.put(message)
                    if isinstance(message, m.Joined) and not message.send_initial:
                        self.attachment.admitted(message)
                        self._channel.arrange(message)
            case _:
                if self._attaching is None:  # else: left by the broken connection; it comes again
                    self._pass_on(message, chunk, now)

    def _turned_away(self, epoch: int, now: float) -> bool:
        """True for a server of a lower epoch than one that this worker knows: it is left."""
        reason = self.attachment.outdated(epoch)
        if reason is not None:
            self._channel.connection.turn_away(reason, now)
        return reason is not None

    def _refused(self, refusal: m.Refused, now: float) -> None:
        """This worker is refused. A member does not believe any process: another one may listen
        where its server was. Raises TransportError where it does."""
        reason, claim = one_line(refusal.reason), self.attachment.claim
        if self.attachment.kept is None or self._trusted or hmac.compare_digest(
                refusal.proof, answer(self._channel.contact, claim.nonce, "refused",
                                      refusal.reason)):
            raise refused(reason, refusal.over)
        if self._refused_at is None:
            self._refused_at = now
        if now - self._refused_at > _DOUBT:
            raise refused(reason, refusal.over)
        self._channel.connection.turn_away(
            f"the process at {self._address} refuses this worker, and has not proven that it is of "
            f"the same user, token or run ({reason}); looking for the run's server for up to "
            f"{_DOUBT:g} s", now)

    @property
    def _trusted(self) -> bool:
        """Whether the process at the other end has proven that it is the run's server, or one that
        waits to be it: as the one that made this worker a member, or by an answer since."""
        attachment = self.attachment
        return (attachment.kept is not None and not self._channel.connection.broken
                and (self._attaching is None or attachment.claim.bond is not None))

    def _meet(self, challenge: m.Challenge, now: float) -> None:
        """The process at the other end asks who this member is, and proves who it is itself."""
        claim, attaching = self.attachment.claim, self._attaching
        met = claim.meets(challenge)
        if met is False:
            self._channel.connection.turn_away(
                f"the process at {self._address} has not proven that it is of this worker's run",
                now)
        elif met and attaching is not None:
            attaching.send()

    def _pass_on(self, message: m.Message, chunk: memoryview | None, now: float) -> None:
        """Pass a message to a member on, now or when it listens."""
        member = self._membership
        if member is None:
            self._early.append(message)
            return
        match message:
            case m.Ack():
                if request := self._take_answered(message):  # else: answered twice
                    member.listener.acked(message, now - request.requested_at)
                    self.attachment.answered(request.cut, message)
            case m.Model():
                request, group = self._pending, self._channel.group
                if request is None or not request.is_answered_by(message):
                    member.put_by(message, chunk, group)
                elif (whole := member.take(message, chunk, group)) is not None:
                    self._pending = None
                    self.attachment.received(message.version)
                    member.listener.fetched(message.version, *whole, now - request.requested_at)
            case _:
                self._take_answered(message)
                member.listener.received(message)

    def _take_answered(self, message: m.Message) -> PendingRequest | None:
        """The request that this message answers, which is pending no more; None: no request."""
        request = self._pending
        if request is None or not request.is_answered_by(message):
            return None
        self._pending = None
        return request

    # A connection that was made again.

    def _introduce_again(self, now: float) -> None:
        """Say who this worker is; a member's pending request waits for the answer."""
        self._channel.detach()
        attachment, member = self.attachment, self._membership
        if attachment.kept is not None:
            attachment.claim.renew()
            self._attaching = PendingRequest(
                m.Reattached, None, lambda: attachment.reattach(
                    self._channel, member is None or member.listener.waits),
                self._counts(), now, now, now)
            self._attaching.send()
            return
        if self._introduced and attachment.hello is not None:
            self._channel.post(attachment.introduction)
        if self._pending and self._pending.answer is m.Joined and attachment.join is not None:
            self.join(attachment.join)  # also where W_0 was under way: another may be asked for it
        else:
            self._repeat_request(now)

    def _go_on(self, answer: m.Reattached, now: float) -> None:
        """The server knows this worker, and lacks nothing."""
        self._attaching = None
        self._channel.arrange(answer)
        self._channel.connection.served()
        self._refused_at = None
        self.attachment.reattached(answer)
        self._pass_on(answer, None, now)
        if answer.ack is not None:
            self._pass_on(answer.ack, None, now)
        self._repeat_request(now)

    # Signs of life.

    def _keep_alive(self, now: float) -> None:
        if self._channel.check(now):  # the shards are ready, for the first time or again
            self.attachment.resend_lacking(self._channel)
            self._repeat_request(now)
        if not self._channel.connection.made or self._channel.connection.broken:
            return
        if self._channel.let_go(now):
            self._introduce_again(now)
        if request := self._attaching or self._pending:
            request.observe(self._counts(), now)
            if self._channel.transferring(now):
                request.progress_at = now
            if (self._channel.ready and self._channel.all_sent
                    and request.idle(now) > timeouts.REQUEST_STALLED):
                request.send_again(now)
        if (now >= self._heartbeat_at and self._closes_by is None and self._introduced
                and self._attaching is None):
            self._heartbeat_at = now + timeouts.WORKER_BEAT
            self._channel.post(m.Heartbeat(self._report(), self._counts()[1]), urgent=True)

    @property
    def _introduced(self) -> bool:
        """True once the server knows this session; before, it accepts nothing but Hello."""
        return self._pending is None or self._pending.answer is not m.Welcome

    def _counts(self) -> tuple[int, ...]:
        models = self._membership.chunks if self._membership else 0
        return self._channel.sent, models, self._chunks_at_server

    def _report(self) -> Report | None:
        return self._membership.listener.report() if self._membership else None

    def _repeat_request(self, now: float) -> None:
        """Send the pending request again; the server counts no push twice."""
        if self._pending and (self._attaching is None and self._channel.ready):
            self._pending.send_again(now)
