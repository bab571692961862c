"""The server's shards: the server decides, and the shards keep the floats.

Each record of the engine is sent to all shards, in order, and so are all messages about the floats:
the receiver of a version, a worker's valid attachment, requests for a whole version. The server and
its shards form one failure domain: see `docs/explanation/fault-tolerance.md`.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence

import zmq
from msgspec import structs

from wbsp import timeouts
from wbsp.core.decisions import Accepted, Committed, Record, Rejected, Resent
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.core.store import Whole
from wbsp.limits import one_line
from wbsp.process.child import ChildProcess
from wbsp.process.own_address import EVERY_INTERFACE
from wbsp.process.signals import Interrupts
from wbsp.process.throttle import Throttle
from wbsp.ps.config import RunInfo
from wbsp.tensors.codecs import Codec
from wbsp.tensors.ops import bounds
from wbsp.wire.addresses import is_loopback, to_check
from wbsp.wire.assembly import floats_of
from wbsp.wire.liveness import SHARD, Liveness, Nap
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import key_of_shards
from wbsp.wire.queues import SendQueue
from wbsp.wire.rate import Frames, RateLimiter
from wbsp.wire.server_link import ServerLink
from wbsp.wire.sockets import ServerSocket

_NOTICE = 10.0  # seconds between two lines about a missing shard
_LOOK = 0.05  # seconds between two checks of all connections
_BLOCKED = 0.001  # seconds until a blocked connection is tried again


class ShardLost(RuntimeError):
    """A shard is lost, and with it a part of the decisions since the checkpoint.

    Attributes:
        standby: address of a standby that may hold a newer state than the checkpoint, or None.
        later: epoch of a later server of the run, which the shard follows now; 0: none.
    """

    def __init__(self, reason: str, later: int = 0, standby: str | None = None):
        super().__init__(reason)
        self.later = later
        self.standby = standby


class ShardLink(ServerLink):
    """Messages to and from one shard, in order; times are seconds of the monotonic clock.

    Attributes:
        place: host and port for workers; host "": it has a different name for each.
        led: the shard follows this server.
    """

    def __init__(self, server: ServerSocket, host: str, port: int, process: ChildProcess | None,
                 lead: s.Lead, key: bytes):
        """Connect; `lead`: the server's introduction; `key`: of the run's shards."""
        super().__init__(server, host, port, key, *([] if process else [server.contact]))
        self.place = ("" if process or is_loopback(host) else host, port)
        self._process = process
        self._lead, self._key = lead, key
        self._queue = SendQueue(self.socket, RateLimiter(None))
        self._held_back: list[Frames] = []  # until the shard follows
        self.led = False
        self._seen = 0  # connections that have ended, so far
        self._liveness = Liveness(SHARD, -math.inf)
        self._beat_at = -math.inf
        self._beats = 0

    def __str__(self) -> str:
        return f"the shard at {self.address}"

    def post(self, frames: Frames, now: float) -> None:
        """Send an encoded message after all earlier ones, once the shard follows."""
        if self.led:
            self._queue.post(*frames, now=now)
        else:
            self._held_back.append(frames)

    def receive(self, now: float) -> Iterator[tuple[m.Message, memoryview | None]]:
        """Yield the shard's messages.

        Raises:
            ShardLost: the shard is lost, or sent an invalid message.
        """
        for frames in self.read():
            try:
                message = m.decode(s.FromShard, frames[0].buffer)
            except m.WireError as error:
                if not self.led:
                    self.misread(str(error))
                    continue
                raise ShardLost(f"{self} sent {error}") from None
            self._liveness.hear(now)
            match message:
                case m.Challenge():
                    if self.meets(message):
                        self.says = None
                        self._ask_to_follow()
                case s.Led():
                    if self.proven and not self.led:
                        self.led = True
                        while self._held_back:
                            self._queue.post(*self._held_back.pop(0), now=now)
                case s.Denied() if self.led:
                    raise ShardLost(f"{self} no longer follows: {one_line(message.reason)}",
                                    message.epoch)
                case s.Denied() if message.epoch > self._lead.epoch and self.proven:
                    raise ShardLost(f"{self} refuses: {one_line(message.reason)}", message.epoch)
                case s.Denied():
                    self.says = message.reason
                case s.Beat():
                    pass
                case _ if self.led:
                    yield message, frames[1].buffer if len(frames) == 2 else None

    def woke(self, now: float) -> None:
        """Handle the end of a suspension: silence counts from `now` on."""
        self._liveness.woke(now)

    def keep_up(self, now: float) -> None:
        """Send the introduction, or a heartbeat.

        Raises:
            ShardLost: the shard is lost.
        """
        broken = False
        self.watch()
        if self._seen != self.ended:
            self._seen = self.ended
            broken = self.led
            self.says = None
            self.renew()
        if self._process is not None:
            code = self._process.ended(timeouts.SHARD_EXIT if broken else 0.0)
            if code is not None:
                raise ShardLost(f"{self} (process {self._process.pid}) ended with exit code {code}")
        if broken:
            raise ShardLost(f"lost the connection to {self}")
        if self.led and self._liveness.silent(now):
            raise ShardLost(f"{self} has sent nothing for {SHARD.silent:g} s")
        if now - self._beat_at >= timeouts.SHARD_BEAT:
            self._beat_at = now
            self._beats += 1
            if self.led:
                self._queue.post(m.encode(s.Beat(self._beats)), now=now)
            else:
                self._ask_to_follow()
        self._queue.flush(now)

    def delay(self) -> float:
        """Seconds until there may be something to send."""
        return _BLOCKED if self._queue.blocked else math.inf

    def settle(self) -> bool:
        """Return whether all posted messages have been sent."""
        return not (self._queue or self._held_back)

    def close(self, patience: float = 0.0) -> None:
        """Close the link, and end the shard's process if it is the server's."""
        super().close(patience)
        if self._process is not None:
            self._process.kill()

    def _ask_to_follow(self) -> None:
        claim = self.claim
        lead = self._lead
        if claim.bond is not None:
            lead = structs.replace(lead, key=claim.bond.hidden(self._key))
        self.send(claim.sealed(lead))


class Shards:
    """All shards of a server, which may have none; used by its event loop."""

    def __init__(self, info: RunInfo, server: ServerSocket, say: Callable[[str], None],
                 hear: Callable[[int, m.Message], None]):
        """Start the server's own shard processes.

        Args:
            hear: called with a shard's index and its message about workers: Holds, Arriving or
                Misuse.

        Raises:
            OSError: one does not start.
        """
        config = info.config
        plan = config.shards
        self._server = server
        self._say = say
        self.on = server.on
        self._hear = hear
        self._take: Callable[[int, m.Message, memoryview | None], None] | None = None
        self._looked = -math.inf
        self._nap = Nap(server.on.clock.monotonic())
        here = "localhost" if config.host in EVERY_INTERFACE else config.host
        lead = s.Lead(m.PROTOCOL, info.run, info.epoch, config.worker_num)
        key = key_of_shards(info.secret)
        started = [] if plan.addresses or plan.single else [
            ChildProcess(["-m", "wbsp.ps.sharding.process"], {
                "host": config.host, "token": config.token and config.token.hex(),
                "bandwidth": config.bandwidth, "key": key.hex()}) for _ in range(plan.number)]
        try:
            self._links = [ShardLink(server, here, one.port(timeouts.SHARD_START), one, lead, key)
                           for one in started]
        except OSError as error:
            for one in started:
                one.kill()
            raise OSError(f"a shard's process {error}") from None
        self._started = bool(started)
        self._links += [ShardLink(server, *address, None, lead, key) for address in plan.addresses]

    def __len__(self) -> int:
        return len(self._links)

    @property
    def names(self) -> list[str]:
        """Addresses of the shards, for the log."""
        return [str(link).removeprefix("the shard at ") for link in self._links]

    def register(self, poller: zmq.Poller) -> None:
        """Register the shards' sockets with `poller`."""
        for link in self._links:
            poller.register(link.socket, zmq.POLLIN)

    def gather(self, interrupts: Interrupts, patience: float = timeouts.SHARDS_MISSING,
               attend: Callable[[str], None] | None = None) -> int | None:
        """Wait for all shards; return an exit code on timeout, else None.

        Args:
            interrupts: signals end the wait.
            patience: seconds to wait for shards that are not processes of this server.
            attend: answers peers meanwhile, with the reason why the server does not serve yet;
                None: they receive only that reason.

        Raises:
            ShardLost: a shard that follows was lost during the wait.
        """
        attend = attend or (lambda reason: _turn_away(self._server, reason))
        poller, began = self.on.network.poller(), self.on.clock.monotonic()
        notice = Throttle(_NOTICE, timeouts.SHARDS_GRACE)  # in seconds of waiting
        self.register(poller)
        patience = (timeouts.SHARDS_MISSING if self._started
                    else max(patience, timeouts.SHARDS_GRACE))
        while True:
            self.serve()
            waiting = [link for link in self._links if not link.led]
            missing = [str(link) for link in waiting]
            if not missing:
                return None
            if interrupts.first is not None:
                return 128 + interrupts.first
            reason = f"waiting for {missing[0]}"
            waited = self.on.clock.monotonic() - began
            why = f"; {waiting[0].why}" if waiting[0].why else ""
            if waited > patience:
                if not why and not self._started:
                    why = f"; {to_check(waiting[0].address)}"
                self._say(f"stopping: {missing[0]} has not connected within {patience:g} s{why}")
                return 1
            if notice.due(waited):
                self._say(f"{reason} ({waited:.0f} of {patience:g} s){why}")
            if waited > timeouts.SHARDS_GRACE:  # otherwise the server answers them soon
                attend(f"the server is {reason}")
            poller.poll(int(1000 * _LOOK))

    def serve(self) -> None:
        """Handle the shards' messages, and check their liveness.

        Raises:
            ShardLost: a shard is lost.
        """
        now = self.on.clock.monotonic()
        if self._nap.over(now):
            for link in self._links:
                link.woke(now)
        for index, link in enumerate(self._links):
            for message, body in link.receive(now):
                if not isinstance(message, s.Collected | s.Floats | s.Made):
                    self._hear(index, message)
                elif self._take is not None:
                    self._take(index, message, body)
        if now - self._looked >= _LOOK or self.delay() < _LOOK:
            self._looked = now
            for link in self._links:
                link.keep_up(now)

    def delay(self) -> float:
        """Seconds until there may be something to send."""
        return min((link.delay() for link in self._links), default=math.inf)

    def close(self) -> None:
        """Close the links to all shards."""
        for link in self._links:
            link.close(timeouts.SERVER_LINGER)

    # Messages to the shards.

    def begin(self, whole: Whole, outer: OuterOptimizer, wire: Codec, statistics: Sequence[slice],
              take: Callable[[int, m.Message, memoryview | None], None]) -> None:
        """Send each shard its range of a version, and the state for the next one.

        Args:
            whole: the version with its state.
            outer: the outer optimizer.
            wire: the run's format.
            statistics: as in `Store`.
            take: called with a shard's index, its message about a version, Collected, Floats or
                Made, and floats.
        """
        self._take = take
        (version, vector, _), state = whole
        assert vector is not None, "a server begins with a model"
        now, ends = self.on.clock.monotonic(), bounds(vector.size, len(self))
        rule = json.dumps({"name": outer.name, "wire": wire.name,
                           "options": {key: getattr(outer, key) for key in outer.OPTIONS},
                           "statistics": [(at.start, at.stop) for at in statistics]})
        for link, start, stop in zip(self._links, ends, ends[1:], strict=False):
            part = {name: values if name in outer.NUMBERS else values[start:stop]
                    for name, values in state.items()}
            sizes = {name: values.size for name, values in part.items()}
            begin = s.Begin(start, stop, vector.size, version, rule, sizes)
            link.post((m.encode(begin),), now)
            for frames in floats_of(0, vector[start:stop], *part.values()):
                link.post(frames, now)

    def admit(self, worker: int) -> m.ShardGroup:
        """Make a new attachment of a worker; return the shards' addresses and its secret."""
        group = m.ShardGroup(self.on.scheduler.number(), [link.place for link in self._links])
        self.tell(s.Admit(worker, group.secret))
        return group

    def log(self, record: Record) -> None:
        """Send a decision on the model to the shards."""
        match record:
            case Accepted():
                self.tell(s.Apply(record.worker, record.seq, False, record.weight, record.steps))
            case Resent():
                self.tell(s.Apply(record.worker, record.work.last, True, record.weight, 0))
            case Rejected():
                self.tell(s.Drop(record.worker, record.seq))
            case Committed():
                self.tell(s.Commit(record.version))

    def end(self, reason: str, follows: bool = False) -> None:
        """End the run in good order; `follows`: another run follows."""
        self.tell(m.Over(reason, follows))
        with contextlib.suppress(ShardLost):
            monotonic = self.on.clock.monotonic
            end = monotonic() + timeouts.SERVER_LINGER
            while not all(link.settle() for link in self._links) and monotonic() < end:
                self.on.clock.sleep(_BLOCKED)
                self.serve()

    def tell(self, message: m.Message) -> None:
        """Send all shards a message, after earlier ones."""
        frames, now = (m.encode(message),), self.on.clock.monotonic()
        for link in self._links:
            link.post(frames, now)


def _turn_away(server: ServerSocket, reason: str) -> None:
    """Answer each request with the reason why no server runs here yet."""
    server.watch()
    for identity, *frames in server.messages():
        with contextlib.suppress(m.WireError, IndexError):
            server.received(frames[0], False, frames[1:])
            message = m.decode(m.FromWorker, frames[0].buffer)
            if isinstance(message, m.Hello | m.Reattach | m.Follow | m.Ask):
                server.reaches(identity.bytes, m.encode(m.NotServing(reason)))
