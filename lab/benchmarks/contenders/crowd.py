"""Many members of a run in one thread: each has its connections, its pushes and its signs of life,
and nothing else that a worker has.

To the server and its shards they are workers of other machines, as many as there are; and they
leave the processors of this one to them, which so many workers would not. Their connections are
made by hand, so that they know when a push has arrived.
"""

from __future__ import annotations

import heapq
import math
import os
import random
import selectors
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from lab.benchmarks.contenders.team import VALUE
from scripts.harness import CONNECT
from tests.helpers.zmtp import Link
from wbsp import timeouts
from wbsp.core.stats import Report
from wbsp.sync.base import Push
from wbsp.tensors.layout import TensorSpec
from wbsp.tensors.ops import bounds
from wbsp.wire.addresses import split_address
from wbsp.wire.assembly import split
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import Claim, attachment

_END = 30.0  # seconds for the last answers


class Arrived(NamedTuple):
    """A push."""

    address: str  # of the worker's server
    worker: int
    seq: int
    at: float  # monotonic seconds, when the sending of its last bytes began


def run_zero(address: str) -> float:
    """The time zero of a run that waits for its workers, in monotonic seconds: later than that by
    no more than an answer takes."""
    zero, link = math.inf, Link(*split_address(address))
    link.socket.settimeout(CONNECT)
    for _ in range(20):
        link.send(m.Hello(m.PROTOCOL, 0, {}))
        for head, _ in link.receive():
            welcome = m.decode(m.FromServer, head)
            if isinstance(welcome, m.Welcome):
                zero = min(zero, time.monotonic() - welcome.now)
    link.send(m.Goodbye())
    link.socket.close()
    return zero


def crowd(pipe: Connection, places: list[tuple[str, int]], size: int, pause: float,
          seconds: float) -> None:
    """Workers under asp with overlap: each pushes, `pause` seconds apart, and fetches the version
    that its push makes. Answers when all have joined, when all have W_0, and, told the moment to
    begin at, with their pushes.

    places: address of the server, and index there, of each worker
    """
    # The cores are the server's whenever it wants them, as if workers had machines of their own.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    update = np.full(size, VALUE, np.float32)
    loop = _Loop()
    members = [_Member(loop, address, worker, update) for address, worker in places]
    draw = random.Random(repr(places[0]))
    for member in members:  # each at a moment of its own, so that no two are at a time
        loop.every(timeouts.WORKER_BEAT, member.keep_alive,
                   time.monotonic() + timeouts.WORKER_BEAT * draw.random())

    def until(what: str, patience: float) -> None:
        loop.run(lambda: all(getattr(member, what) for member in members), patience,
                 f"{len(members)} workers {what}")

    until("joined", CONNECT)
    pipe.send(None)
    until("began", CONNECT)
    until("idle", CONNECT)
    pipe.send(None)
    loop.run(pipe.poll, CONNECT, "a sign to begin")
    begin = pipe.recv()
    for member in members:
        loop.every(pause, member.push, begin + pause * draw.random(), begin + seconds)
    loop.run(lambda: time.monotonic() > begin + seconds, 2 * seconds + _END, "an end")
    until("idle", _END)
    for member in members:
        member.leave()
    until("left", _END)
    pipe.send([Arrived(member.address, member.worker, seq, at) for member in members
               for seq, at in enumerate(member.sent)])


class _Loop:
    """What is done when something comes, and what at its time."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, float, float, Callable[[], None]]] = []
        self._number = 0  # of what is done at its time, so that none compares with another

    def watch(self, link: Link, read: Callable[[Link], None]) -> None:
        """Call `read` whenever something has come."""
        self._selector.register(link.socket, selectors.EVENT_READ, (read, link))

    def forget(self, link: Link) -> None:
        """Read no more from it: its server may end."""
        self._selector.unregister(link.socket)

    def every(self, period: float, act: Callable[[], None], first: float,
              end: float = math.inf) -> None:
        """Call `act` at `first`, and so many seconds apart, before `end`."""
        if first < end:
            self._number += 1
            heapq.heappush(self._due, (first, self._number, period, end, act))

    def run(self, over: Callable[[], bool], patience: float, what: str) -> None:
        """Go on until it is over. Raises RuntimeError."""
        end = time.monotonic() + patience
        while not over():
            now = time.monotonic()
            if now > end:
                raise RuntimeError(f"not {what} after {patience:g} s")
            while self._due and self._due[0][0] <= now:
                when, _, period, last, act = heapq.heappop(self._due)
                act()
                self.every(period, act, when + period, last)
            wait = self._due[0][0] - time.monotonic() if self._due else 0.1
            for key, _ in self._selector.select(max(0.0, min(wait, 0.1))):
                read, link = key.data
                read(link)


class _Member:
    """One of them; `sent`: when the last bytes of each of its pushes were."""

    def __init__(self, loop: _Loop, address: str, worker: int, update: np.ndarray):
        self.address, self.worker, self._answered = address, worker, 0
        self.sent: list = []
        self.joined = self.began = self.left = self._granted = self._leaving = False
        self._loop, self._update = loop, update
        self._host, port = split_address(address)
        self._group: m.ShardGroup | None = None
        self._shards: list[Link] = []
        self._name = 0  # of the attachment to them
        self._claims: dict[Link, Claim] = {}
        self._ready: set[Link] = set()  # those that know this worker
        self._version = self._floats = self._fetches = 0
        self._server = self._meet(port)
        self._server.send(m.Hello(m.PROTOCOL, worker, {}))

    @property
    def idle(self) -> bool:
        """True where no push or fetch waits for an answer."""
        return self._answered == len(self.sent) and self._floats == 0

    def keep_alive(self) -> None:
        """Send a sign of life, and again an introduction that a shard had no room for."""
        if self.left:
            return
        self._server.ping()
        if self.joined:
            self._server.send(m.Heartbeat(Report()))
        for shard in self._shards:
            shard.ping()
            if shard not in self._ready and self._group is not None:
                self._present(shard)

    def push(self) -> None:
        """Push, and fetch what that makes, unless an earlier one is still under way, or its moment
        came too late."""
        if self._leaving or not self.idle:
            return
        push = Push(self.worker, len(self.sent), self._version, 1, 1, 0.01)
        self._fetch()
        size, at = self._update.size, 0.0
        if self._group is None:
            for offset, chunk in split(self._update):
                at = self._server.send(m.Update(push, offset, size, self._fetches), chunk)
        else:
            self._server.send(m.Update(push, 0, size, self._fetches))
            ends = bounds(size, len(self._shards))
            for shard, start, stop in zip(self._shards, ends, ends[1:], strict=False):
                for offset, chunk in split(self._update[start:stop]):
                    at = shard.send(s.Slice(self._name, push.seq, False, offset,
                                            stop - start), chunk)
        self.sent.append(at)

    def leave(self) -> None:
        """Leave, finished, and end."""
        self._leaving = True
        self._server.send(m.Leaving("all is pushed", True, None))

    def _read(self, link: Link) -> None:
        if self.left:
            return
        for head, floats in link.receive():
            kind = m.FromServer if link is self._server else s.FromShard
            self._handle(m.decode(kind, head), floats, link)
        if self._granted and self.joined and not self.began:
            self._fetch()
            self._server.send(m.Fetch(self._fetches))
            self.began = True

    def _handle(self, message: m.Message, floats: int, link: Link) -> None:
        match message:
            case m.Welcome():
                link.send(m.Join([TensorSpec("x", (self._update.size,))]))
            case m.Joined() if message.send_initial:
                for offset, chunk in split(np.zeros_like(self._update)):
                    link.send(m.Initial(offset, self._update.size), chunk)
            case m.Joined():
                self._group = message.group
                if self._group is not None:
                    self._shards = [self._meet(port, host) for host, port in self._group.addresses]
                    self._name, key = attachment(self._group.secret)
                    for shard in self._shards:
                        self._claims[shard] = Claim(os.urandom, key)
                        self._present(shard)
                self.joined = not self._shards
            case m.Challenge():
                met = self._claims[link].meets(message)
                if met is False:
                    raise RuntimeError("a shard has not proven itself")
                if met:  # else it was asked twice: `keep_alive` introduces it again
                    self._present(link)
            case s.Ready():
                self._ready.add(link)
                self.joined = len(self._ready) == len(self._shards)
            case m.Granted():
                self._granted = True
            case m.Ack():
                if not message.accepted or message.granted is None:
                    raise RuntimeError(f"a push was answered by {message}")
                self._answered += 1
            case m.Model():
                if message.request == self._fetches:
                    self._version = message.version
                    self._floats -= floats
            case m.Final():
                link.send(m.Goodbye())
                self.left = True
                for one in (self._server, *self._shards):
                    self._loop.forget(one)
            case m.Refused() | m.NotServing() | m.Unknown() | m.Stop():
                raise RuntimeError(f"the server sent {message}")

    def _present(self, shard: Link) -> None:
        shard.send(self._claims[shard].sealed(s.Present(self._name)))

    def _fetch(self) -> None:
        self._fetches += 1
        self._floats = self._update.size

    def _meet(self, port: int, host: str = "") -> Link:
        link = Link(host or self._host, port)
        self._loop.watch(link, self._read)
        return link
