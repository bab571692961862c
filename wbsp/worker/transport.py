"""The communication thread: owns the socket, sends cuts, fetches versions, and lives aloud.

Heartbeats come from here, so that a worker in a long step is never mistaken for a dead one. What
comes in is told to a `Listener`, in this thread; nothing here knows a model or a rule.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import zmq

from wbsp.layout import TensorSpec
from wbsp.runlog.report import Report
from wbsp.sync.base import Push
from wbsp.wire import messages as m
from wbsp.wire.chunks import Reassembler, split
from wbsp.wire.memory import BufferPool, keep_freed
from wbsp.wire.rate import RateLimitedReceiver, RateLimiter
from wbsp.wire.send_queue import SendQueue
from wbsp.wire.sockets import split_address, worker_socket
from wbsp.worker.connection import ConnectionMonitor, TransportError

HEARTBEAT = 1.0  # seconds
RESEND = 60.0  # seconds without progress after which a request is sent again
_GRAIN = 0.5  # seconds between two looks for an interrupt while waiting


class Listener(Protocol):
    """Hears what came in, in the communication thread. `seconds` is how long it took."""

    def answered(self, answer: m.Ack, seconds: float) -> None: ...

    def fetched(self, version: int, vector: np.ndarray, seconds: float) -> None: ...

    def told(self, message: m.Message) -> None: ...

    def failed(self) -> None: ...

    def report(self) -> Report: ...


class Transport:
    """A worker's connection to its server.

    say:         prints one line for a person
    interrupted: asked while waiting for the server; True ends the wait by a TransportError
    """

    def __init__(self, address: str, worker: int, token: bytes | None = None,
                 bandwidth: float | None = None, say: Callable[[str], None] = print,
                 interrupted: Callable[[], bool] = lambda: False):
        """`address`: host:port; `bandwidth`: bytes per second each way, or None."""
        self.address, self.worker = address, worker
        self.error: TransportError | None = None
        self._say, self._interrupted = say, interrupted
        keep_freed()
        self._context = zmq.Context()
        host, _ = split_address(address)
        self._socket = worker_socket(self._context, host, os.urandom(16), token)
        self._connection = ConnectionMonitor(self._socket, address,
                                      lambda text: say(f"worker {worker}: {text}"))
        # a pair of sockets wakes the thread from its poll when the compute thread wants something
        wake = f"inproc://wake-{id(self)}"
        self._wakes = self._context.socket(zmq.PAIR)
        self._wakes.bind(wake)
        self._waker = self._context.socket(zmq.PAIR)
        self._waker.connect(wake)
        self._orders: deque[Callable[[], None]] = deque()
        self._outbox = SendQueue(self._socket, RateLimiter(bandwidth))
        self._inlet = RateLimitedReceiver(self._socket, RateLimiter(bandwidth))
        self._listener: Listener | None = None
        self._models: Reassembler | None = None
        self._request: Callable[[], None] | None = None  # unanswered, to be sent again
        # the type of the message that answers, with the number of the push, fetch or question
        self._awaited: type[m.Message] | tuple[type[m.Message], int] | None = None
        self._asked_at = self._sent_at = 0.0  # the request: for the first and the last time
        self._progress_at = 0.0  # of the request: something of it was sent or came in
        self._sent = 0  # messages, when that was last looked at
        self._chunks = 0  # of models, that came in
        self._chunks_there = 0  # that the server has of what this worker sends or waits for
        self._heartbeat_at = 0.0
        self._handshake: deque[m.Message] = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closes_by: float | None = None

    # Called by the compute thread.

    def hello(self, expected: dict[str, str], timeout: float) -> m.Welcome:
        """Introduce this worker and wait for the run's settings.

        Raises TransportError when no server answers within `timeout` seconds, or it refuses.
        """
        self._order(lambda: self._ask(m.Welcome, lambda: self._post(
            m.Hello(m.PROTOCOL, self.worker, expected))))
        self._thread = threading.Thread(target=self._run, name="wbsp-link", daemon=True)
        self._thread.start()  # with Hello in hand, which must come before any heartbeat
        start = time.monotonic()
        said = 2.0
        while True:
            with contextlib.suppress(TimeoutError):
                return self._await(m.Welcome, min(said - time.monotonic() + start, timeout))
            waited = time.monotonic() - start
            if waited >= timeout:
                self.close()
                raise TransportError(f"no server answered at {self.address} within {timeout:g} s; "
                                + (self._connection.unknown
                                   or "is it running there, and is the port right?"))
            self._say(f"worker {self.worker}: waiting for the server at {self.address} "
                      f"({waited:.0f} of {timeout:g} s)")
            said += 10

    def join(self, layout: Sequence[TensorSpec], initial: Callable[[], np.ndarray],
             listener: Listener, timeout: float) -> m.Joined:
        """Become a member; `initial` is asked for W_0 (float32 [size]) if the server has none."""
        self._listener = listener
        self._models = Reassembler(sum(spec.size for spec in layout), BufferPool())
        self._order(lambda: self._ask(m.Joined, lambda: self._post(m.Join(list(layout)))))
        try:
            joined = self._await(m.Joined, timeout)
            if joined.send_initial:
                vector = initial()
                self._order(lambda: self._ask(m.Joined, lambda: self._post_chunks(
                    vector, lambda offset: m.Initial(offset, vector.size))))
                joined = self._await(m.Joined, timeout)
        except TimeoutError as error:
            raise TransportError(str(error)) from None
        return joined

    def push(self, push: Push, update: np.ndarray, fetch: int) -> None:
        """Send an update (float32 [size]) at the next `wake`; it is the link's until answered.

        fetch: number of the fetch that the push carries; 0: it carries none
        """
        self._orders.append(lambda: self._ask((m.Ack, push.seq), lambda: self._post_chunks(
            update, lambda offset: m.Update(push, offset, update.size, fetch))))

    def fetch(self, number: int, carried: bool) -> None:
        """Ask for the newest version, at the next `wake`, or at once if the listener calls.

        carried: the answer to a push has said that the model comes without a further request
        """
        self._orders.append(lambda: self._ask(
            (m.Model, number), lambda: self._post(m.Fetch(number)), send=not carried))

    def query(self, number: int, steps: int, seconds: float) -> None:
        """Ask, at the next `wake`, whether to cut; the listener is told the answer."""
        self._orders.append(lambda: self._ask(
            (m.CutDecision, number), lambda: self._post(m.CutQuery(number, steps, seconds))))

    def leave(self, reason: str, finished: bool) -> None:
        report = self._listener.report() if self._listener else None
        self._order(lambda: self._ask(m.Final, lambda: self._post(
            m.Leaving(reason, finished, report))))

    def goodbye(self) -> None:
        self._order(lambda: self._post(m.Goodbye()))

    def close(self, patience: float = 1.0) -> None:
        """Send what is queued, for at most `patience` seconds, and end the thread."""
        if self._thread is not None and self._closes_by is None:
            self._closes_by = time.monotonic() + patience
            self._order(lambda: None)
            self._thread.join(patience + 2)

    def wake(self) -> None:
        """Have the thread carry out what was ordered.

        Both threads need Python's one interpreter lock, so the compute thread orders while it is
        busy, and wakes the link when it is about to leave Python for long.
        """
        if self._orders:
            with contextlib.suppress(zmq.ZMQError):  # the thread has ended: `error` says why
                self._waker.send(b"", zmq.NOBLOCK)

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self.wake()

    def _await(self, kind: type[m.Message], timeout: float) -> m.Message:
        """Wait for a handshake message, `timeout` seconds from the last progress towards it.

        Raises TimeoutError or TransportError.
        """
        start = time.monotonic()
        with self._news:
            while not (self._handshake or self.error):
                if self._interrupted():
                    raise TransportError(
                        f"interrupted while waiting for the server at {self.address}")
                left = max(start, self._progress_at) + timeout - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"the server at {self.address} sent no {kind.__name__} "
                                       f"within {timeout:g} s")
                self._news.wait(min(left, _GRAIN))
            if self.error:
                raise self.error
            message = self._handshake.popleft()
        if not isinstance(message, kind):
            raise TransportError(f"the server sent {type(message).__name__} instead of "
                                 f"{kind.__name__}")
        return message

    # The communication thread.

    def _run(self) -> None:
        try:
            self._loop()
            self._fail(TransportError("this worker has left the run"))  # for whoever goes on
        except TransportError as error:
            self._fail(error)
        except Exception as error:  # whatever it is, the compute thread must not wait for ever
            self._fail(TransportError(f"the communication thread failed: {error!r}"))
        finally:
            self._socket.disable_monitor()
            self._context.destroy(0)

    def _fail(self, error: TransportError) -> None:
        with self._news:
            self.error = error
            self._news.notify_all()
        if self._listener:
            self._listener.failed()

    def _loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakes, zmq.POLLIN)
        poller.register(self._connection.monitor, zmq.POLLIN)
        while not self._closed(time.monotonic()):
            now = time.monotonic()
            wait, reading = HEARTBEAT / 4, zmq.POLLIN
            if self._outbox and not self._outbox.blocked:
                wait = min(wait, self._outbox.delay(now))
            coming = self._inlet.delay(now)
            if coming is not None:
                wait, reading = min(wait, coming), 0
            poller.register(self._socket, reading | (zmq.POLLOUT if self._outbox.blocked else 0))
            ready = dict(poller.poll(1000 * wait))
            if self._wakes in ready:
                self._wakes.recv()
            self._obey()
            if (self._connection.monitor in ready
                    and self._connection.event(time.monotonic())):
                self._outbox.clear()  # the rest of what was cut off; it is all repeated
                if self._welcome:
                    self._post(m.Resync())
                self._ask_again(time.monotonic())
            if coming is not None or ready.get(self._socket, 0) & zmq.POLLIN:
                self._receive()
            self._outbox.flush(time.monotonic())
            self._keep_alive(time.monotonic())

    def _closed(self, now: float) -> bool:
        if self._closes_by is None:
            return False
        return (now > self._closes_by or not self._connection.made
                or not (self._outbox or self._orders))

    def _obey(self) -> None:
        while self._orders:
            self._orders.popleft()()

    def _receive(self) -> None:
        while (frames := self._inlet.receive(time.monotonic())) is not None:
            now = self._connection.heard = time.monotonic()
            try:
                self._handle(m.decode(m.FromServer, frames[0].buffer), frames, now)
            except m.WireError as error:
                raise TransportError(f"the server at {self.address} sent {error}") from None
            self._obey()  # a grant just heard may have ordered a fetch

    def _handle(self, message: m.Message, frames: list[zmq.Frame], now: float) -> None:
        match message:
            case m.Alive():
                if message.chunks != self._chunks_there:
                    self._chunks_there, self._progress_at = message.chunks, now
            case m.Refused():
                raise TransportError(f"the server refused: {message.reason}")
            case m.Welcome() | m.Joined():
                if self._request and self._awaited is type(message):  # else: asked twice
                    self._request = None
                    with self._news:
                        self._handshake.append(message)
                        self._news.notify_all()
            case m.Ack():
                if self._request and self._awaited == (m.Ack, message.seq):  # else: asked twice
                    self._request = None
                    self._listener.answered(message, now - self._asked_at)
            case m.Model():
                if len(frames) != 2:
                    raise m.WireError("a model without values")
                if self._request and self._awaited == (m.Model, message.request):
                    self._take_chunk(message, frames[1].buffer, now)
            case _:
                number = getattr(message, "number", None)
                if self._awaited in (type(message), (m.CutDecision, number)):
                    self._request = None
                self._listener.told(message)

    def _take_chunk(self, model: m.Model, data: memoryview, now: float) -> None:
        if model.offset not in (0, self._models.filled):
            return  # of a transfer that a break has cut in two; it was asked for again
        self._progress_at = now
        self._chunks += 1
        vector = self._models.add(model.offset, model.size, data)
        if vector is not None:
            self._request = None
            self._listener.fetched(model.version, vector, now - self._asked_at)

    def _ask(self, awaited: type[m.Message] | tuple[type[m.Message], int],
             request: Callable[[], None], send: bool = True) -> None:
        self._request, self._awaited = request, awaited
        self._asked_at = self._sent_at = self._progress_at = time.monotonic()
        if send:
            request()

    def _keep_alive(self, now: float) -> None:
        self._connection.check(now)
        if not self._connection.made:
            return
        on_line = 0 < self._outbox.delay(now) < math.inf or self._inlet.delay(now) is not None
        if self._outbox.sent != self._sent or on_line:
            self._sent, self._progress_at = self._outbox.sent, now
        silent = now - max(self._sent_at, self._progress_at)
        if self._request and not self._outbox and silent > RESEND:
            self._ask_again(now)
        if now >= self._heartbeat_at and self._closes_by is None and self._welcome:
            self._heartbeat_at = now + HEARTBEAT
            report = self._listener.report() if self._listener else None
            self._post(m.Heartbeat(report, self._chunks), urgent=True)

    @property
    def _welcome(self) -> bool:
        """True once the server knows this session; before, it hears nothing but Hello."""
        return self._request is None or self._awaited is not m.Welcome

    def _ask_again(self, now: float) -> None:
        """Repeat the request that may have been lost; the server counts no push twice."""
        self._sent_at = now
        if self._request:
            self._request()

    def _post(self, message: m.Message, body: memoryview | None = None,
              urgent: bool = False) -> None:
        frames = [m.encode(message)] + ([] if body is None else [body])
        self._outbox.post(*frames, now=time.monotonic(), urgent=urgent)

    def _post_chunks(self, vector: np.ndarray, header: Callable[[int], m.Message]) -> None:
        for offset, chunk in split(vector):
            self._post(header(offset), chunk)
