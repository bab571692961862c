"""A TCP proxy that cuts connections at given bytes or texts, so that a fault can be repeated."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy(contextlib.AbstractContextManager):
    """Forward connections to localhost:`port` and back.

    Attributes:
        cuts: (direction "up" or "down", where). The connection is cut after `where` bytes in this
            direction, or before the text `where`; later data are lost. Each cut waits for the one
            before it.
    """

    def __init__(self, port: int, cuts: list[tuple[str, int | bytes]] | None = None):
        self._target, self._cuts = port, list(cuts or [])
        self._passed = {"up": 0, "down": 0}
        self.connections = 0
        self.closed = threading.Event()  # set: no connection gets through
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def cuts_left(self) -> int:
        return len(self._cuts)

    def cut(self) -> None:
        """Cut all connections."""
        with self._lock:
            for pair in self._pairs:
                _close(*pair)
            self._pairs.clear()

    def __exit__(self, *_):
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.closed.is_set():
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # a process without a connection may reconnect
                near.close()
                continue
            with self._lock:
                self._pairs.add((near, far))
                self.connections += 1
            for way, source, sink in (("up", near, far), ("down", far, near)):
                threading.Thread(target=self._forward, args=(way, source, sink, (near, far)),
                                 daemon=True).start()

    def _forward(self, way: str, source: socket.socket, sink: socket.socket, pair) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                allowed = self._before_cut(way, data)
                sink.sendall(data[:allowed])
                if allowed is not None:
                    break
        _close(*pair)

    def _before_cut(self, way: str, data: bytes) -> int | None:
        """Return how many bytes of `data` precede a cut; None if there is no cut in it."""
        with self._lock:
            passed = self._passed[way]
            self._passed[way] += len(data)
            if not self._cuts or self._cuts[0][0] != way:
                return None
            where = self._cuts[0][1]
            allowed = data.find(where) if isinstance(where, bytes) else where - passed
            if not 0 <= allowed < len(data):
                return None
            self._cuts.pop(0)
            return allowed


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
