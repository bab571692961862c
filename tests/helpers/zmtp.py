"""Speak ZeroMQ's protocol (ZMTP 3.1) over a plain socket: a test then knows when a push has
arrived, and can send what no peer of libzmq would send.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator

from wbsp.wire.messages import codec as m

PATIENCE = 120.0  # seconds for a server to listen
_LAST = 1 << 10  # bytes of a push that are sent last: when they are sent, the rest has arrived
_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a frame


def greet(connection: socket.socket, identity: bytes) -> None:
    """Introduce a DEALER to the peer, whose READY has not arrived yet. Raise OSError if the peer
    ends the connection.
    """
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0")
                       + bytes(32))
    left = 64
    while left:
        if not (got := len(connection.recv(left))):
            raise ConnectionResetError("the peer ended the connection")
        left -= got
    ready = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", identity)
    connection.sendall(bytes([_COMMAND, len(ready)]) + ready)


class Link:
    """A worker's connection to a server or shard."""

    _buffer = memoryview(bytearray(1 << 20))  # of all of them

    def __init__(self, host: str, port: int):
        self.socket = _connected(host.replace("localhost", "127.0.0.1"), port)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(self.socket, os.urandom(16))
        self._rest = b""  # of a frame that is not whole
        self._skip = 0  # bytes of floats that are to come yet
        self._head, self._floats = b"", 0  # of a message that is not whole

    def ping(self) -> None:
        """Send a PING, as a worker's libzmq does every second; the peer answers PONG."""
        self.socket.sendall(b"\x04\x07\x04PING\0\0")

    def send(self, message: m.Message, floats: memoryview | None = None) -> float:
        """Send a message; when (monotonic seconds) the sending of its last bytes began."""
        head = m.encode(message)
        more = _MORE if floats is not None else 0
        first = struct.pack(">BQ", _LONG | more, len(head)) + head
        if floats is None:
            at = time.monotonic()
            self.socket.sendall(first)
            return at
        self.socket.sendall(first + struct.pack(">BQ", _LONG, floats.nbytes))
        self.socket.sendall(floats[:-_LAST])
        at = time.monotonic()
        self.socket.sendall(floats[-_LAST:])
        return at

    def receive(self) -> Iterator[tuple[bytes, int]]:
        """Yield the head of each message that has arrived, and the number of floats in it."""
        got = self.socket.recv_into(self._buffer)
        if not got:
            raise RuntimeError("the server has ended a connection")
        skipped = min(self._skip, got)
        self._skip -= skipped
        data = self._rest + bytes(self._buffer[skipped:got])
        if skipped and not self._skip:
            yield self._whole()
        while data:
            flags = data[0]
            start = 9 if flags & _LONG else 2
            if len(data) < start:
                break
            (length,) = struct.unpack_from(">Q" if flags & _LONG else ">B", data, 1)
            if self._head and not flags & _COMMAND:  # floats
                self._floats = length // 4
                self._skip = length - len(data[start:start + length])
                data = data[start + length:]
                if not self._skip:
                    yield self._whole()
                continue
            if len(data) < start + length:
                break
            body, data = data[start:start + length], data[start + length:]
            if not flags & _COMMAND:
                self._head = body
                if not flags & _MORE:
                    yield self._whole()
        self._rest = data

    def _whole(self) -> tuple[bytes, int]:
        head, floats = self._head, self._floats
        self._head, self._floats = b"", 0
        return head, floats


def _connected(host: str, port: int) -> socket.socket:
    """Return a connection to a server that may be starting. Raise OSError if there is no server."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
