"""A worker's connections to the shards of its server, for updates and versions.

A shard accepts messages only from a worker that has introduced itself over the same connection, and
answers the introduction once its server has announced the worker; each proves to the other that it
knows their secret. Until all shards have answered, messages that need them are not sent; those in
flight when a connection broke are then repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import zmq

from wbsp import timeouts
from wbsp.process.host import Host
from wbsp.process.throttle import Throttle
from wbsp.tensors.ops import bounds
from wbsp.wire.addresses import endpoint
from wbsp.wire.assembly import split
from wbsp.wire.liveness import Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import Claim, attachment
from wbsp.wire.queues import QueuedSocket
from wbsp.wire.rate import RateLimiter
from wbsp.wire.sockets import worker_socket
from wbsp.worker.comm.data_plane import DataPlane, Received
from wbsp.worker.errors import TransportError

_NOTICE = 10.0  # seconds between two lines about an unreachable shard


class _Shard(QueuedSocket):
    """The connection to one shard; times are seconds of the monotonic clock."""

    def __init__(self, context: zmq.Context, host: str, port: int, token: bytes | None,
                 limiters: tuple[RateLimiter, RateLimiter], key: bytes, on: Host):
        """Connect; `key`: of the attachment, with which both prove their identities."""
        self.name, self._on = f"{host}:{port}", on
        self.claim = Claim(on.scheduler.random, key)
        self.strange = False  # the process there has not proven that it is the shard
        self.socket = worker_socket(context, [host], on.scheduler.random(16), token)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED
                                                      | zmq.EVENT_DISCONNECTED)
        super().__init__(self.socket, *limiters)
        self.connected = self.known = False  # it knows this worker
        self.presented_at = 0.0
        self.where = endpoint(host, port)
        self.socket.connect(self.where)

    def send(self, message: s.Slice | s.Present, *chunk: memoryview) -> None:
        """Send a message now if possible, else later."""
        self.post(m.encode(message), *chunk, now=self._on.clock.monotonic())

    def renewed(self) -> bool:
        """Read the monitor's events; return whether the connection is a new one."""
        renewed = False
        while self.monitor.poll(0):
            event = self._on.network.event(self.monitor)["event"]
            self.connected = renewed = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self.known = self.strange = False
            self.claim.renew()
            self.clear()
        return renewed

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


class ShardPlane(DataPlane):
    """Slices of updates are sent to all shards, which send chunks of versions.

    Heads of updates and all other messages are sent to the server.

    Attributes:
        ready: all shards know this worker.
    """

    ready = False

    def __init__(self, server: QueuedSocket, liveness: Liveness, context: zmq.Context,
                 group: m.ShardGroup, here: str, token: bytes | None,
                 limiters: tuple[RateLimiter, RateLimiter], patience: float,
                 say: Callable[[str], None], on: Host):
        """Connect.

        Args:
            server: the socket to the server.
            liveness: of the server.
            here: the host at which the server was reached.
            limiters: rate limits of outgoing and incoming data.
            patience: seconds for which to try to reach a shard.
        """
        super().__init__(server, liveness, on)
        self.group: m.ShardGroup = group
        self._patience, self._say = patience, say
        self._name, key = attachment(group.secret)
        self.lines: Sequence[_Shard] = [
            _Shard(context, host or here, port, token, limiters, key, on)
            for host, port in group.addresses]
        self.monitors = [shard.monitor for shard in self.lines]
        self.where = [shard.where for shard in self.lines]
        self._unready_since = on.clock.monotonic()
        self._notice = Throttle(_NOTICE, self._unready_since + _NOTICE)

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

    def _read(self, line: QueuedSocket, frames: Sequence[zmq.Frame]) -> Received | None:
        if not isinstance(line, _Shard):
            return super()._read(line, frames)
        message = m.decode(s.FromShard, frames[0].buffer)
        if isinstance(message, s.Challenge):
            self._meet(line, message)
        elif line.claim.bond is None:
            return None  # any process may send it
        elif isinstance(message, m.Model) and message.place is None and len(frames) == 2:
            return message, frames[1].buffer
        elif isinstance(message, s.Ready) and message.name == self._name:
            if line.known:  # a slice arrived too early there: all are repeated
                self._unready(self._on.clock.monotonic())
            line.known = True
        return None

    def events(self, found: dict[Any, int], now: float) -> None:
        for shard in self.lines:
            if shard.monitor in found:
                self._unready(now)
                if shard.renewed():
                    self._present(shard, now)

    def check(self, now: float, alone: bool) -> bool:
        if self.ready:
            return False
        self.ready = all(shard.known for shard in self.lines)
        if self.ready:
            return True
        if alone:
            self._unready_since = now
            self._notice.rest(now)
            return False
        missing = next(shard for shard in self.lines if not shard.known)
        waited = now - self._unready_since
        if waited > self._patience:
            raise TransportError(f"the shard at {missing.name} is unreachable for "
                                 f"{self._patience:g} s, but its server is connected")
        if self._notice.due(now):
            self._say((f"the process at {missing.name} has not proven that it is a shard of this "
                       "worker's run" if missing.strange else
                       f"no connection to the shard at {missing.name}") + "; trying for another "
                      f"{self._patience - waited:.0f} s")
        for shard in self.lines:
            if (shard.connected and not shard.known
                    and now - shard.presented_at > timeouts.PRESENT_AGAIN):
                self._present(shard, now)
        return False

    def woke(self, seconds: float) -> None:
        self._unready_since += seconds  # no shard could be reached meanwhile

    def close(self) -> None:
        for shard in self.lines:
            shard.close()

    def _unready(self, now: float) -> None:
        if self.ready:
            self.ready, self._unready_since = False, now
            self._notice.rest(now)

    def _present(self, shard: _Shard, now: float) -> None:
        shard.presented_at = now
        shard.send(shard.claim.sealed(s.Present(self._name)))

    def _meet(self, shard: _Shard, challenge: s.Challenge) -> None:
        """Answer a challenge of the process there, which sends its own proof."""
        met = shard.claim.meets(challenge)
        if met is not None:
            shard.strange = not met
        if met:
            self._present(shard, self._on.clock.monotonic())
