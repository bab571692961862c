"""The communication thread: requests of the worker, answers of the server, signs of life.

Heartbeats come from this thread, so that a worker in a long step is never mistaken for a dead one.
Members' messages are passed on to a `Listener`; nothing here knows a model or a rule.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wbsp.runlog.report import Report
from wbsp.wire import messages as m
from wbsp.wire.chunks import Reassembler
from wbsp.wire.memory import BufferPool
from wbsp.worker.calls import CallQueue
from wbsp.worker.channel import ServerChannel
from wbsp.worker.connection import TransportError
from wbsp.worker.pending import PendingRequest

HEARTBEAT = 1.0  # seconds
RESEND = 60.0  # seconds without progress after which a request is sent again


class Listener(Protocol):
    """Receiver of a member's messages, called in the communication thread.

    `seconds` is the time from the request to the last byte of the answer.
    """

    def acked(self, ack: m.Ack, seconds: float) -> None: ...

    def fetched(self, version: int, vector: np.ndarray, seconds: float) -> None: ...

    def received(self, message: m.Message) -> None: ...

    def failed(self) -> None: ...

    def report(self) -> Report: ...


@dataclass
class _Membership:
    """What a member has, and others have not."""

    listener: Listener
    models: Reassembler


class Communication:
    """Body of the communication thread. Other threads call through `CallQueue` alone.

    error:     why the thread has ended; None while it runs
    handshake: answers to Hello and Join; the error, if the thread ends
    """

    def __init__(self, channel: ServerChannel, calls: CallQueue, address: str):
        self.error: TransportError | None = None
        self.handshake: queue.SimpleQueue[m.Message | TransportError] = queue.SimpleQueue()
        self._channel, self._calls, self._address = channel, calls, address
        self._pending: PendingRequest | None = None
        self._membership: _Membership | None = None
        self._early: list[m.Message] = []  # messages to a member, received before `listen`
        self._chunks_received = 0  # of models
        self._chunks_at_server = 0  # of the vector that this worker sends, or of the W_0 it awaits
        self._heartbeat_at = 0.0
        self._closes_by: float | None = None

    @property
    def progress_at(self) -> float:
        """When the pending request last made progress; 0 if none is pending. For any thread."""
        pending = self._pending
        return pending.progress_at if pending else 0.0

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

    def request(self, answer: type[m.Message], send: Callable[[], None],
                number: int | None = None, carried: bool = False) -> None:
        """Send a request, and again until it is answered.

        carried: an earlier message stands for the request; it is sent only if that is lost
        """
        now = time.monotonic()
        self._pending = PendingRequest(answer, number, send, self._counts(), now, now, now)
        if not carried:
            send()

    def listen(self, listener: Listener, size: int) -> None:
        """Pass on all messages to this member, whose model has `size` floats."""
        self._membership = _Membership(listener, Reassembler(size, BufferPool()))
        for message in self._early:
            listener.received(message)
        self._early.clear()

    def leave(self, reason: str, finished: bool) -> None:
        """Announce that the training ends; see `messages.Leaving`."""
        report = self._report()
        self.request(m.Final, lambda: self._channel.post(m.Leaving(reason, finished, report)))

    def close(self, deadline: float) -> None:
        """End the thread when all messages are sent, or at `deadline` (monotonic seconds)."""
        self._closes_by = deadline

    # The loop.

    def _loop(self) -> None:
        while not self._closed(time.monotonic()):
            ready = self._channel.poll(self._calls.wakes, HEARTBEAT / 4)
            if ready.wake:
                self._calls.take_wake()
            self._calls.make()
            if ready.event and self._channel.read_event():
                if self._introduced:
                    self._channel.post(m.Resync())
                self._repeat_request(time.monotonic())
            if ready.message:
                self._receive()
            self._channel.flush()
            self._keep_alive(time.monotonic())

    def _closed(self, now: float) -> bool:
        if self._closes_by is None:
            return False
        return (now > self._closes_by or not self._channel.connection.made
                or (self._channel.all_sent and not self._calls))

    def _fail(self, error: TransportError) -> None:
        self.error = error
        self.handshake.put(error)
        if self._membership:
            self._membership.listener.failed()

    def _receive(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                self._handle(*received, time.monotonic())
                self._calls.make()  # the listener may have requested a fetch
        except m.WireError as error:
            raise TransportError(f"the server at {self._address} sent {error}") from None

    def _handle(self, message: m.Message, chunk: memoryview | None, now: float) -> None:
        match message:
            case m.Alive():
                self._chunks_at_server = message.chunks
            case m.Refused():
                raise TransportError(f"the server refused: {message.reason}")
            case m.Welcome() | m.Joined():
                if self._take_answered(message):  # else: answered twice
                    self.handshake.put(message)
            case _:
                if self._membership is None:
                    self._early.append(message)
                else:
                    self._pass_on(message, chunk, now, self._membership)

    def _pass_on(self, message: m.Message, chunk: memoryview | None, now: float,
                 member: _Membership) -> None:
        match message:
            case m.Ack():
                if request := self._take_answered(message):  # else: answered twice
                    member.listener.acked(message, now - request.requested_at)
            case m.Model():
                if chunk is None:
                    raise m.WireError("a model without values")
                request = self._pending
                if request and request.is_answered_by(message):
                    vector = self._take_chunk(message, chunk, member.models)
                    if vector is not None:
                        self._pending = None
                        member.listener.fetched(message.version, vector, now - request.requested_at)
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

    def _take_chunk(self, model: m.Model, chunk: memoryview,
                    models: Reassembler) -> np.ndarray | None:
        """The whole model, float32 [size], if this chunk was its last."""
        if model.offset not in (0, models.filled):
            return None  # rest of a transfer over a broken connection; the fetch was repeated
        self._chunks_received += 1
        return models.add(model.offset, model.size, chunk)

    # Signs of life.

    def _keep_alive(self, now: float) -> None:
        self._channel.connection.check(now)
        if not self._channel.connection.made:
            return
        if request := self._pending:
            request.observe(self._counts(), now)
            if self._channel.transferring(now):
                request.progress_at = now
            if self._channel.all_sent and request.idle(now) > RESEND:
                self._repeat_request(now)
        if now >= self._heartbeat_at and self._closes_by is None and self._introduced:
            self._heartbeat_at = now + HEARTBEAT
            self._channel.post(m.Heartbeat(self._report(), self._chunks_received), urgent=True)

    @property
    def _introduced(self) -> bool:
        """True once the server knows this session; before, it accepts nothing but Hello."""
        return self._pending is None or self._pending.answer is not m.Welcome

    def _counts(self) -> tuple[int, ...]:
        return self._channel.sent, self._chunks_received, self._chunks_at_server

    def _report(self) -> Report | None:
        return self._membership.listener.report() if self._membership else None

    def _repeat_request(self, now: float) -> None:
        """Send the pending request again; the server counts no push twice."""
        if self._pending:
            self._pending.sent_at = now
            self._pending.send()
