"""The process of a shard, here or on another machine: it waits for a server, follows it, and
discards its state when that is lost.

A server starts the shards of its own machine by `python -m wbsp.ps.sharding.process`; they end with
it, however it ends, because they read from a pipe that it holds open. A shard on another machine is
`python -m wbsp.ps --shard`, and waits for the next server.
"""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import zmq

from wbsp import timeouts
from wbsp.limits import one_line
from wbsp.process.child import answer_server, settings_from_server
from wbsp.process.host import HOST, Host
from wbsp.process.signals import Interrupts
from wbsp.ps.sharding.shard import Shard
from wbsp.runlog.console import say
from wbsp.wire.assembly import VectorStream
from wbsp.wire.liveness import LEADING_SERVER, KnownPeer, Liveness, Nap
from wbsp.wire.loop import POLL, Loop
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import SIZE, attachment
from wbsp.wire.queues import PeerQueues
from wbsp.wire.rate import Frames, RateLimiter
from wbsp.wire.sockets import ServerSocket

_WAITING = 256  # workers that may connect before the log names them


@dataclass
class _Leader(KnownPeer):
    """The server that is followed; times are seconds of the monotonic clock."""

    run: str
    epoch: int
    key: bytes  # of the run's shards: a later server of the run proves itself by it
    head: s.Begin | None = None  # whose floats arrive
    floats: VectorStream | None = None  # these
    shard: Shard | None = None
    collecting: deque[Iterator[Frames]] = field(default_factory=deque)
    told: dict[int, float] = field(default_factory=dict)  # name -> time of the newest Arriving

    def alive(self) -> m.Message:
        return s.Beat(0)

    def begins(self, head: s.Begin) -> int:
        """Wait for the floats of a slice; return their number."""
        sizes = [head.stop - head.start, *head.state.values()]
        self.head, self.floats = head, VectorStream(sizes)
        return sum(sizes)

    def takes(self, floats: s.Floats, body: memoryview) -> None:
        """Take floats, and begin to serve with the last of them."""
        if self.head and self.floats and (
                vectors := self.floats.add(floats.offset, body)):
            state = dict(zip(self.head.state, vectors[1:], strict=True))
            self.floats, self.shard = None, Shard(self.head, vectors[0], state)


class ShardServer:
    """The event loop of a shard.

    Attributes:
        lifeline: a file that ends with the server's process, or None.
        key: that a server must know; None: that of a first contact.
        over: the run has ended, and this process with it.
    """

    def __init__(self, socket: ServerSocket, bandwidth: float | None, interrupts: Interrupts,
                 lifeline: int | None = None, key: bytes | None = None):
        self._key = key or socket.contact
        self._socket, self._interrupts, self._lifeline = socket, interrupts, lifeline
        self._clock = socket.on.clock
        self._queues = PeerQueues(socket.socket, RateLimiter(bandwidth))
        socket.limit(bandwidth)
        self._leader: _Leader | None = None
        self._waiting: dict[int, tuple[bytes, s.Present]] = {}  # name -> a worker not in the log
        self._alone_since = self._clock.monotonic()
        self._nap = Nap(self._alone_since)
        self._misuse: tuple[int, str] = 0, ""
        self._misuse_told = 0.0
        self._over = False

    def run(self) -> int:
        """Follow one server after another; return the exit code."""
        loop = Loop(self._socket, self._watch)
        if self._lifeline is not None:
            loop.register(self._lifeline)
        code = loop.run(self._timers, lambda: self._step(loop))
        self._socket.close(1.0)
        return code

    def _step(self, loop: Loop) -> None:
        """Wait briefly for events, and handle them."""
        ready = loop.wait(min(POLL, self._queues.delay(self._clock.monotonic())))
        if self._lifeline in ready:
            # the server has ended: this state is useless
            self._socket.on.scheduler.exit(0)
        if self._socket.socket in ready:
            self._receive()
        self._queues.flush(self._clock.monotonic())

    # Time.

    def _timers(self, now: float) -> int | None:
        self._watch()
        self._tell_misuse(now)
        leader = self._leader
        if self._nap.over(now):  # silence and patience count from here on
            self._alone_since += self._nap.seconds
            if leader is not None:
                leader.liveness.woke(now)
        if self._interrupts.first is not None:
            return 128 + self._interrupts.first
        if self._over:
            return 0
        if leader is not None:
            if leader.lost(self._socket, now):
                self._forget("is lost")
        elif now - self._alone_since > timeouts.SHARD_ALONE:
            self._say(f"no server has connected for {timeouts.SHARD_ALONE:g} s")
            return 1
        return None

    def _watch(self) -> None:
        for reason, count in self._socket.watch().items():
            self._misused(reason, count)

    def _forget(self, why: str) -> None:
        """Discard all state of the lost server, because no other one can use it."""
        assert self._leader is not None
        self._say(f"the server of run {self._leader.run}, epoch {self._leader.epoch}, {why}; "
                  "waiting for the next")
        self._leader, self._alone_since = None, self._clock.monotonic()

    # Messages.

    def _receive(self) -> None:
        for identity, *frames in self._socket.messages():
            try:
                self._handle(identity.bytes, frames)
            except m.WireError as error:
                self._misused(str(error))
            if frames:
                self._socket.received(frames[0], self._knows(identity.bytes), frames[1:])

    def _knows(self, identity: bytes) -> bool:
        """Return whether this is the server's socket, or that of a worker in its log."""
        leader = self._leader
        return leader is not None and (leader.identity == identity or (
            leader.shard is not None and leader.shard.knows(identity)))

    def _handle(self, identity: bytes, frames: list[zmq.Frame]) -> None:
        leader = self._leader
        leads = leader is not None and leader.identity == identity
        if not 1 <= len(frames) <= 2:
            raise m.WireError(f"a message of {len(frames)} frames")
        try:
            message = m.decode(s.ToShard, frames[0].buffer)
        except m.WireError:
            self._turn_away(identity, frames[0])
            raise
        body = frames[1].buffer if len(frames) == 2 else None
        if (body is not None) != isinstance(message, s.Floats | s.Slice):
            raise m.WireError(f"{type(message).__name__} with {len(frames)} frames")
        if isinstance(message, s.Lead):
            self._lead(identity, message)
        elif isinstance(message, s.Present):
            self._present(leader, identity, message)
        elif leader is None:
            raise m.WireError(f"{type(message).__name__} without a server")
        elif isinstance(message, s.Slice) and body is not None:
            self._slice(leader, identity, message, body)
        elif leads:
            leader.liveness.hear(self._clock.monotonic())
            try:
                self._follow(leader, message, body)
            except Exception as error:  # this state no longer follows the log
                say("".join(traceback.format_exception(error)).rstrip())
                self._send(identity, s.Denied(f"the shard failed: {error!r}"))
                self._forget("sent an invalid message")
        else:
            raise m.WireError(f"{type(message).__name__} from a process that is not the server")

    def _lead(self, identity: bytes, lead: s.Lead) -> None:
        """Handle a server that requests this process."""
        old = self._leader
        if lead.protocol != m.PROTOCOL:
            self._send(identity, s.Denied(f"the shard has protocol {m.PROTOCOL}, the server "
                                          f"{lead.protocol}; install the same wbsp on both"))
            return
        # A later server of the followed run knows its key.
        later = old is not None and old.run == lead.run and lead.epoch > old.epoch
        key = old.key if old is not None and (later or old.identity == identity) else self._key
        bond = self._socket.challenges.admit(self._send, identity, lead, key)
        if bond is None or len(lead.key) != SIZE:
            return
        if old is not None and old.identity != identity:
            if not later and old.reaches(self._socket):
                overtaken = old.run == lead.run and old.epoch > lead.epoch
                self._send(identity, s.Denied(
                    f"the shard follows the server of run {old.run}, epoch {old.epoch}",
                    old.epoch if overtaken else 0))
                return
            self._send(old.identity, s.Denied(f"a server of run {lead.run}, epoch {lead.epoch}, "
                                              "has connected", lead.epoch if later else 0))
            self._forget("has been replaced")
        if self._leader is None:
            self._say(f"following the server of run {lead.run}, epoch {lead.epoch}")
            self._leader = _Leader(identity, Liveness(LEADING_SERVER, self._clock.monotonic()),
                                   lead.run, lead.epoch, bond.hidden(lead.key))
            self._socket.guard.expect(lead.workers)
        self._send(identity, s.Led(lead.epoch))

    def _turn_away(self, identity: bytes, frame: zmq.Frame) -> None:
        """Answer a process that takes this one for a server.

        Raises:
            WireError: the message is invalid.
        """
        message = m.decode(m.FromWorker, frame.buffer)
        if isinstance(message, m.Hello | m.Reattach | m.Follow | m.Ask):
            self._send(identity, m.NotServing(
                f"the process at port {self._socket.port} is a shard, not a server"))

    def _present(self, leader: _Leader | None, identity: bytes, present: s.Present) -> None:
        """Handle the introduction of a worker.

        It is challenged until it has proven its identity, and waits until the log names it.
        """
        if (leader is not None and leader.shard is not None
                and (one := leader.shard.attached(present.name)) is not None):
            if self._socket.challenges.admit(self._send, identity, present, one.key) is None:
                return
            leader.shard.present(identity, present.name)
            self._send(identity, s.Ready(present.name))
            return
        self._waiting[present.name] = identity, present
        while len(self._waiting) > _WAITING:
            del self._waiting[next(iter(self._waiting))]

    def _slice(self, leader: _Leader, identity: bytes, message: s.Slice,
               body: memoryview) -> None:
        if leader.shard is None:
            raise m.WireError("a slice before a model exists")
        notice, now = leader.shard.take(identity, message, body), self._clock.monotonic()
        if notice is not None:
            self._send(leader.identity, notice)
        elif now - leader.told.get(message.name, 0.0) > timeouts.SHARD_TELL and (
                one := leader.shard.attached(message.name)) is not None:
            leader.told[message.name] = now
            self._send(leader.identity, s.Arriving(one.secret))

    def _follow(self, leader: _Leader, message: m.Message, body: memoryview | None) -> None:
        """Carry out a message of the server; an invalid one may raise any exception."""
        shard = leader.shard
        match message:
            case s.Beat():
                self._send(leader.identity, message)
            case m.Over():
                self._say(f"the run has ended: {one_line(message.reason)}")
                if message.follows and self._lifeline is None:
                    self._forget("has ended it")
                else:  # a shard that a server has started serves one run
                    self._over = True
            case s.Begin():
                self._socket.guard.allow(4 * leader.begins(message))
            case s.Floats() if leader.floats and body is not None:
                leader.takes(message, body)
            case _ if shard is None:
                raise RuntimeError(f"the log begins with {type(message).__name__}")
            case s.Send():
                if found := shard.version(message):
                    self._queues.transfer(*found, self._clock.monotonic())
            case s.Collect():
                leader.collecting.append(shard.collected(message.number))
                if len(leader.collecting) == 1:
                    self._queues.transfer(leader.identity, _one_by_one(leader.collecting),
                                          self._clock.monotonic())
            case s.Admit():
                shard.follow(message)
                if (came := self._waiting.pop(attachment(message.secret)[0], None)) is not None:
                    self._present(leader, *came)
            case _:
                if isinstance(message, s.Dismiss):
                    leader.told.pop(attachment(message.secret)[0], None)
                shard.follow(message)
                if made := shard.made():
                    self._send(leader.identity, made)
                if isinstance(message, s.Apply | s.Drop) and (
                        missed := shard.missed(message.worker)):
                    identity, name = missed
                    self._send(identity, s.Ready(name))

    def _send(self, identity: bytes, message: m.Message) -> None:
        self._queues.post(identity, m.encode(message), now=self._clock.monotonic())

    # Misuse.

    def _misused(self, reason: str, count: int = 1) -> None:
        self._misuse = self._misuse[0] + count, reason

    def _say(self, text: str) -> None:
        if self._lifeline is None:  # otherwise the server prints the lines
            say(text)

    def _tell_misuse(self, now: float) -> None:
        count, reason = self._misuse
        if count and self._leader is not None and now - self._misuse_told > timeouts.SHARD_TELL:
            self._misuse, self._misuse_told = (0, ""), now
            self._send(self._leader.identity, s.Misuse(count, reason[:200]))


def _one_by_one(collecting: deque[Iterator[Frames]]) -> Iterator[Frames]:
    """Yield the messages of all collections, also of those that are requested meanwhile."""
    while collecting:
        yield from collecting[0]
        collecting.popleft()


def prepare_shard(host: str, port: int, token: bytes | None,
                  bandwidth: float | None, on: Host = HOST,
                  reach: Sequence[str] = ()) -> Callable[[], int]:
    """Listen; return a function that waits for servers, follows them, and returns an exit code.

    From here on the shard handles the process's signals.

    Args:
        host, port: to listen on.
        token: the run's secret, or None.
        bandwidth: bytes/s in each direction, or None.
        on: the host that this process runs on.
        reach: lines for the console on who can connect.

    Raises:
        ValueError: a setting is bad; one line.
        OSError: the port cannot be used; one line.
    """
    interrupts = Interrupts(on).install()
    socket = ServerSocket(host, port, token, on=on)

    def serve() -> int:
        say(f"shard: listening on port {socket.port}, waiting for a server")
        for line in reach:
            say(line)
        return ShardServer(socket, bandwidth, interrupts).run()

    return serve


def main() -> int:
    """Run a shard that a server on this machine has started.

    It reads its settings, a line of JSON, and prints its port.
    """
    settings = settings_from_server()
    if settings is None:
        return 1
    token = settings["token"] and bytes.fromhex(settings["token"])
    socket = ServerSocket(settings["host"], 0, token)
    if not answer_server(f"{socket.port}"):
        return 1
    return ShardServer(socket, settings["bandwidth"], Interrupts(), 0,
                       bytes.fromhex(settings["key"])).run()


if __name__ == "__main__":
    sys.exit(main())
