"""A worker's connections to the shards of its server, for updates and versions.

`wire.client.Shards` decides when each is ready.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import zmq

from wbsp.process.host import Host
from wbsp.tensors.ops import bounds
from wbsp.wire.addresses import endpoint
from wbsp.wire.assembly import split
from wbsp.wire.link import Link
from wbsp.wire.liveness import Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import attachment
from wbsp.wire.queues import QueuedSocket
from wbsp.wire.rate import RateLimiter
from wbsp.wire.sockets import worker_socket
from wbsp.worker.comm.data_plane import DataPlane, Received


class _Shard(QueuedSocket):
    """The connection to one shard."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], number: int, host: str, port: int,
                 token: bytes | None, limiters: tuple[RateLimiter, RateLimiter], on: Host):
        self.number, self._on = number, on
        self.link = Link(worker_socket(context, [host], on.scheduler.random(16), token), token,
                         on.network, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        super().__init__(self.link.socket, *limiters)
        self.where = endpoint(host, port)
        self.link.socket.connect(self.where)

    def send(self, message: m.Message, *chunk: memoryview) -> None:
        """Send a message now if possible, else later."""
        self.post(m.encode(message), *chunk, now=self._on.clock.monotonic())

    def connected(self) -> bool:
        """Read the monitor's events; return whether the connection is a new one, or broken."""
        connected = False
        while (event := self.link.event()) is not None:
            connected = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self.clear()
        return connected


class ShardPlane(DataPlane):
    """Slices of updates are sent to all shards, which send chunks of versions.

    Heads of updates and all other messages are sent to the server.
    """

    def __init__(self, server: QueuedSocket, liveness: Liveness,
                 context: zmq.Context[zmq.Socket[bytes]], group: m.ShardGroup, here: str,
                 token: bytes | None, limiters: tuple[RateLimiter, RateLimiter], on: Host):
        """Connect.

        Args:
            server: the socket to the server.
            liveness: of the server.
            here: the host at which the server was reached.
            limiters: rate limits of outgoing and incoming data.
        """
        super().__init__(server, liveness, on)
        self.group: m.ShardGroup = group
        self._name, _ = attachment(group.secret)
        self.lines: Sequence[_Shard] = [
            _Shard(context, number, host or here, port, token, limiters, on)
            for number, (host, port) in enumerate(group.addresses)]
        self.monitors = [shard.link.monitor for shard in self.lines]
        self.where = [shard.where for shard in self.lines]

    def put(self, vector: np.ndarray, header: Callable[[int], m.Update | m.Kept | m.Initial],
            parts: Sequence[np.ndarray] = ()) -> None:
        head = header(0)
        assert not isinstance(head, m.Initial), "a server with shards has W_0"
        self.post(head)
        again = isinstance(head, m.Kept)
        seq = head.work.last if isinstance(head, m.Kept) else head.push.seq
        ends = bounds(vector.size, len(self.lines))
        slices = parts or [vector[start:stop] for start, stop in itertools.pairwise(ends)]
        for shard, one in zip(self.lines, slices, strict=True):
            for offset, chunk in split(one):
                shard.send(s.Slice(self._name, seq, again, offset, one.size), chunk)

    def _read(self, line: QueuedSocket, frames: Sequence[zmq.Frame]) -> Received:
        if not isinstance(line, _Shard):
            return super()._read(line, frames)
        return (m.decode(s.FromShard, frames[0].buffer),
                frames[1].buffer if len(frames) == 2 else None, line.number)

    def changes(self, found: dict[Any, int]) -> Sequence[tuple[int, bool]]:
        return [(shard.number, shard.connected()) for shard in self.lines
                if shard.link.monitor in found]

    def introduce(self, shard: int, message: m.Message) -> None:
        self.lines[shard].send(message)

    def close(self) -> None:
        for shard in self.lines:
            shard.link.close()
