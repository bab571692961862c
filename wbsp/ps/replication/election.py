"""The election between two servers that cannot reach each other: the workers' votes decide.

A run has a server and at most one standby. Each has a state of the run and its epoch. If one is
silent, its process or the connection may have failed; in the second case both could serve, and the
run would have two histories. So a server needs one of these to serve alone:

- proof that the other's process has ended: its machine refuses a connection to its port, or another
  process has taken the port. The proof is valid for `PROOF` seconds from the last certain contact
  (`Beats`), because a process that was silent for longer may have served alone before it ended;
- votes of workers: of half of them or more for the server that serves, and of more than half for
  one that waits to serve, because the other half may have ended the run with the other server,
  which had a proof. Without workers, the server that serves continues, and one that waits to serve
  waits. A worker's process votes for only one of the servers that follow an epoch, so that not both
  can win. Only the processes in the state vote, each of which proves its identity: not processes
  that have taken over their indices since, nor strangers;
- that the other's process has ended, too late for a proof, and as many workers here, in any of
  their processes. What the other one did alone, workers know, and are given time to report. If
  they have died with it, it is lost. Workers that have voted for the other one
  count for the server that serves only where all are here: the other one may have been elected,
  and have ended the run without some.

The epochs of the two never meet: from epoch e of the server, the standby continues with e + 1, and
the server with e + 2, in all runs of a series (`wbsp.ps.series`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wbsp import timeouts
from wbsp.core.rules import RuleBroken
from wbsp.process.throttle import Throttle
from wbsp.ps.checkpoint.state import RunState, Voter
from wbsp.ps.series import STANDBY_STEP
from wbsp.ps.sessions.handlers import Peer
from wbsp.runlog.folder import SECRET
from wbsp.wire.liveness import Beats, Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.server_link import ServerLink
from wbsp.wire.sockets import ServerSocket

_NOTICE = 10.0  # seconds between two lines
NEW_PROCESSES = 4096  # that an election remembers, at most
_BEGUN = 1 << 52  # more than any other part of a rank


class Votes:
    """Votes of workers for one server.

    Attributes:
        epoch: of that server, once it is elected.
        since: epoch of the state that it continues from.
        waits: it does not serve yet.
    """

    def __init__(self, since: int, step: int, electorates: Iterable[Collection[Hashable]],
                 voiceless: Callable[[Any], bool] = lambda voter: False, waits: bool = False):
        """Start a vote.

        Args:
            since: epoch of the state that the server continues from.
            step: from that epoch to its own.
            electorates: the workers' processes in each state that the other server may have.
            voiceless: True for a voter unknown to the other server, which cannot count this vote.
                Exact only if the other server's states are known.

        Raises:
            RuleBroken: the server's epoch is not later than that of the state.
        """
        if step < STANDBY_STEP:
            raise RuleBroken(f"a server of epoch {since} continues with epoch {since + step}, "
                             "which is not later")
        self.since = since
        self.epoch = since + step
        # Of two servers that follow one state, one cannot have more than half of the votes while
        # the other has half. A server that has served continues with half, so that a run of two
        # workers outlives its standby.
        self._strict = waits or step == STANDBY_STEP
        self._voiceless = voiceless
        self._electorates = [frozenset(workers) for workers in electorates]
        self.promised: set[Hashable] = set()

    def take(self, voter: Hashable) -> None:
        """Count the vote of a worker's process."""
        self.promised.add(voter)

    def begin_anew(self, voters: Iterable[Hashable] = ()) -> None:
        """Count the votes of these processes only."""
        self.promised = set(voters)

    @property
    def won(self) -> bool:
        """True if more than half of each electorate have voted for this server; half, if it has
        served (`needed`)."""
        return all(self._suffices(len(self.promised & workers)
                                  + sum(map(self._voiceless, workers)), workers)
                   for workers in self._electorates)

    def _suffices(self, votes: int, workers: frozenset[Hashable]) -> bool:
        return 2 * votes > len(workers) or (not self._strict and 2 * votes == len(workers))

    def here(self, returned: Callable[[Any], bool], unnamed: int,
             declined: Collection[Hashable] = ()) -> bool:
        """Return whether enough workers are here, by their votes or as new processes; or all.

        Args:
            returned: true for a voter that a new process of its worker has replaced.
            unnamed: further new processes, whose workers are not known.
            declined: voters that are here, and have voted for the other server.
        """
        for workers in self._electorates:
            away = workers - self.promised
            back = {voter for voter in away if self._voiceless(voter) or returned(voter)}
            count = len(workers - away) + min(len(back) + unnamed, len(away))
            if not self._suffices(count, workers) and len(away - back - {*declined}) > unnamed:
                return False
        return True

    @property
    def needed(self) -> str:
        """The number of votes needed, in words."""
        return "more than half of them" if self._strict else "half of them"

    @property
    def voters(self) -> frozenset[Hashable]:
        """The workers' processes in the largest electorate."""
        return max(self._electorates, key=len)

    def __str__(self) -> str:
        return f"{len(self.promised & self.voters)} of {len(self.voters)} workers"


def rank_of(epoch: int, begun: bool, standby: bool = False) -> int:
    """Return the rank of a state of a run, as in `messages.Follow`.

    Of two states, the one with a version is the later one, whatever their epochs are: without one
    no worker can have trained. Then the epoch decides, and then a standby's is the later one.
    """
    return begun * _BEGUN + 2 * epoch + standby


def epoch_of(rank: int) -> int:
    """Return the epoch of the state with this rank."""
    return rank % _BEGUN // 2


def has_version(rank: int) -> bool:
    """Return whether the state with this rank has a version."""
    return rank >= _BEGUN


class Standing(NamedTuple):
    """The state of a run that a process could serve from, and its age.

    Attributes:
        step: from this epoch to its own.
        next_seq: worker -> number of its first push that is not in the state; as in `Ledger`.
        secret: of the run; None: of a release without secrets.
        begun: the state has a version; False: the run is to begin.
        fit: number of the run in its series.
    """

    run: str  # id
    epoch: int
    voters: frozenset[Voter]
    step: int
    next_seq: Mapping[int, int] = MappingProxyType({})
    secret: bytes | None = None
    begun: bool = True
    fit: int = 1

    @property
    def rank(self) -> int:
        """Rank of this state, as in `messages.Follow`."""
        return rank_of(self.epoch, self.begun, self.step == STANDBY_STEP)

    @classmethod
    def of(cls, run: dict[str, Any], state: RunState, step: int) -> Standing:
        """Make a standing from a run's settings and a checkpoint's state."""
        secret = run.get(SECRET)
        return cls(run["id"], run["epoch"], state.voters(run["workers"]), step, state.next_seq,
                   secret and bytes.fromhex(secret), fit=run.get("fit", 1))

    @classmethod
    def of_note(cls, run: dict[str, Any], step: int) -> Standing:
        """Make a standing from the settings of a run without a version.

        Its workers are known, and have no vote before they are members. Those without an index have
        numbers below 0: they are counted only. A run has no more workers than places, so that more
        of them stand for processes that have ended.
        """
        living = run.get("living", ())
        free = max(0, run["workers"] - len(living))
        workers = *living, *range(-min(len(run.get("nameless", ())), free), 0)
        return cls(run["id"], run["epoch"], frozenset((worker, "") for worker in workers), step,
                   secret=bytes.fromhex(run[SECRET]), begun=False, fit=run.get("fit", 1))


class Candidate:
    """The candidacy of a process to replace a server that is silent.

    Attributes:
        came: identity of a worker's socket -> a worker that has connected and proven its identity.
    """

    def __init__(self, state: Standing, socket: ServerSocket):
        self._socket = socket
        self._state = state
        self.votes = Votes(state.epoch, state.step, [state.voters], waits=True)
        self.came: dict[bytes, tuple[Peer, m.Reattach]] = {}
        self._asked = 0.0
        self._began: float | None = None  # time of the first request for votes
        self._now = 0.0

    @property
    def won(self) -> bool:
        """True if enough workers have voted for this process, at least one.

        Without votes the other server may have continued from a newer state, because this process
        does not serve. A restarted server with enough votes still waits for the other server while
        a worker withholds its vote because it knows of a newer durable state.
        """
        return bool(self.votes.promised) and self.votes.won and not self._withheld

    @property
    def _withheld(self) -> bool:
        """Return whether a connected worker has not voted, and may know a newer durable state."""
        if (self._state.step == STANDBY_STEP or self._began is None
                or self._now > self._began + timeouts.CANDIDATE):
            return False
        return not self.votes.promised.issuperset(
            (request.worker, request.owner) for _, request in self.came.values())

    @property
    def missing(self) -> str:
        """What this candidate lacks, in words."""
        return (f"{self.votes} voted for this process, {self.votes.needed} are needed"
                if any(owner for _, owner in self._state.voters) else
                "the state here names no worker that could decide: start that process again")

    def poll(self, now: float) -> None:
        """Request votes from the connected workers; `now` in seconds of the monotonic clock."""
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
        """Handle a worker that cannot reach the server; return whether it may vote.

        The processes in this process's state may vote.
        """
        if (request.epoch != self.votes.since
                or (request.worker, request.owner) not in self._state.voters):
            return False
        self.came = {identity: one for identity, one in self.came.items()
                     if one[1].worker != request.worker}
        self.came[peer.identity] = peer, request
        return True

    def promised(self, peer: Peer, elected: m.Elected) -> None:
        """Handle a worker's answer."""
        known, request = self.came.get(peer.identity, (None, None))
        if known and request and known.line is peer.line and elected.epoch == self.votes.epoch:
            self.votes.take((request.worker, request.owner))

    def begin_anew(self) -> None:
        """Forget the votes so far; `poll` requests them again."""
        self.votes.begin_anew()

    def withdraw(self, reason: str) -> None:
        """Release the workers' votes, because the server is reachable again."""
        self.begin_anew()
        for identity in self.came:
            self._socket.reaches(identity, m.encode(m.NotServing(reason, self.votes.epoch)))


class Inquiry(ServerLink):
    """A repeated query of an address for the epoch of a run that is served there, or of a later
    one of its series."""

    def __init__(self, server: ServerSocket, host: str, port: int, run: str, secret: bytes,
                 fit: int = 1):
        """Start the query.

        Args:
            server: its token authorizes the query.
            host: of the address.
            port: of the address.
            run: the run's id.
            secret: of the run, which proves an answer.
            fit: number of the run in its series.
        """
        super().__init__(server, host, port, secret)
        self._question = m.Ask(run, self.claim.nonce, fit)
        self._asked_at = -math.inf

    def epoch(self, now: float) -> int | None:
        """Return the epoch that is served there, or None without an answer."""
        if now - self._asked_at >= timeouts.INQUIRE_AGAIN:
            self._asked_at = now
            self.send(self._question)
        for frames in self.read():
            with contextlib.suppress(m.WireError):
                answer = m.decode(m.FromServer, frames[0].buffer)
                if isinstance(answer, m.NotServing):  # unproven: only for a console line
                    self.says = answer.reason
                if isinstance(answer, m.Leading) and self.claim.answers(
                        answer.proof, "leading", answer.epoch):
                    return answer.epoch
        return None


class Election:
    """The election of a serving server whose standby is unreachable and holds a snapshot.

    The standby may take over, or may have done so.

    Attributes:
        votes: of the workers for this server.
        since: begin of the election, seconds.
        asked: the workers were asked to vote; then only their votes decide.
    """

    def __init__(self, votes: Votes, inquiry: Inquiry, liveness: Liveness, beats: Beats,
                 now: float):
        """Start; `inquiry`, `liveness` and `beats` are those of the standby."""
        self.votes = votes
        self._inquiry = inquiry
        self._liveness = liveness
        self._beats = beats
        self.asked = False
        self._asked_at = 0.0
        self.since = now
        self._came: dict[int | bytes, float] = {}  # new process of a worker -> newest time
        self._declined: dict[Voter, float] = {}  # that has voted for the standby -> the same
        self._notice = Throttle(_NOTICE, now + _NOTICE)

    def served(self, now: float) -> int | None:
        """Return the epoch that the standby serves, or None without an answer."""
        return self._inquiry.epoch(now)

    def came(self, worker: int | None, own: bytes, now: float) -> None:
        """Handle a new process, of this worker or without an index; `own`: as in `Hello`."""
        if worker is not None or own in self._came or len(self._came) < NEW_PROCESSES:
            self._came[own if worker is None else worker] = now

    def answered(self, voter: Voter, elected: m.Elected, now: float) -> None:
        """Handle a member's answer to the request for its vote."""
        if elected.epoch == self.votes.epoch:
            self.votes.take(voter)
        elif elected.epoch == self.votes.since + STANDBY_STEP:
            self._declined[voter] = now

    def why_alone(self, clock: Callable[[], float], later: bool) -> str | None:
        """Return why this server serves and the standby does not, in one line, or None.

        Args:
            clock: returns the time, which is read again once the standby's address refuses
                connections.
            later: a worker knows a later server of the run.
        """
        refused = self._inquiry.refused(clock())
        if refused and self._beats.fresh(clock()):
            return f"the standby at {self._inquiry.address} has ended"
        if self.votes.won:
            return (f"{self.votes} voted for this server" if self.votes.voters else
                    "no worker has joined yet that could vote")
        if refused and not later and self._enough_are_here(clock()):
            return (f"the standby at {self._inquiry.address} has ended, and workers that it could "
                    "have served are here, or have been started again")
        return None

    def _enough_are_here(self, now: float) -> bool:
        """Return whether enough workers have connected since the standby's process has ended."""
        gone = self._inquiry.gone_since
        if gone is None or now < gone + timeouts.ELECTION:
            return False
        came = [process for process, at in self._came.items() if at > gone]
        named = {process for process in came if isinstance(process, int)}
        # what the standby did before its end, these would have reported by then
        declined = {voter for voter, at in self._declined.items() if at > gone + timeouts.ELECTION}
        return self.votes.here(lambda voter: voter[0] in named, len(came) - len(named), declined)

    def due(self, now: float) -> bool:
        """Return whether to ask the workers to vote now."""
        silent = now - self._liveness.heard >= timeouts.ELECTION
        if now - self._asked_at < timeouts.VOTE_AGAIN or not (silent or self.asked):
            return False
        self.asked = True
        self._asked_at = now
        return True

    def notice(self, now: float) -> str | None:
        """Return a line about the election, or None if the last was recent."""
        if not self._notice.due(now):
            return None
        why = self._inquiry.why
        return (f"the standby at {self._inquiry.address} is silent, and may have taken over: "
                f"{self.votes} voted for this server, {self.votes.needed} are needed"
                + (f"; {why}" if why else ""))

    def close(self) -> None:
        self._inquiry.close()
