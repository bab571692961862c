"""What is on its way from a server to its peers, sent as fast as the line and each peer take it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import zmq

from wbsp.wire.rate import RateLimiter

Frames = tuple[bytes | memoryview, ...]

_MOST = 256  # messages, beside the transfer, that may wait for a peer
_FIRST_RETRY, _LAST_RETRY = 0.001, 0.05  # seconds until a peer that takes nothing is tried again


@dataclass
class _Queue:
    """What one peer has yet to be sent."""

    identity: bytes
    messages: deque[Frames] = field(default_factory=deque)
    transfer: Iterator[Frames] | None = None
    next: Frames | None = None  # the message that goes next; it has been on the line already
    retry: float = _FIRST_RETRY
    blocked_until: float = -math.inf

    def take(self) -> Frames | None:
        """The message that goes next, if there is one."""
        if self.messages:
            return self.messages.popleft()
        frames = next(self.transfer, None) if self.transfer else None
        if frames is None:
            self.transfer = None
        return frames


class PeerQueues:
    """A queue of messages for each peer of a ROUTER socket; used by one thread.

    A peer's messages go in their order, and ahead of its transfer: a vector in chunks, which are
    made only when the socket has room for them. So a peer that reads slowly, or not at all, holds
    up nobody else and costs no memory, whatever it asks for. All queues share one line of `pace`
    and take turns on it.
    """

    def __init__(self, socket: zmq.Socket, pace: RateLimiter):
        """`socket`: mandatory routing, a high-water mark for sending."""
        self._socket, self._pace = socket, pace
        self._queues: dict[bytes, _Queue] = {}
        self._turns: deque[_Queue] = deque()
        self._on_line: _Queue | None = None  # whose `next` is on its way down the line
        self._due = 0.0  # when that message is through

    def post(self, identity: bytes, *frames: bytes | memoryview, now: float) -> bool:
        """Send the message now if possible, else later; False if too many wait for that peer."""
        queue = self._queue(identity)
        if len(queue.messages) >= _MOST:
            return False
        queue.messages.append(frames)
        self.flush(now)
        return True

    def transfer(self, identity: bytes, messages: Iterator[Frames], now: float) -> None:
        """Send these messages instead of what is left of an earlier transfer to that peer."""
        self._queue(identity).transfer = messages
        self.flush(now)

    def drop_transfer(self, identity: bytes) -> None:
        """What is left of a transfer is of no use to the peer any more."""
        if identity in self._queues:
            self._queues[identity].transfer = None

    def waiting(self, identity: bytes) -> bool:
        """True if something is yet to be sent to that peer."""
        return identity in self._queues

    def flush(self, now: float) -> None:
        """Send what may go. A message to a peer that is gone is dropped: its silence will tell."""
        while queue := self._on_line or self._put_on_line(now):
            if now < self._due:
                return
            self._on_line = None
            self._turns.append(queue)
            try:
                self._socket.send_multipart([queue.identity, *queue.next], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                queue.blocked_until = now + queue.retry
                queue.retry = min(2 * queue.retry, _LAST_RETRY)
                continue
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                queue.transfer = None
                queue.messages.clear()
            queue.next, queue.retry = None, _FIRST_RETRY

    def delay(self, now: float) -> float:
        """Seconds until `flush` can send something; infinite when there is nothing."""
        if self._on_line:
            return max(0.0, self._due - now)
        return max(0.0, min((q.blocked_until for q in self._turns), default=math.inf) - now)

    def _queue(self, identity: bytes) -> _Queue:
        queue = self._queues.get(identity)
        if queue is None:
            queue = self._queues[identity] = _Queue(identity)
            self._turns.append(queue)
        return queue

    def _put_on_line(self, now: float) -> _Queue | None:
        """The next queue in turn that has a message and is not blocked; None if there is none."""
        for _ in range(len(self._turns)):
            queue = self._turns.popleft()
            if now < queue.blocked_until:
                self._turns.append(queue)
                continue
            self._due = now
            if queue.next is None:
                queue.next = queue.take()
                if queue.next is None:  # it is empty
                    del self._queues[queue.identity]
                    continue
                self._due = self._pace.take(sum(map(len, queue.next)), now)
            self._on_line = queue
            return queue
        return None
