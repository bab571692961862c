"""Connect peers to a server that send any message a test needs, valid or not."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time

import zmq
from integer_replica import IntegerReplica
from zmtp import greet

from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Claim, ticket

PATIENCE = 30.0  # seconds; only there so that nothing hangs for ever


class Peer(contextlib.AbstractContextManager):
    """A ZeroMQ peer of the server that sends a test's messages."""

    def __init__(self, address: str):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(f"tcp://{address.replace('localhost', '127.0.0.1')}")

    def __exit__(self, *_):
        self._context.destroy(0)

    def send(self, *frames: bytes | m.Message) -> None:
        self._socket.send_multipart(
            [m.encode(frame) if isinstance(frame, m.Message) else frame for frame in frames])

    def hears(self, *kinds: type[m.Message]) -> m.Message:
        """Wait for a message of one of these kinds; skip others."""
        end, others = time.monotonic() + PATIENCE, []
        while self._socket.poll(max(0, int(1000 * (end - time.monotonic())))):
            message = m.decode(m.FromServer, self._socket.recv_multipart()[0])
            if isinstance(message, kinds):
                return message
            others.append(type(message).__name__)
        raise AssertionError(f"the server sent none of {kinds}, but {others}")

    def is_answered(self, question: m.Message, answer: type[m.Message]) -> bool:
        """Send a request; return whether an answer arrives within a second. It does not if the
        server has cut the connection, with all messages in transit.
        """
        self.send(question)
        while self._socket.poll(1000):
            if isinstance(m.decode(m.FromServer, self._socket.recv_multipart()[0]), answer):
                return True
        return False

    def joins(self, worker: int) -> m.Joined:
        self.send(m.Hello(m.PROTOCOL, worker, {}))
        self.hears(m.Welcome)
        self.send(m.Join(IntegerReplica(worker).layout))
        return self.hears(m.Joined)

    def reattaches(self, request: m.Reattach, secret: bytes) -> None:
        """Send a message as a worker that has its ticket of the run with this secret."""
        key = ticket(secret, request.worker, request.owner, request.epoch)
        claim = Claim(os.urandom, key)
        self.send(claim.sealed(request))
        assert claim.meets(self.hears(m.Challenge))
        self.send(claim.sealed(request))

    def waits_until_handled(self) -> None:
        """Wait until the server has handled all that was sent before."""
        self.send(m.Heartbeat(None))
        self.hears(m.Alive)


class RawPeer(contextlib.AbstractContextManager):
    """A ZMTP connection over a plain socket, after its handshake."""

    def __init__(self, port, identity=b""):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(10)
        greet(self.socket, identity)
        self.socket.recv(4096)  # READY

    def __exit__(self, *_):
        self.socket.close()

    def part(self, size):
        """Send one part of a message of several parts."""
        self.socket.sendall(b"\x03" + struct.pack(">Q", size) + bytes(size))
