"""Whether the process at the other end of a connection lives: who counts as lost, when, and why.

Slow is not dead: a process that is busy for minutes says nothing, and its connection is there; so
silence alone tells little, and a connection that is gone tells much. Nothing tells a process that
has ended from one that is cut off, but for its machine: where that refuses a connection, no process
listens there (`Probe`). And who has slept, or was stopped, has missed what the others said
meanwhile (`Nap`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from wbsp import timeouts
from wbsp.process.host import HOST, Host

_BEATS = 64  # that may be unanswered, and are remembered
_NAP = 1.0  # seconds between two looks of a loop that looks several times a second


class Patience(NamedTuple):
    """How many seconds a peer may be silent, or out of reach, before it counts as lost.

    silent: without a word, though it is connected: it hangs
    gone:   without a connection
    quiet:  without a word, after which its connection is tried
    again:  between two such attempts
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
    """What is known of whether a peer lives; times are its owner's own, in seconds.

    heard:      time of its newest message
    gone_since: time at which its connection was found broken; None: it was not, or is back
    """

    def __init__(self, patience: Patience, now: float):
        self.patience = patience
        self.heard = now
        self.gone_since: float | None = None
        self._tried = -math.inf

    def hear(self, now: float) -> None:
        """A message came in: the peer lives, and is connected."""
        self.heard = now
        self.gone_since = None

    def woke(self, now: float) -> None:
        """This process has slept until `now`: silence counts from here on."""
        self.heard = max(self.heard, now)

    def silent(self, now: float) -> bool:
        """True if it has said nothing for so long that it hangs, if it is connected."""
        return now - self.heard > self.patience.silent

    def lost(self, now: float, reaches: Callable[[], bool]) -> str | None:
        """Why the peer counts as lost; None: it does not.

        reaches: tries its connection; False: that is gone
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
            return f"connected, but nothing heard for {patience.silent:g} s"
        return None


class Beats:
    """Signs of life that were sent to the other one, by number, and that it has answered.

    An answer is as old as what it answers: this process may have slept since it came.

    touch: time of sending of the newest that was answered. The other one has heard of this process
           since then, and has waited for `ELECTION` seconds more before it did anything alone.
    """

    def __init__(self, touch: float = -math.inf):
        self.touch = touch
        self._sent: dict[int, float] = {}  # number -> time

    def sent(self, number: int, now: float) -> None:
        """One leaves now; numbers ascend."""
        self._sent[number] = now
        if len(self._sent) > _BEATS:
            del self._sent[next(iter(self._sent))]

    def answered(self, number: int) -> None:
        """This one was, and all before are; of a number that was never sent: nothing was."""
        if number in self._sent:
            self.touch = max(self.touch, self._sent[number])
            self._sent = {n: sent for n, sent in self._sent.items() if n > number}

    def doubt(self) -> None:
        """This process has slept: only what is sent from here on counts."""
        self.touch = -math.inf
        self._sent.clear()

    def fresh(self, now: float) -> bool:
        """True while the other one cannot have done anything alone: that its process has ended
        proves now that nothing is lost."""
        return now < self.touch + timeouts.PROOF


class Nap:
    """Tells a loop that looks at the time again and again that it has slept: that its process was
    stopped, or its machine suspended.

    What is found right after that may be from before, and silence was its own.
    """

    def __init__(self, now: float):
        self._last = now
        self.seconds = 0.0  # of the newest

    def over(self, now: float) -> bool:
        """True at the first look after one."""
        self.seconds = now - self._last
        self._last = now
        return self.seconds > _NAP


class Probe:
    """Whether an address refuses connections: attempts that wait for nothing.

    Refusal by the machine proves that no process listens there: one that did has ended. Silence
    proves nothing. An attempt is made only where libzmq, which does not say why, has failed to
    connect: to a server it would be a peer that does not speak its protocol.

    A host's name is looked up anew for each attempt, since it may stand for another machine by
    then; a name server may take half a minute, so each attempt has a thread of its own.
    """

    def __init__(self, host: str, port: int, on: Host = HOST):
        self._host = "127.0.0.1" if host == "localhost" else host  # as `endpoint` has it
        self._port = port
        self._network = on.network
        self._scheduler = on.scheduler
        self._attempt: Future[bool] | None = None  # whether it was refused
        self._since = -timeouts.PROBE_AGAIN

    def refused(self, now: float, failed: bool) -> bool:
        """True if the newest attempt was refused.

        now:    seconds of any clock
        failed: libzmq could not connect, when it tried last
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
        """Whether an attempt is refused; for a thread that may wait."""
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
