"""The event loop of a process that listens: it waits for messages and runs timers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from wbsp.wire.sockets import ServerSocket

POLL = 0.05  # seconds between two looks at the timers
_LOOK = 0.005  # seconds between two checks of connections, while there are strangers' connections


class Part(Protocol):
    """A part of a process that a loop serves in addition to its socket's messages."""

    def register(self, poller: zmq.Poller) -> None: ...

    def delay(self) -> float: ...

    def serve(self) -> None: ...

    def close(self) -> None: ...


class Loop:
    """Waits for a socket, its monitor and other registered sources; used by one thread."""

    def __init__(self, socket: ServerSocket, watch: Callable[[], object], look: float = _LOOK):
        """
        watch: enforces the limits of the socket's connections
        look:  seconds between two calls of `watch`, while there are strangers' connections
        """
        self._socket = socket
        self._watch = watch
        self._look = look
        self._clock = socket.on.clock
        self.poller = socket.on.network.poller()
        self.register(socket.socket)
        self.register(socket.monitor)

    def register(self, source: Any) -> None:
        """Wake up also when `source` can be read."""
        self.poller.register(source, zmq.POLLIN)

    def run(self, timers: Callable[[float], int | None], step: Callable[[], None]) -> int:
        """Call `step` again and again, and `timers` every `POLL` seconds, until it returns an exit
        code; return that."""
        due = -math.inf
        while True:
            now = self._clock.monotonic()
            if now >= due:  # not after every message: it costs more than a message
                due = now + POLL
                if (code := timers(now)) is not None:
                    return code
            step()

    def wait(self, most: float) -> dict[Any, int]:
        """Wait for `most` seconds at most; return the sources that can be read."""
        arriving = self._socket.delay
        strangers = self._socket.guard.strangers
        if strangers:
            most = min(most, self._look)
        if arriving is not None:
            self._clock.sleep(min(arriving, most))
            return {self._socket.socket: zmq.POLLIN}
        ready = dict(self.poller.poll(math.ceil(1000 * most)))
        if strangers or self._socket.monitor in ready:
            self._watch()
        return ready
