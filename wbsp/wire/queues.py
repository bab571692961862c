"""A server's outgoing messages, sent as fast as the rate limit and each peer allow."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import zmq

from wbsp.wire.rate import Frames, Line, RateLimiter

MOST_WAITING = 256  # messages, beside the transfer, that may wait for a peer
_FIRST_RETRY, _LAST_RETRY = 0.001, 0.05  # seconds until a blocked peer is tried again


@dataclass
class _Queue:
    """The messages to one peer that have not been sent."""

    identity: bytes
    messages: deque[Frames] = field(default_factory=deque)
    transfer: Iterator[Frames] | None = None
    unsent: Frames | None = None  # carried by the line, but not accepted by the socket
    retry: float = _FIRST_RETRY
    blocked_until: float = -math.inf

    def pop(self) -> Frames | None:
        """The message that is next; None if the queue is empty."""
        if self.messages:
            return self.messages.popleft()
        frames = next(self.transfer, None) if self.transfer else None
        if frames is None:
            self.transfer = None
        return frames

    def clear(self) -> None:
        """Forget all messages."""
        self.transfer = None
        self.messages.clear()


class PeerQueues:
    """A queue of messages for each peer of a ROUTER socket; used by one thread.

    A peer's messages keep their order, and go ahead of its transfer: a vector in chunks, which are
    made only when the socket has room for them. So a peer that reads slowly, or not at all, delays
    no other peer and costs no memory, whatever it requests. All queues share one rate-limited line
    and take turns on it.
    """

    def __init__(self, socket: zmq.Socket, limiter: RateLimiter):
        """`socket`: a ROUTER with mandatory routing and a high-water mark for sending."""
        self._socket = socket
        self._line: Line[tuple[_Queue, Frames]] = Line(limiter)
        self._queues: dict[bytes, _Queue] = {}
        self._turns: deque[_Queue] = deque()

    def post(self, identity: bytes, *frames: bytes | memoryview, now: float) -> bool:
        """Send the message now if possible, else later; False if too many wait for that peer."""
        queue = self._queue(identity)
        if len(queue.messages) >= MOST_WAITING:
            return False
        queue.messages.append(frames)
        self.flush(now)
        return True

    def transfer(self, identity: bytes, messages: Iterator[Frames], now: float) -> None:
        """Send these messages instead of the rest of an earlier transfer to that peer."""
        self._queue(identity).transfer = messages
        self.flush(now)

    def drop_transfer(self, identity: bytes) -> None:
        """Forget the rest of a transfer, which is of no use to the peer any more."""
        if identity in self._queues:
            self._queues[identity].transfer = None

    def waiting(self, identity: bytes) -> bool:
        """True if a message to that peer has not been sent."""
        return identity in self._queues

    def flush(self, now: float) -> None:
        """Send all messages that the line has carried, until no socket accepts more.

        A message to a peer that is gone is dropped: the peer's silence will be noticed.
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
                queue.unsent = frames
                queue.blocked_until = now + queue.retry
                queue.retry = min(2 * queue.retry, _LAST_RETRY)
                continue
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                queue.clear()
            queue.retry = _FIRST_RETRY

    def delay(self, now: float) -> float:
        """Seconds until `flush` can send a message; infinite when all queues are empty."""
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
        """Put the next message of the first queue in turn that is neither empty nor blocked on the
        line; False if there is no such queue."""
        for _ in range(len(self._turns)):
            queue = self._turns.popleft()
            if now < queue.blocked_until:
                self._turns.append(queue)
                continue
            unsent, queue.unsent = queue.unsent, None
            frames = unsent or queue.pop()
            if frames is None:
                del self._queues[queue.identity]
                continue
            self._line.put((queue, frames), 0 if unsent else sum(map(len, frames)), now)
            return True
        return False
