"""A standby whose server is silent: the workers that come to it, and what they have promised."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wbsp.ps.contest import STANDBY_STEP, Ballot
from wbsp.ps.copies import voters
from wbsp.wire import messages as m
from wbsp.wire.sockets import ServerSocket

_ASK = 1.0  # seconds between two questions to the workers


class State(NamedTuple):
    """The state of a run that a process could serve from, and how new it is.

    step:     from this epoch to its own
    next_seq: worker -> number of its first push that is not in it; as in `Ledger`
    """

    run: str  # id
    epoch: int
    voters: frozenset[int]
    step: int
    next_seq: Mapping[int, int] = MappingProxyType({})

    @property
    def rank(self) -> int:
        """As in `messages.Follow`."""
        return 2 * self.epoch + (self.step == STANDBY_STEP)

    @classmethod
    def of(cls, run: dict[str, Any], state: dict[str, Any], step: int) -> State:
        """From a run's settings and a checkpoint's state."""
        return cls(run["id"], run["epoch"], voters(state, run["workers"]), step,
                   {int(worker): seq for worker, seq in state.get("next_seq", {}).items()})


class Candidacy:
    """The attempt to serve in the place of a server that is silent.

    requests: identity of a worker's socket -> its introduction
    """

    def __init__(self, state: State, socket: ServerSocket):
        self._socket, self._state = socket, state
        self.ballot = Ballot(state.epoch, state.step, [state.voters])
        self.requests: dict[bytes, m.Reattach] = {}
        self._asked = 0.0

    def poll(self, now: float) -> None:
        """Ask the workers that have come; `now` in seconds of the monotonic clock."""
        if now - self._asked > _ASK:
            self._asked = now
            for identity, request in self.requests.items():
                self._ask(identity, request.worker)

    def come(self, identity: bytes, request: m.Reattach) -> bool:
        """A worker cannot reach the server; False if it is none of those who have a say here."""
        if (request.protocol, request.run, request.epoch) != (m.PROTOCOL, self._state.run,
                                                             self.ballot.since):
            return False
        for other in [i for i, r in self.requests.items() if r.worker == request.worker]:
            del self.requests[other]
        self.requests[identity] = request
        return True

    def promised(self, identity: bytes, elected: m.Elected) -> None:
        """A worker has answered."""
        if identity in self.requests and elected.epoch == self.ballot.epoch:
            self.ballot.promised.add(self.requests[identity].worker)

    def withdraw(self, reason: str) -> None:
        """The server is there again: give the workers back what they have promised."""
        self.ballot.promised.clear()
        for identity in self.requests:
            self._socket.reaches(identity, m.encode(m.NotServing(reason, self.ballot.epoch)))

    def _ask(self, identity: bytes, worker: int) -> None:
        self._socket.reaches(identity, m.encode(m.Elect(
            self.ballot.epoch, self.ballot.since, self._state.next_seq.get(worker, 0))))
