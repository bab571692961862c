"""The event loop of a process that listens: it waits for what comes, and looks at the time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from wbsp.wire.sockets import ServerSocket

POLL = 0.05  # seconds between two looks at the timers
_LOOK = 0.005  # the same at connections, while there are some that no member speaks through


class Part(Protocol):
    """What a loop serves beside the messages of its socket."""

    def register(self, poller: zmq.Poller) -> None: ...

    def delay(self) -> float: ...

    def serve(self) -> None: ...

    def close(self) -> None: ...


class Loop:
    """Waits for a socket, its monitor, and what else is registered; used by one thread."""

    def __init__(self, socket: ServerSocket, watch: Callable[[], object], look: float = _LOOK):
        """
        watch: holds the socket's connections to their limits
        look:  seconds between two of these, while there are some that no member speaks through
        """
        self._socket = socket
        self._watch = watch
        self._look = look
        self._clock = socket.on.clock
        self.poller = socket.on.network.poller()
        self.register(socket.socket)
        self.register(socket.monitor)

    def register(self, source: Any) -> None:
        """Wake up when that can be read, too."""
        self.poller.register(source, zmq.POLLIN)

    def run(self, timers: Callable[[float], int | None], step: Callable[[], None]) -> int:
        """Take one step after another, until `timers`, which looks at the time every so many
        seconds, has an exit code."""
        due = -math.inf
        while True:
            now = self._clock.monotonic()
            if now >= due:  # not after every message: it costs more than one
                due = now + POLL
                if (code := timers(now)) is not None:
                    return code
            step()

    def wait(self, most: float) -> dict[Any, int]:
        """What can be read, in `most` seconds at the latest."""
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
