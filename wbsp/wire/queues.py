"""Queues of outgoing messages, as fast as the rate limit and each peer allow: of a server to many
peers, to one peer, and of a worker's socket, which also receives."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import zmq

from wbsp.wire.rate import Frames, Line, RateLimitedReceiver, RateLimiter

MOST_WAITING = 256  # messages that may wait for a peer, without the transfer
_FIRST_RETRY, _LAST_RETRY = 0.001, 0.05  # seconds until a blocked peer is tried again
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)  # arithmetic with enums is slow


@dataclass
class _Queue:
    """The messages to one peer that have not been sent."""

    identity: bytes
    messages: deque[Frames] = field(default_factory=deque)
    transfer: Iterator[Frames] | None = None
    unsent: Frames | None = None  # carried by the line, but not yet accepted by the socket
    retry: float = _FIRST_RETRY
    blocked_until: float = -math.inf

    def pop(self) -> tuple[Frames | None, bool]:
        """Remove and return the next message, and whether the line has carried it before; None if
        the queue is empty."""
        if self.unsent is not None:
            frames, self.unsent = self.unsent, None
            return frames, True
        if self.messages:
            return self.messages.popleft(), False
        if self.transfer is None:
            return None, False
        following = next(self.transfer, None)
        if following is None:
            self.transfer = None
        return following, False

    def send(self, messages: Iterator[Frames] | None) -> None:
        """Replace the rest of the transfer."""
        self.transfer = messages

    def was_refused(self, frames: Frames, now: float) -> None:
        """Keep what the socket does not accept, and try again later."""
        self.unsent, self.blocked_until = frames, now + self.retry
        self.retry = min(2 * self.retry, _LAST_RETRY)

    def was_taken(self) -> None:
        """Note that the socket accepts messages."""
        self.retry = _FIRST_RETRY

    def clear(self) -> None:
        """Forget all messages."""
        self.transfer = None
        self.messages.clear()


class PeerQueues:
    """A queue of messages for each peer of a ROUTER socket; used by one thread.

    A peer's messages keep their order, and go ahead of its transfer: a vector in chunks, each
    made only when the socket has room for it. So a peer that reads slowly, or not at all,
    delays no other peer and costs no memory, whatever it requests. All queues share one
    rate-limited line and take turns on it.
    """

    def __init__(self, socket: zmq.Socket[bytes], limiter: RateLimiter):
        """`socket`: a ROUTER with mandatory routing and a high-water mark for sending."""
        self._socket = socket
        self._line: Line[tuple[_Queue, Frames]] = Line(limiter)
        self._queues: dict[bytes, _Queue] = {}
        self._turns: deque[_Queue] = deque()

    def post(self, identity: bytes, *frames: bytes | memoryview, now: float) -> bool:
        """Send the message now or later; return False if too many wait for that peer."""
        queue = self._queue(identity)
        if len(queue.messages) >= MOST_WAITING:
            return False
        queue.messages.append(frames)
        self.flush(now)
        return True

    def transfer(self, identity: bytes, messages: Iterator[Frames], now: float) -> None:
        """Send these messages in place of the rest of an earlier transfer to that peer."""
        self._queue(identity).send(messages)
        self.flush(now)

    def drop_transfer(self, identity: bytes) -> None:
        """Drop the rest of a transfer that the peer no longer needs."""
        if identity in self._queues:
            self._queues[identity].send(None)

    def waiting(self, identity: bytes) -> bool:
        """Return whether a message to that peer has not been sent."""
        return identity in self._queues

    def flush(self, now: float) -> None:
        """Send all messages that the line has carried, until no socket accepts more.

        A message to a peer without a connection is dropped: the peer's silence will be noticed.
        """
        while self._line.message is not None or self._put_next_on_line(now):
            carried = self._line.take(now)
            if carried is None:
                return
            queue, frames = carried
            self._turns.append(queue)
            try:
                self._socket.send_multipart([queue.identity, *frames], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                queue.was_refused(frames, now)
                continue
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                queue.clear()
            if queue.retry != _FIRST_RETRY:
                queue.was_taken()

    def delay(self, now: float) -> float:
        """Return the seconds until `flush` can send a message; infinite if all queues are empty."""
        delay = self._line.delay(now)
        if delay is None:
            delay = min((q.blocked_until for q in self._turns), default=math.inf) - now
        return max(0.0, delay)

    def _queue(self, identity: bytes) -> _Queue:
        queue = self._queues.get(identity)
        if queue is None:
            queue = self._queues[identity] = _Queue(identity)
            self._turns.append(queue)
        return queue

    def _put_next_on_line(self, now: float) -> bool:
        """Put the next message on the line, of the first queue in turn that is neither empty nor
        blocked; return False if there is no such queue."""
        for _ in range(len(self._turns)):
            queue = self._turns.popleft()
            if now < queue.blocked_until:
                self._turns.append(queue)
                continue
            frames, again = queue.pop()
            if frames is None:
                del self._queues[queue.identity]
                continue
            self._line.put((queue, frames), 0 if again else sum(map(len, frames)), now)
            return True
        return False


class SendQueue:
    """First-in, first-out queue of messages to a server; used by one thread.

    One urgent message, the newest, goes ahead of all that wait.
    """

    def __init__(self, socket: Any, limiter: RateLimiter):
        """`socket`: of ZeroMQ, or a `wire.shm.link.Link`."""
        self._socket = socket
        self._line: Line[Frames] = Line(limiter)
        self._waiting: deque[Frames] = deque()
        self._urgent: Frames | None = None  # waits, too; goes first
        self._urgent_on_line = False
        self.blocked = False  # the socket accepts no message at the moment
        self.sent = 0  # messages, without the urgent ones

    def __len__(self) -> int:
        """Return the number of messages that have not been sent."""
        return len(self._waiting) + (self._urgent is not None) + (
            self._line.message is not None)

    def post(self, *frames: bytes | memoryview, now: float, urgent: bool = False) -> None:
        """Send the message now or later; an urgent one replaces an older urgent one."""
        if urgent:
            self._urgent = frames
        else:
            self._waiting.append(frames)
        self.flush(now)

    def clear(self) -> None:
        """Forget all messages that have not been sent."""
        self._waiting.clear()
        self._urgent = None
        self._line.clear()
        self.blocked = False

    def flush(self, now: float) -> None:
        """Send all messages that the line has carried, until the socket accepts no more."""
        self.blocked = False
        while self._line.message is not None or self._waiting or self._urgent is not None:
            if self._line.message is None:
                self._put_next_on_line(now)
            frames = self._line.take(now)
            if frames is None:
                return
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._line.put(frames, 0, now)
                self.blocked = True
                return
            self.sent += not self._urgent_on_line

    def delay(self, now: float) -> float:
        """Return the seconds until `flush` can send a message; infinite if the queue is empty, or
        blocked until the socket can be written to."""
        if self.blocked or self._line.message is None:
            return math.inf
        return self._line.delay(now) or 0.0

    def _put_next_on_line(self, now: float) -> None:
        """Put the next of the waiting messages on the line."""
        self._urgent_on_line = self._urgent is not None
        if self._urgent is not None:
            frames, self._urgent = self._urgent, None
        else:
            frames = self._waiting.popleft()
        self._line.put(frames, sum(map(len, frames)), now)


class QueuedSocket(SendQueue):
    """A queue of messages to one peer, and the messages from it; used by one thread.

    Attributes:
        polled: what a poller waits for.
    """

    def __init__(self, socket: Any, upstream: RateLimiter, downstream: RateLimiter,
                 polled: int | None = None):
        """`socket`: see `SendQueue`; `polled`: its file descriptor, if a poller does not accept the
        socket itself."""
        super().__init__(socket, upstream)
        self.polled: Any = socket if polled is None else polled
        self._receiver = RateLimitedReceiver(socket, downstream)

    def transferring(self, now: float) -> bool:
        """Return whether the rate limit delays a message, outgoing or incoming."""
        return 0 < self.delay(now) < math.inf or self._receiver.delay(now) is not None

    def register(self, poller: zmq.Poller, now: float) -> float:
        """Have `poller` wake up when there is work; return the seconds until there is."""
        flags, delay = _OUT if self.blocked else 0, self.delay(now)
        if self._receiver.message is None:
            flags |= _IN
        else:
            delay = min(delay, self._receiver.delay(now) or 0.0)
        poller.register(self.polled, flags)
        return delay

    def readable(self, found: dict[Any, int]) -> bool:
        """Return whether `receive` can return a message; `found`: events of the poller."""
        return self._receiver.message is not None or bool(found.get(self.polled, 0) & _IN)

    def receive(self, now: float) -> list[zmq.Frame] | None:
        """Return the next message's frames, or None if no message waits."""
        return self._receiver.receive(now)
