"""One of a worker's sockets, with a queue and rate limits for both directions."""

from __future__ import annotations

import math
from typing import Any

import zmq

from wbsp.process.host import HOST, Host
from wbsp.wire.rate import RateLimitedReceiver, RateLimiter
from wbsp.wire.send_queue import SendQueue
from wbsp.wire.shm.link import Link

_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)  # arithmetic with enums takes its time


class Duplex:
    """Messages to and from one peer; used by the communication thread.

    queue: of messages that have not been sent
    """

    def __init__(self, socket: zmq.Socket | Link, upstream: RateLimiter, downstream: RateLimiter,
                 on: Host = HOST):
        self._socket, self._clock = socket, on.clock
        # by which a poller names it
        self._polled = socket.fileno() if isinstance(socket, Link) else socket
        self.queue = SendQueue(socket, upstream)
        self._receiver = RateLimitedReceiver(socket, downstream)

    def transferring(self, now: float) -> bool:
        """True while the rate limit delays a message on its way out or in."""
        return 0 < self.queue.delay(now) < math.inf or self._receiver.delay(now) is not None

    def register(self, poller: zmq.Poller, now: float) -> float:
        """Have `poller` wake up when there is something to do; seconds after which there is."""
        arriving = self._receiver.delay(now)
        flags = _OUT if self.queue.blocked else 0
        if arriving is None:
            flags |= _IN
        poller.register(self._polled, flags)
        return min(self.queue.delay(now), math.inf if arriving is None else arriving)

    def readable(self, found: dict[Any, int], now: float) -> bool:
        """True if `receive` can return a message; `found`: of the poller."""
        arriving = self._receiver.delay(now) is not None
        return arriving or bool(found.get(self._polled, 0) & _IN)

    def receive(self) -> list[zmq.Frame] | None:
        """The next message's frames; None: there is none yet."""
        return self._receiver.receive(self._clock.monotonic())

    def post(self, *frames: bytes | memoryview, urgent: bool = False) -> None:
        """Send a message now if possible, else later; an urgent one replaces an older one."""
        self.queue.post(*frames, now=self._clock.monotonic(), urgent=urgent)

    def flush(self) -> None:
        """Send all queued messages that the rate limit and the socket allow."""
        self.queue.flush(self._clock.monotonic())
