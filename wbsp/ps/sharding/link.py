"""The server's connection to one shard, and the process of one that it has started itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import zmq
from msgspec import structs

from wbsp.limits import one_line
from wbsp.process.child import ChildProcess
from wbsp.wire.addresses import endpoint, is_loopback
from wbsp.wire.intake import TOO_MUCH, Intake
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import STRANGER, Claim
from wbsp.wire.queues import SendQueue
from wbsp.wire.rate import Frames, RateLimiter
from wbsp.wire.sockets import HANDSHAKE_FAILED, NO_HANDSHAKE, ServerSocket

SILENT = 30.0  # seconds without a word after which a shard counts as lost
_BEAT = 1.0  # seconds between two signs of life, and between two requests to follow
_START = 60.0  # seconds that a process on this machine may take to come up
_END = 1.0  # seconds that its end may take after that of its connection
_BLOCKED = 0.001  # seconds until a connection that takes no more is tried again


class ShardLost(RuntimeError):
    """A shard is gone, and with it a part of what the server had decided since the checkpoint.

    standby: address of a standby that may hold a newer state than the checkpoint, if so
    later:   epoch of a later server of the run, which the shard follows now; 0: there is none
    """

    standby: str | None = None

    def __init__(self, reason: str, later: int = 0):
        super().__init__(reason)
        self.later = later


class LocalShard(ChildProcess):
    """A shard's process on this machine."""

    def __init__(self, host: str, token: bytes | None, bandwidth: float | None, key: bytes):
        """`key`: of the run's shards. Raises OSError where it does not come up."""
        super().__init__(["-m", "wbsp.ps.sharding.process"], {
            "host": host, "token": token and token.hex(), "bandwidth": bandwidth,
            "key": key.hex()})

    def port(self) -> int:
        """On which it listens, once it does. Raises OSError where it does not come up."""
        line = self.answer(_START)
        if line is None or not line.strip().isdigit():
            code = self.kill()
            raise OSError("a shard's process did not come up" + (
                f" within {_START:g} s" if line is None else f": it ended with exit code {code}"))
        return int(line)


class ShardLink:
    """Messages to and from one shard, in order; times are seconds of the monotonic clock.

    address: host and port, as workers are told: "" for a host that each has another name for
    led:     the shard follows this server
    """

    def __init__(self, server: ServerSocket, host: str, port: int, process: LocalShard | None,
                 lead: s.Lead, key: bytes):
        """`lead`: how the server introduces itself; `key`: of the run's shards."""
        self.address = ("" if process or is_loopback(host) else host, port)
        self._name = f"{host}:{port}"
        self._process = process
        self._network = server.on.network
        self.socket = server.dealer(host)
        self._monitor = self.socket.get_monitor_socket(
            Intake.events | zmq.EVENT_HANDSHAKE_SUCCEEDED | HANDSHAKE_FAILED)
        self._intake = Intake(server, self.socket, lambda: self._claim.bond is not None)
        self._lead, self._key = lead, key
        self._claim = Claim(server.on.scheduler.random, key, *([] if process else [server.contact]))
        self._queue = SendQueue(self.socket, RateLimiter(None))
        self._held_back: list[Frames] = []  # until the shard follows
        self.socket.connect(endpoint(host, port))
        self.led = False
        self._strange: str | None = None  # why no connection comes about, though someone is there
        self._denied: str | None = None  # why the process there does not follow
        self._heard = -math.inf
        self._beat_at = -math.inf
        self._beats = 0

    def __str__(self) -> str:
        return f"the shard at {self._name}"

    @property
    def why(self) -> str:
        """Why it does not follow, as far as is known, for the end of a line."""
        reason = self._strange or self._denied
        return f"; {reason}" if reason else ""

    def post(self, frames: Frames, now: float) -> None:
        """Send an encoded message after all earlier ones, once the shard follows."""
        if self.led:
            self._queue.post(*frames, now=now)
        else:
            self._held_back.append(frames)

    def receive(self, now: float) -> Iterator[tuple[m.Message, memoryview | None]]:
        """What the shard has said. Raises ShardLost."""
        for frames in self._intake.read():
            try:
                message = m.decode(s.FromShard, frames[0].buffer)
            except m.WireError as error:
                if not self.led:  # it may be anybody's process
                    self._strange = f"it sends {one_line(str(error))}"
                    continue
                raise ShardLost(f"{self} sent {error}") from None
            self._heard = now
            match message:
                case s.Challenge():
                    known = self._claim.bond is not None
                    met = self._claim.meets(message)
                    if met is False:
                        self._denied = STRANGER
                    elif met and not known:
                        self._denied = None
                        self._ask_to_follow()
                case s.Led():
                    if self._claim.bond is not None:
                        self._follows(now)
                case s.Denied() if self.led:
                    raise ShardLost(f"{self} follows no longer: {one_line(message.reason)}",
                                    message.epoch)
                case s.Denied():
                    self._denied = f"it says: {one_line(message.reason)}"
                case s.Beat():
                    pass
                case _ if self.led:
                    yield message, frames[1].buffer if len(frames) == 2 else None

    def woke(self, now: float) -> None:
        """This process has slept until `now`: silence counts from here on."""
        self._heard = max(self._heard, now)

    def keep_up(self, now: float) -> None:
        """Ask to be followed, or tell that this server lives. Raises ShardLost."""
        broken = False
        while self._monitor.poll(0):
            message = self._network.event(self._monitor)
            event = message["event"]
            self._intake.event(message)
            if event & HANDSHAKE_FAILED:
                self._strange = NO_HANDSHAKE
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._strange = None
            elif event == zmq.EVENT_DISCONNECTED:
                broken, self._denied = self.led, None
                self._claim.renew()  # the next process at this address may be another one
        if self._intake.check():
            self._strange = TOO_MUCH
        if self._process is not None:
            code = self._process.ended(_END if broken else 0.0)
            if code is not None:
                raise ShardLost(f"{self} (process {self._process.pid}) ended with exit code {code}")
        if broken:
            raise ShardLost(f"the connection to {self} is gone")
        if self.led and now - self._heard > SILENT:
            raise ShardLost(f"{self} has said nothing for {SILENT:g} s")
        if now - self._beat_at >= _BEAT:
            self._beat_at, self._beats = now, self._beats + 1
            if self.led:
                self._queue.post(m.encode(s.Beat(self._beats)), now=now)
            else:
                self._ask_to_follow()
        self._queue.flush(now)

    def delay(self) -> float:
        """Seconds until there may be something to send."""
        return _BLOCKED if self._queue.blocked else math.inf

    def settle(self) -> bool:
        """True if all that was posted has left."""
        return not (self._queue or self._held_back)

    def close(self, patience: float) -> None:
        """End the connection, `patience` seconds after the last message, and the process."""
        self._intake.close()
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(int(1000 * patience))
        if self._process is not None:
            self._process.kill()

    def _ask_to_follow(self) -> None:
        bond = self._claim.bond
        lead = structs.replace(self._lead, key=bond.hidden(self._key)) if bond else self._lead
        with contextlib.suppress(zmq.Again):
            self.socket.send(m.encode(self._claim.sealed(lead)), zmq.NOBLOCK)

    def _follows(self, now: float) -> None:
        if not self.led:
            self.led = True
            held_back, self._held_back = self._held_back, []
            for frames in held_back:
                self._queue.post(*frames, now=now)
