"""A standby whose server is silent: the workers that come to it, and what they have promised."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wbsp.ps.replication.election import STANDBY_STEP, Ballot
from wbsp.ps.replication.snapshot import Voter, voters
from wbsp.runlog.folder import SECRET
from wbsp.wire.messages import codec as m
from wbsp.wire.sockets import ServerSocket

_ASK = 1.0  # seconds between two questions to the workers
# Seconds for which a worker gives no promise that knows more to be durable, and some for its word.
_WITHHELD = 62.0


class State(NamedTuple):
    """The state of a run that a process could serve from, and how new it is.

    step:     from this epoch to its own
    next_seq: worker -> number of its first push that is not in it; as in `Ledger`
    secret:   of the run; None: it is of a release that made none
    """

    run: str  # id
    epoch: int
    voters: frozenset[Voter]
    step: int
    next_seq: Mapping[int, int] = MappingProxyType({})
    secret: bytes | None = None

    @property
    def rank(self) -> int:
        """As in `messages.Follow`."""
        return 2 * self.epoch + (self.step == STANDBY_STEP)

    @classmethod
    def of(cls, run: dict[str, Any], state: dict[str, Any], step: int) -> State:
        """From a run's settings and a checkpoint's state."""
        secret = run.get(SECRET)
        return cls(run["id"], run["epoch"], voters(state, run["workers"]), step,
                   {int(worker): seq for worker, seq in state.get("next_seq", {}).items()},
                   secret and bytes.fromhex(secret))


class Comer(NamedTuple):
    """A worker that has come, and has proven who it is, over one connection."""

    request: m.Reattach
    line: object  # as `ServerSocket.received` returns it


class Candidacy:
    """The attempt to serve in the place of a server that is silent.

    came: identity of a worker's socket -> its newest introduction
    """

    def __init__(self, state: State, socket: ServerSocket):
        self._socket, self._state = socket, state
        self.ballot = Ballot(state.epoch, state.step, [state.voters], waits=True)
        self.came: dict[bytes, Comer] = {}
        self._asked = 0.0
        self._began: float | None = None  # when workers were asked first
        self._now = 0.0

    @property
    def won(self) -> bool:
        """True if enough workers have promised themselves, one at least: this process does not
        serve, so that without any the other one may have gone on, from a newer state.

        A server that was started again waits for that one, also where the promises are enough, as
        long as a worker does that knows more to be durable, and withholds its own.
        """
        return bool(self.ballot.promised) and self.ballot.won and not self._withheld

    @property
    def _withheld(self) -> bool:
        """Whether a worker that is here has not promised itself, and may know more to be durable.
        """
        if (self._state.step == STANDBY_STEP or self._began is None
                or self._now > self._began + _WITHHELD):
            return False
        return not self.ballot.promised.issuperset(
            (one.request.worker, one.request.place) for one in self.came.values())

    @property
    def missing(self) -> str:
        """What it lacks, in words."""
        return (f"{self.ballot} have come here, {self.ballot.needed} are needed"
                if self._state.voters else
                "the state here names no worker that could decide: start that process again")

    def poll(self, now: float) -> None:
        """Ask the workers that have come; `now` in seconds of the monotonic clock."""
        self._now = now
        if now - self._asked > _ASK:
            self._asked = now
            if self._began is None and self.came:
                self._began = now
            for identity, one in self.came.items():
                self._ask(identity, one.request.worker)

    def come(self, identity: bytes, request: m.Reattach, line: object) -> bool:
        """A worker cannot reach the server; False if it is none of those who have a say here: the
        processes that the state here names."""
        if (request.epoch != self.ballot.since
                or (request.worker, request.place) not in self._state.voters):
            return False
        for other in [i for i, one in self.came.items() if one.request.worker == request.worker]:
            del self.came[other]
        self.came[identity] = Comer(request, line)
        return True

    def promised(self, identity: bytes, elected: m.Elected, line: object) -> None:
        """A worker has answered."""
        one = self.came.get(identity)
        if one is not None and one.line is line and elected.epoch == self.ballot.epoch:
            self.ballot.promised.add((one.request.worker, one.request.place))

    def withdraw(self, reason: str) -> None:
        """The server is there again: give the workers back what they have promised."""
        self.ballot.promised.clear()
        for identity in self.came:
            self._socket.reaches(identity, m.encode(m.NotServing(reason, self.ballot.epoch)))

    def _ask(self, identity: bytes, worker: int) -> None:
        self._socket.reaches(identity, m.encode(m.Elect(
            self.ballot.epoch, self.ballot.since, self._state.next_seq.get(worker, 0))))
