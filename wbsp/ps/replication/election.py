"""Which of two servers that cannot reach each other serves: the one that the workers belong to.

A run has a server and at most one standby. Each knows a state of the run and its epoch. When one is
silent, it may have died, or the line between them; in the second case both could go on, and the run
would have two histories. So one of these is needed to serve alone:

- proof that the other's process has ended: its machine refuses a connection to its port, or another
  process has taken the port. It counts for `PROOF` seconds from the last moment for which it is
  certain that the two were in touch (`Beats`): a process that had been silent for longer may have
  served alone before it ended;
- promises of workers: of half of them or more for the server that serves, of more than half for one
  that waits to serve: the other half may have ended the run with the other one, which had a proof.
  Without workers, the server that serves goes on, and one that waits to serve waits on.
  A worker's process promises itself to one server only of those that follow on the same
  epoch, so that not both can have enough. Only the processes count that the state names, each of
  which proves that it is the one: not those that have taken their places since, nor strangers.

The epochs of the two never meet: from epoch e the standby goes on with e + 1, the server with
e + 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

STANDBY_STEP, SERVER_STEP = 1, 2  # from the epoch of the state to one's own
SILENT = 5.0  # seconds without a word after which workers are asked for promises
PROOF = 4.0  # less, by what clocks may differ and a look may take
_BEATS = 64  # that may be unanswered, and are remembered


class Beats:
    """Signs of life that were sent to the other one, by number, and that it has answered.

    An answer is as old as what it answers: this process may have slept since it came.

    touch: time of sending of the newest that was answered. The other one has heard of this process
           since then, and has waited for `SILENT` seconds more before it did anything alone.
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


class Ballot:
    """Promises of workers to one server.

    epoch: of that server, once it is elected; since: epoch of the state that it goes on from
    waits: it does not serve yet
    """

    def __init__(self, since: int, step: int, electorates: Iterable[Collection[Hashable]],
                 voiceless: Callable[[Any], bool] = lambda voter: False, waits: bool = False):
        """`electorates`: the workers' processes that there were, as each state that the other
        server may have names them.

        voiceless: true for a voter whose promise the other server could not know for one, so that
                   it needs the others' all the more; known only where its states are, exactly
        """
        self.since, self.epoch = since, since + step
        self._strict = waits or step == STANDBY_STEP
        self._voiceless = voiceless
        self._electorates = [frozenset(workers) for workers in electorates]
        self.promised: set[Hashable] = set()

    @property
    def won(self) -> bool:
        """True if enough workers have promised themselves."""
        return all(2 * (len(self.promised & workers) + sum(map(self._voiceless, workers)))
                   + (not self._strict) > len(workers) for workers in self._electorates)

    @property
    def needed(self) -> str:
        """How many are needed, in words."""
        return "more than half of them" if self._strict else "half of them"

    def __str__(self) -> str:
        workers = max(self._electorates, key=len)
        return f"{len(self.promised & workers)} of {len(workers)} workers"
