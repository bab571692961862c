"""A worker's socket to its server, with rate limits, queue and monitor."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import zmq

from wbsp.wire import messages as m
from wbsp.wire.chunks import split
from wbsp.wire.memory import keep_freed
from wbsp.wire.rate import RateLimitedReceiver, RateLimiter
from wbsp.wire.send_queue import SendQueue
from wbsp.wire.sockets import split_addresses, worker_socket
from wbsp.worker.connection import ConnectionMonitor


class Ready(NamedTuple):
    """Findings of a `poll`."""

    message: bool  # `receive` can return a message
    event: bool  # `read_event` can read an event of the connection
    wake: bool  # the socket `wakes` can be read


class ServerChannel:
    """Messages to and from one server; used by the communication thread.

    context:    ZeroMQ's, which `close` destroys with all its sockets
    connection: health of the connection
    """

    def __init__(self, address: str, token: bytes | None, bandwidth: float | None,
                 patience: float, say: Callable[[str], None]):
        """`address`: as in `Route`; `bandwidth`: bytes per second each way, or None.

        patience: as in `ConnectionMonitor`

        Raises ValueError for a bad address or bandwidth.
        """
        hosts = [host for host, _ in split_addresses(address)]
        keep_freed()
        self.context = zmq.Context()
        self._socket = worker_socket(self.context, hosts, os.urandom(16), token)
        self.connection = ConnectionMonitor(self._socket, address, patience, say)
        self._poller = zmq.Poller()
        self._poller.register(self.connection.monitor, zmq.POLLIN)
        self._send_queue = SendQueue(self._socket, RateLimiter(bandwidth))
        self._receiver = RateLimitedReceiver(self._socket, RateLimiter(bandwidth))

    @property
    def sent(self) -> int:
        """Number of messages sent, without the urgent ones."""
        return self._send_queue.sent

    @property
    def all_sent(self) -> bool:
        """True if no message waits to be sent."""
        return not self._send_queue

    def transferring(self, now: float) -> bool:
        """True while the rate limit delays a message on its way out or in."""
        return (0 < self._send_queue.delay(now) < math.inf
                or self._receiver.delay(now) is not None)

    def poll(self, wakes: zmq.Socket, seconds: float) -> Ready:
        """Wait, for at most `seconds`, until there is something to do or `wakes` can be read."""
        now = time.monotonic()
        arriving = self._receiver.delay(now)
        flags = zmq.POLLOUT if self._send_queue.blocked else 0
        if arriving is None:
            flags |= zmq.POLLIN
        self._poller.register(self._socket, flags)
        self._poller.register(wakes, zmq.POLLIN)
        wait = min(seconds, self._send_queue.delay(now), math.inf if arriving is None else arriving)
        found = dict(self._poller.poll(int(1000 * wait)))
        return Ready(arriving is not None or bool(found.get(self._socket, 0) & zmq.POLLIN),
                     self.connection.monitor in found, wakes in found)

    def receive(self) -> tuple[m.Message, memoryview | None] | None:
        """The next message, with its chunk if it has one; None: there is none yet.

        Raises WireError.
        """
        frames = self._receiver.receive(time.monotonic())
        if frames is None:
            return None
        self.connection.received_at = time.monotonic()
        chunk = frames[1].buffer if len(frames) == 2 else None
        return m.decode(m.FromServer, frames[0].buffer), chunk

    def read_event(self) -> bool:
        """Read an event of the connection. True: the connection is a new one.

        All messages that were on their way, and the rest of what was queued, are lost then.
        """
        renewed = self.connection.event(time.monotonic())
        if renewed:
            self._send_queue.clear()
        return renewed

    def post(self, message: m.Message, chunk: memoryview | None = None,
             urgent: bool = False) -> None:
        """Send a message now if possible, else later; an urgent one replaces an older one."""
        frames = (m.encode(message),) if chunk is None else (m.encode(message), chunk)
        self._send_queue.post(*frames, now=time.monotonic(), urgent=urgent)

    def post_chunks(self, vector: np.ndarray, header: Callable[[int], m.Message]) -> None:
        """Send a vector (float32 [size]), each chunk after the message `header`(offset)."""
        for offset, chunk in split(vector):
            self.post(header(offset), chunk)

    def flush(self) -> None:
        """Send all queued messages that the rate limit and the socket allow."""
        self._send_queue.flush(time.monotonic())

    def close(self) -> None:
        """Close the socket, and all others of the context; what was not sent is lost."""
        self._socket.disable_monitor()
        self.context.destroy(0)
