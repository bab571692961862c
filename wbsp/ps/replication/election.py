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

import contextlib
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wbsp import timeouts
from wbsp.process.throttle import Throttle
from wbsp.ps.checkpoint.state import RunState, Voter
from wbsp.ps.sessions.handlers import Peer
from wbsp.runlog.folder import SECRET
from wbsp.wire.liveness import Beats, Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.server_link import ServerLink
from wbsp.wire.sockets import ServerSocket

STANDBY_STEP, SERVER_STEP = 1, 2  # from the epoch of the state to one's own
_NOTICE = 10.0  # seconds between two lines


class Votes:
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
        self.since = since
        self.epoch = since + step
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


class Standing(NamedTuple):
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
    def of(cls, run: dict[str, Any], state: RunState, step: int) -> Standing:
        """From a run's settings and a checkpoint's state."""
        secret = run.get(SECRET)
        return cls(run["id"], run["epoch"], state.voters(run["workers"]), step, state.next_seq,
                   secret and bytes.fromhex(secret))


class Candidate:
    """The attempt to serve in the place of a server that is silent.

    came: identity of a worker's socket -> a worker that has come, and has proven who it is
    """

    def __init__(self, state: Standing, socket: ServerSocket):
        self._socket = socket
        self._state = state
        self.votes = Votes(state.epoch, state.step, [state.voters], waits=True)
        self.came: dict[bytes, tuple[Peer, m.Reattach]] = {}
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
        return bool(self.votes.promised) and self.votes.won and not self._withheld

    @property
    def _withheld(self) -> bool:
        """Whether a worker that is here has not promised itself, and may know more to be durable.
        """
        if (self._state.step == STANDBY_STEP or self._began is None
                or self._now > self._began + timeouts.CANDIDATE):
            return False
        return not self.votes.promised.issuperset(
            (request.worker, request.owner) for _, request in self.came.values())

    @property
    def missing(self) -> str:
        """What it lacks, in words."""
        return (f"{self.votes} voted for this process, {self.votes.needed} are needed"
                if self._state.voters else
                "the state here names no worker that could decide: start that process again")

    def poll(self, now: float) -> None:
        """Ask the workers that have come; `now` in seconds of the monotonic clock."""
        self._now = now
        if now - self._asked > timeouts.VOTE_AGAIN:
            self._asked = now
            if self._began is None and self.came:
                self._began = now
            votes = self.votes
            for identity, (_, request) in self.came.items():
                self._socket.reaches(identity, m.encode(m.Elect(
                    votes.epoch, votes.since, self._state.next_seq.get(request.worker, 0))))

    def come(self, peer: Peer, request: m.Reattach) -> bool:
        """A worker cannot reach the server; False if it is none of those who have a say here: the
        processes that the state here names."""
        if (request.epoch != self.votes.since
                or (request.worker, request.owner) not in self._state.voters):
            return False
        self.came = {identity: one for identity, one in self.came.items()
                     if one[1].worker != request.worker}
        self.came[peer.identity] = peer, request
        return True

    def promised(self, peer: Peer, elected: m.Elected) -> None:
        """A worker has answered."""
        known, request = self.came.get(peer.identity, (None, None))
        if known and request and known.line is peer.line and elected.epoch == self.votes.epoch:
            self.votes.promised.add((request.worker, request.owner))

    def withdraw(self, reason: str) -> None:
        """The server is there again: give the workers back what they have promised."""
        self.votes.promised.clear()
        for identity in self.came:
            self._socket.reaches(identity, m.encode(m.NotServing(reason, self.votes.epoch)))


class Inquiry(ServerLink):
    """The question at an address which epoch of a run is served there, asked again and again."""

    def __init__(self, server: ServerSocket, host: str, port: int, run: str, secret: bytes):
        """`server`: whose token the question needs; `run`: the run's id; `secret`: the run's, by
        which an answer is proven."""
        super().__init__(server, host, port, secret)
        self._question = m.Ask(run, self.claim.nonce)
        self._asked_at = -math.inf

    def epoch(self, now: float) -> int | None:
        """The epoch that is served there; None: no answer has come (yet)."""
        if now - self._asked_at >= timeouts.INQUIRE_AGAIN:
            self._asked_at = now
            self.send(self._question)
        for frames in self.read():
            with contextlib.suppress(m.WireError):
                answer = m.decode(m.FromServer, frames[0].buffer)
                if isinstance(answer, m.NotServing):  # of anybody: for a line alone
                    self.says = answer.reason
                if isinstance(answer, m.Leading) and self.claim.answers(
                        answer.proof, "leading", answer.epoch):
                    return answer.epoch
        return None


class Election:
    """That of a server which serves, and whose standby is out of reach and holds a copy: it may
    take over, or have done so.

    votes: of the workers for this server
    since: when it began
    asked: whether they have been asked for any; then they decide, whatever is heard
    """

    def __init__(self, votes: Votes, inquiry: Inquiry, liveness: Liveness, beats: Beats,
                 now: float):
        """`inquiry`: at the standby, whose `liveness` and `beats` these are."""
        self.votes = votes
        self._inquiry = inquiry
        self._liveness = liveness
        self._beats = beats
        self.asked = False
        self._asked_at = 0.0
        self.since = now
        self._notice = Throttle(_NOTICE, now + _NOTICE)

    def served(self, now: float) -> int | None:
        """The epoch that is served there; None: no answer says so."""
        return self._inquiry.epoch(now)

    def why_alone(self, clock: Callable[[], float]) -> str | None:
        """Why this server serves, and the standby does not, in one line; None: that is not known.

        clock: it may be later when it is seen that the standby's address refuses connections
        """
        if self._inquiry.refused(clock()) and self._beats.fresh(clock()):
            return f"the standby at {self._inquiry.address} has ended"
        if self.votes.won:
            return f"{self.votes} voted for this server"
        return None

    def due(self, now: float) -> bool:
        """True when the workers are to be asked."""
        silent = now - self._liveness.heard >= timeouts.ELECTION
        if now - self._asked_at < timeouts.VOTE_AGAIN or not (silent or self.asked):
            return False
        self.asked = True
        self._asked_at = now
        return True

    def notice(self, now: float) -> str | None:
        """A line about it, now and then."""
        if not self._notice.due(now):
            return None
        why = self._inquiry.why
        return (f"the standby at {self._inquiry.address} is silent, and may have taken over: "
                f"{self.votes} are here, {self.votes.needed} are needed"
                + (f"; {why}" if why else ""))

    def close(self) -> None:
        self._inquiry.close()
