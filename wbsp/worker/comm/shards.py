"""A worker's connections to the shards of its server: updates go there, and versions come back.

A shard takes nothing from a worker that has not introduced itself over the same connection, and
answers the introduction once its server has told it of the worker; each proves to the other that it
knows the secret of the two. Until all have answered, nothing that needs them is sent; what was
under way when a connection broke is then repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import zmq

from wbsp import timeouts
from wbsp.process.host import HOST, Host
from wbsp.process.throttle import Throttle
from wbsp.tensors.ops import bounds
from wbsp.wire.addresses import endpoint
from wbsp.wire.assembly import split
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import Claim, attachment
from wbsp.wire.queues import Duplex
from wbsp.wire.rate import RateLimiter
from wbsp.wire.sockets import worker_socket
from wbsp.worker.comm.connection import TransportError

_NOTICE = 10.0  # seconds between two lines about a shard that is out of reach


class _Shard:
    """The connection to one shard; times are seconds of the monotonic clock."""

    def __init__(self, context: zmq.Context, host: str, port: int, token: bytes | None,
                 limiters: tuple[RateLimiter, RateLimiter], key: bytes, on: Host):
        """`key`: of the attachment, by which both prove who they are."""
        self.name, self._network = f"{host}:{port}", on.network
        self.claim = Claim(on.scheduler.random, key)
        self.strange = False  # the process there has not proven that it is the shard
        self.socket = worker_socket(context, [host], on.scheduler.random(16), token)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED
                                                      | zmq.EVENT_DISCONNECTED)
        self.duplex = Duplex(self.socket, *limiters, on)
        self.connected = self.ready = False
        self.presented_at = 0.0
        self.where = endpoint(host, port)
        self.socket.connect(self.where)

    def read_events(self) -> bool:
        """Read what the monitor says; True: there is a new connection."""
        renewed = False
        while self.monitor.poll(0):
            event = self._network.event(self.monitor)["event"]
            self.connected = renewed = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self.ready = self.strange = False
            self.claim.renew()
            self.duplex.queue.clear()
        return renewed

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


class Slices:
    """Slices of updates to all shards, and chunks of versions from them.

    ready: all shards know this worker
    """

    def __init__(self, context: zmq.Context, group: m.ShardGroup, here: str, token: bytes | None,
                 limiters: tuple[RateLimiter, RateLimiter], patience: float,
                 say: Callable[[str], None], on: Host = HOST):
        """`here`: the host at which the server was reached.

        limiters: of what goes out, and of what comes in
        patience: seconds for which to try to reach a shard
        """
        self.group, self._patience, self._say, self._on = group, patience, say, on
        self._name, key = attachment(group.secret)
        self._shards = [_Shard(context, host or here, port, token, limiters, key, on)
                        for host, port in group.addresses]
        self.where = [shard.where for shard in self._shards]  # endpoints
        self.ready = False
        self._unready_since = self._on.clock.monotonic()
        self._notice = Throttle(_NOTICE, self._unready_since + _NOTICE)

    @property
    def sent(self) -> int:
        """Number of messages sent."""
        return sum(shard.duplex.queue.sent for shard in self._shards)

    @property
    def all_sent(self) -> bool:
        """True if no message waits to be sent."""
        return not any(shard.duplex.queue for shard in self._shards)

    def transferring(self, now: float) -> bool:
        """True while the rate limit delays a message on its way out or in."""
        return any(shard.duplex.transferring(now) for shard in self._shards)

    def register(self, poller: zmq.Poller, now: float) -> float:
        """Have `poller` wake up when there is something to do; seconds after which there is."""
        for shard in self._shards:
            poller.register(shard.monitor, zmq.POLLIN)
        return min(shard.duplex.register(poller, now) for shard in self._shards)

    def readable(self, found: dict[Any, int], now: float) -> bool:
        """Read what monitors say; True if `receive` can return a message; `found`: of the poller.
        """
        for shard in self._shards:
            if shard.monitor in found:
                self._unready(now)
                if shard.read_events():
                    self._present(shard, now)
        return any([shard.duplex.readable(found, now) for shard in self._shards])

    def receive(self) -> tuple[m.Model, memoryview] | None:
        """The next chunk of a version; None: there is none yet. Raises WireError."""
        for shard in self._shards:
            while (frames := shard.duplex.receive()) is not None:
                message = m.decode(s.FromShard, frames[0].buffer)
                if isinstance(message, s.Challenge):
                    self._meet(shard, message)
                elif shard.claim.bond is None:
                    continue  # any process may say it
                elif (isinstance(message, m.Model) and message.place is None
                        and len(frames) == 2):
                    return message, frames[1].buffer
                elif isinstance(message, s.Ready) and message.name == self._name:
                    if shard.ready:  # something came too early for it: all is repeated
                        self._unready(self._on.clock.monotonic())
                    shard.ready = True
        return None

    def woke(self, seconds: float) -> None:
        """This process has slept for so long: it could not have reached a shard meanwhile."""
        self._unready_since += seconds

    def check(self, now: float, alone: bool) -> bool:
        """True if all shards know this worker, and did not at the last look.

        alone: the server is lost, too, and the next one may have other shards

        Raises TransportError when one is out of reach for too long.
        """
        if self.ready:
            return False
        self.ready = all(shard.ready for shard in self._shards)
        if self.ready:
            return True
        if alone:
            self._unready_since = now
            self._notice.rest(now)
            return False
        missing = next(shard for shard in self._shards if not shard.ready)
        waited = now - self._unready_since
        if waited > self._patience:
            raise TransportError(f"the shard at {missing.name} is out of reach for "
                                 f"{self._patience:g} s, and its server is not")
        if self._notice.due(now):
            self._say((f"the process at {missing.name} has not proven that it is a shard of this "
                       "worker's run" if missing.strange else
                       f"no connection to the shard at {missing.name}") + "; trying for another "
                      f"{self._patience - waited:.0f} s")
        for shard in self._shards:
            if (shard.connected and not shard.ready
                    and now - shard.presented_at > timeouts.PRESENT_AGAIN):
                self._present(shard, now)
        return False

    def post(self, vector: np.ndarray, seq: int, again: bool,
             parts: Sequence[np.ndarray] = ()) -> None:
        """Send a vector, float32 [size of the model], to each shard its slice; see `Slice`.

        parts: the slices, encoded, and `vector` is all of them
        """
        ends = bounds(vector.size, len(self._shards))
        slices = parts or [vector[start:stop] for start, stop in zip(ends, ends[1:], strict=False)]
        for shard, one in zip(self._shards, slices, strict=True):
            for offset, chunk in split(one):
                header = s.Slice(self._name, seq, again, offset)
                shard.duplex.post(m.encode(header), chunk)

    def flush(self) -> None:
        """Send all queued messages that the rate limits and the sockets allow."""
        for shard in self._shards:
            shard.duplex.flush()

    def close(self) -> None:
        """Forget all that was not sent."""
        for shard in self._shards:
            shard.close()

    def _unready(self, now: float) -> None:
        if self.ready:
            self.ready, self._unready_since = False, now
            self._notice.rest(now)

    def _present(self, shard: _Shard, now: float) -> None:
        shard.presented_at = now
        shard.duplex.post(m.encode(shard.claim.sealed(s.Present(self._name))))

    def _meet(self, shard: _Shard, challenge: s.Challenge) -> None:
        """The process there asks for a proof, and gives its own."""
        met = shard.claim.meets(challenge)
        if met is not None:
            shard.strange = not met
        if met:
            self._present(shard, self._on.clock.monotonic())
