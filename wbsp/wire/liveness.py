"""Failure detection: which peer counts as lost, when, and why.

Slow is not dead. A process that is busy for minutes sends nothing, but its connection exists. So
silence alone proves little, and a broken connection proves much. Only its machine can distinguish a
process that has ended from one that is cut off: if the machine refuses a connection, no process
listens there (`Probe`). A process that was suspended has missed what others sent meanwhile (`Nap`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from wbsp import timeouts
from wbsp.process.host import HOST, Host
from wbsp.wire.messages import codec as m
from wbsp.wire.sockets import ServerSocket

_BEATS = 64  # unanswered heartbeats that are remembered
_NAP = 1.0  # seconds between two looks at the clock, of a loop that looks several times a second


class Patience(NamedTuple):
    """Seconds that a peer may be silent, or unreachable, before it counts as lost.

    Attributes:
        silent: without a message, though connected: it hangs.
        gone: without a connection.
        quiet: without a message, until its connection is tried.
        again: between two such attempts.
    """

    silent: float
    gone: float = 0.0
    quiet: float = math.inf
    again: float = 0.0


WORKER = Patience(timeouts.WORKER_SILENT, timeouts.WORKER_GONE, timeouts.WORKER_PROBED,
                  timeouts.WORKER_PROBED)
SERVER = Patience(timeouts.SERVER_SILENT, timeouts.WORKER_PATIENCE)  # a worker's
STANDBY = Patience(timeouts.STANDBY_LOST, 0.0, timeouts.STANDBY_PROBED, 0.25)
PRIMARY = Patience(timeouts.ELECTION)  # a standby's
SHARD = Patience(timeouts.SHARD_SILENT)
# A shard's:
LEADING_SERVER = Patience(timeouts.SHARD_SERVER_SILENT, 0.0, timeouts.SHARD_SERVER_PROBED)


class Liveness:
    """This process's knowledge of one peer; times are of the owner's clock, in seconds.

    Attributes:
        heard: time of its newest message.
        gone_since: time at which its connection was found broken; None: it was not, or works again.
    """

    def __init__(self, patience: Patience, now: float):
        self.patience = patience
        self.heard = now
        self.gone_since: float | None = None
        self._tried = -math.inf

    def hear(self, now: float) -> None:
        """Note a message of the peer: it lives and is connected."""
        self.heard = now
        self.gone_since = None

    def woke(self, now: float) -> None:
        """Note that this process was suspended until `now`: silence counts from now on."""
        self.heard = max(self.heard, now)

    def silent(self, now: float) -> bool:
        """Return whether the peer has been silent for so long that it hangs, if it is connected."""
        return now - self.heard > self.patience.silent

    def lost(self, now: float, reaches: Callable[[], bool]) -> str | None:
        """Return why the peer counts as lost; None if it does not.

        Args:
            reaches: tries its connection; False if that is broken.
        """
        patience = self.patience
        if now - self.heard > patience.quiet and now - self._tried > patience.again:
            self._tried = now
            if reaches():
                self.gone_since = None
            elif self.gone_since is None:
                self.gone_since = now
            if self.gone_since is not None and now - self.gone_since >= patience.gone:
                return f"no connection for {now - self.gone_since:.0f} s"
        if self.silent(now):
            return f"connected, but silent for {patience.silent:g} s"
        return None


@dataclass
class KnownPeer:
    """A process that has connected to this one, and is known: a worker, a standby, or the server of
    a shard; over one connection after another. `identity`: of its socket."""

    identity: bytes
    liveness: Liveness

    def alive(self) -> m.Message:
        """Return the heartbeat for it."""
        return m.Alive()

    def reaches(self, socket: ServerSocket) -> bool:
        """Return whether its connection exists."""
        return socket.reaches(self.identity, m.encode(self.alive()))

    def lost(self, socket: ServerSocket, now: float) -> str | None:
        """Return why it counts as lost, or None."""
        return self.liveness.lost(now, lambda: self.reaches(socket))


class Beats:
    """Heartbeats to the peer, by number, and which of them it has answered.

    An answer is as old as the heartbeat: this process may have been suspended since it arrived.

    Attributes:
        touch: time of sending of the newest heartbeat that was answered. The peer has heard of this
            process since then, so it did nothing alone before `ELECTION` seconds later.
    """

    def __init__(self, touch: float = -math.inf):
        self.touch = touch
        self._sent: dict[int, float] = {}  # number -> time

    def sent(self, number: int, now: float) -> None:
        """Note a heartbeat that is sent now; numbers ascend."""
        self._sent[number] = now
        if len(self._sent) > _BEATS:
            del self._sent[next(iter(self._sent))]

    def answered(self, number: int) -> None:
        """Note the answer to this heartbeat, which also answers all before; ignore other numbers.
        """
        if number in self._sent:
            self.touch = max(self.touch, self._sent[number])
            self._sent = {n: sent for n, sent in self._sent.items() if n > number}

    def doubt(self) -> None:
        """Forget all answers, because this process was suspended."""
        self.touch = -math.inf
        self._sent.clear()

    def fresh(self, now: float) -> bool:
        """Return whether the peer cannot have done anything alone yet.

        While it cannot, the end of its process proves that nothing is lost.
        """
        return now < self.touch + timeouts.PROOF


class Nap:
    """Detects that this process was stopped, or its machine suspended; for a loop with a clock.

    What such a loop finds right afterwards may be old, and the silence was its own.
    """

    def __init__(self, now: float):
        self._last = now
        self.seconds = 0.0  # between the newest two looks

    def over(self, now: float) -> bool:
        """Return True at the first look at the clock after a suspension."""
        self.seconds = now - self._last
        self._last = now
        return self.seconds > _NAP


class Probe:
    """Tests whether an address refuses connections, without waiting.

    A refusal by the machine proves that no process listens there: one that did has ended. Silence
    proves nothing. An attempt is made only if libzmq, which does not say why, has failed to
    connect: to a server, the attempt would be a peer that does not speak its protocol.

    Each attempt resolves the host's name again, since it may now name another machine. A name
    server may take half a minute, so each attempt has a thread of its own.
    """

    def __init__(self, host: str, port: int, on: Host = HOST):
        self._host = "127.0.0.1" if host == "localhost" else host  # like `endpoint`
        self._port = port
        self._network = on.network
        self._scheduler = on.scheduler
        self._attempt: Future[bool] | None = None  # whether it was refused
        self._since = -timeouts.PROBE_AGAIN

    def refused(self, now: float, failed: bool) -> bool:
        """Return whether the newest attempt was refused; start the next one if due.

        Args:
            now: seconds of any clock.
            failed: libzmq's last attempt to connect failed.
        """
        if not failed:
            self._attempt = None
        elif self._attempt is None and now - self._since >= timeouts.PROBE_AGAIN:
            self._since = now
            self._attempt = attempt = self._scheduler.future()
            self._scheduler.thread(lambda: attempt.set_result(self._try()), "probe").start()
        elif self._attempt is not None and self._attempt.done():
            refused = self._attempt.result()
            self._attempt = None
            return refused
        return False

    def _try(self) -> bool:
        """Return whether an attempt is refused; for a thread that may wait."""
        try:
            family, kind, where = self._network.resolve(self._host, self._port)[0]
            with self._network.socket(family, kind) as one:
                one.settimeout(timeouts.PROBE_ATTEMPT)
                one.connect(where)
        except ConnectionRefusedError:
            return True
        except (OSError, UnicodeError):
            pass
        return False
