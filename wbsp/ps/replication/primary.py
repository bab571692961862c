"""Replication to a server's standby, which makes versions durable.

A snapshot holds what a checkpoint does: a version, and the state with nothing pending, under a mark
of the ledger. So a standby that takes over continues as from a checkpoint, and workers resend their
later pushes. Snapshots are made after aggregation, one at a time: a slow standby receives fewer,
and delays no worker.

Between two runs of a series no version exists. The standby has the settings of the next run then,
and can begin it in place of a server that has ended. So that not both train it, a server admits
workers only when its standby knows that the run has begun.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wbsp import timeouts
from wbsp.core.state import Newest
from wbsp.core.store import Whole
from wbsp.limits import one_line
from wbsp.ps.checkpoint.snapshots import Snapshots
from wbsp.ps.checkpoint.state import Snapshot, Voter
from wbsp.ps.config import Reporter, RunInfo
from wbsp.ps.replication.election import (
    Election,
    Inquiry,
    Votes,
    epoch_of,
    has_version,
    rank_of,
)
from wbsp.ps.replication.snapshot import messages
from wbsp.ps.series import SERVER_STEP, STANDBY_STEP
from wbsp.ps.sessions.handlers import Handlers, Peer
from wbsp.ps.sessions.registry import SessionRegistry
from wbsp.ps.sessions.session import WorkerSession, disagreement, other_protocol
from wbsp.wire.addresses import split_address
from wbsp.wire.liveness import STANDBY, Beats, KnownPeer, Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Bond, answer
from wbsp.wire.sockets import ServerSocket

# It requests votes after `ELECTION` by its own clock. The last message it received answers a
# heartbeat.
_QUIET = timeouts.PROOF - timeouts.STANDBY_BEAT


@dataclass
class StandbySession(KnownPeer):
    """A standby; times are the server's own."""

    host: str
    port: int
    held: int  # number of the newest snapshot that it holds
    receiving: bool  # a snapshot is in flight, or may be until its next message
    returned: bool  # over a new connection, over which it has not reported its snapshot yet
    bond: Bond  # by which it proves its messages
    beats: Beats = field(default_factory=Beats)
    chunks: int = 0  # of snapshots that it has received
    moved: float = 0.0  # time of the newest of these, or of the begin of a snapshot
    beat: int = 0  # number of its newest heartbeat
    parting: bool = False  # the run is done, and ends without it
    asked: int | None = None  # heartbeat after which it was asked to discard its snapshots
    may_begin: bool = False  # the run, in place of this server, as far as it knows
    told: int = 0  # heartbeat after which it received the message that the run has begun
    missed: float = -math.inf  # end of the newest silence in which it could have been elected

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def hear(self, held: m.Held, now: float) -> None:
        """Note its heartbeat."""
        if self.quiet(now):
            self.missed = now
        self.liveness.hear(now)
        self.beat = held.beat
        if held.chunks != self.chunks:
            self.chunks, self.moved = held.chunks, now
        self.beats.sent(held.beat, now)
        self.beats.answered(held.answered)

    def woke(self, now: float) -> None:
        """Note that this process was suspended: messages from before prove nothing any more."""
        if self.quiet(now):
            self.missed = now
        self.beats.doubt()
        self.liveness.woke(now)

    def receives(self, now: float) -> None:
        """Note that a snapshot is in transit."""
        self.receiving, self.moved = True, now

    def holds(self, number: int) -> None:
        """Note the number of its newest snapshot; none is in flight any more."""
        self.held = number
        self.receiving = self.returned = False

    def stalls(self, now: float, parting: bool) -> None:
        """Note that no part of a snapshot reaches it; `parting`: as the attribute."""
        self.moved, self.parting = now, parting

    def is_asked_to_discard(self) -> None:
        """Note that it is asked, behind its newest heartbeat, to discard its snapshots."""
        self.asked = self.beat

    def is_told_of_begin(self) -> None:
        """Record that the start of the run is sent to it, behind the newest heartbeat."""
        self.told = self.beat

    def let_begin(self, may: bool) -> bool:
        """Note whether it may begin the run in place of this server, and return it."""
        self.may_begin = may
        return may

    def quiet(self, now: float) -> bool:
        """Return whether the standby was silent so long that it may have been elected meanwhile."""
        return now - self.liveness.heard > _QUIET


def objection(request: m.Follow, info: RunInfo) -> str | None:
    """Return why a process cannot be the standby of this run, in one line, or None."""
    settings = info.settings.terms | info.config.terms
    if reason := disagreement("the standby", "standby", request.settings, settings):
        return reason
    lacks = [name for name in settings if name not in request.settings]
    if lacks:
        return (f"the standby and the server disagree: the server has {lacks[0]}="
                f"{settings[lacks[0]]!r}, and the standby has none; start both with the same value")
    return None if request.run in ("", info.run) else (
        f"the standby holds a state of run {request.run}, not of {info.run}")


@dataclass
class SentCopy:
    """A snapshot that was made for the standby.

    Attributes:
        newest: `Engine.newest` at that time.
        voters: the workers' processes at that time.
        snapshot: itself, until the standby holds it: it is sent again over a new connection.
        lent: memory that the standby may serve from; it is not written to while held.
    """

    mark: int
    newest: Newest
    voters: frozenset[Voter]
    snapshot: Snapshot | None
    lent: list[np.ndarray | None] = field(default_factory=list)

    def lend(self, vector: np.ndarray | None) -> None:
        """Keep the memory that was handed over for it, too; None: none was."""
        self.lent.append(vector)

    def arrived(self) -> None:
        """Note that the standby holds it."""
        self.snapshot = None


class Replication:
    """The server's side of its standby, if it has one; used by the event loop.

    Attributes:
        superseded: why this server no longer serves; None: it serves.
    """

    def __init__(self, info: RunInfo, record: Callable[..., dict[str, Any]], socket: ServerSocket,
                 sessions: SessionRegistry, reporter: Reporter):
        self._info = info
        self._run_settings = record
        self._socket = socket
        self._sessions = sessions
        self._clock = reporter.clock
        self._say = reporter.say
        self._event = reporter.event
        self._snapshots: Snapshots  # from `begin` on
        self._begun = False
        self._standby: StandbySession | None = None
        self._copies: dict[int, SentCopy] = {}  # number -> snapshot that the standby may hold
        self._election: Election | None = None
        # Votes for another process that could replace this one: it lacks these.
        self._beside: Votes | None = None
        self._inquiry: Inquiry | None = None  # at that process, until this one trains
        self._number = 0  # of the newest snapshot
        self._full = False  # the disk
        self._lost_at = -math.inf
        self._doubted_at = -math.inf  # a worker reported a later server
        # Time until which a standby may begin the run in place of this server, if this one ends,
        # because it does not know that the run has begun. Its proof expires before, by any clock.
        self._may_begin_until = -math.inf
        self._later = 0  # epoch of the latest server that a worker has proven to know
        self.superseded: str | None = None

    @property
    def alone(self) -> bool:
        """True if no standby holds a snapshot, so that checkpoints decide what is durable."""
        return not self._copies

    @property
    def holder(self) -> str | None:
        """Address of the standby, if it may hold a snapshot."""
        return None if self.alone or self._standby is None else str(self._standby)

    @property
    def doubt(self) -> str | None:
        """Why another server may serve the run, in one line; None: this one does."""
        standby = self._standby
        if self._election is not None:
            return (f"the standby at {standby} is silent, and may have taken over: checking which "
                    "server serves")
        if standby is not None and not self.alone and (
                standby.beats.touch < standby.missed or standby.quiet(self._clock.now())):
            return (f"the standby at {standby} was silent for a while, and may have taken over: "
                    "checking which server serves")
        return None

    @property
    def voters(self) -> set[int]:
        """The workers that decide which server serves; none: there is no doubt."""
        if self._election is None:
            return set()
        return {worker for copy in self._copies.values() for worker, _ in copy.voters}

    @property
    def settled(self) -> bool:
        """True if the standby holds the newest version and its state, or no standby exists."""
        standby = self._standby
        return self.alone or bool(
            standby and not standby.receiving and self._election is None
            and standby.held in self._copies
            and self._copies[standby.held].newest >= self._snapshots.engine.newest)

    @property
    def copying(self) -> bool:
        """True while a snapshot is in flight; one that does not progress is given up."""
        return bool(self._standby and self._standby.receiving and self._election is None)

    def expected(self) -> bool:
        """True if the run's other server was lost just now and may reconnect.

        It would take the end of the run for the loss of this server.
        """
        return self._standby is None and self._clock.now() < self._lost_at + timeouts.STANDBY_BACK

    def lost(self) -> None:
        """Handle the end of the run's other server."""
        self._lost_at = self._clock.now()

    def knows(self, identity: bytes) -> bool:
        """Return whether this is the standby's socket."""
        return self._standby is not None and self._standby.identity == identity

    def begin(self, snapshots: Snapshots, anew: bool = False) -> None:
        """Start to replicate a run's versions; `anew`: the first one is W_0."""
        self._snapshots = snapshots
        self._begun = True
        if self._standby is not None and self._standby.may_begin:
            self._standby.is_told_of_begin()
            self.noted()
        if anew:
            self._record(beside=None)  # the other process has no version of this run
        if (beside := self._run_settings().get("beside")) is not None:
            workers = snapshots.state(self._clock.run()).voters(self._info.config.worker_num)
            self._beside = Votes(self._info.epoch, STANDBY_STEP, [workers])
            self._inquiry = self._inquire(*split_address(beside))

    def chooses(self, worker: int, own: bytes) -> str | None:
        """Note that this index was chosen for a process, before the process learns it.

        Returns:
            Why the disk does not take that, in one line; None: it has.
        """
        try:
            new = self._info.series.chooses(worker, own, self._run_settings)
        except OSError as error:
            return f"cannot write run.json: {error.strerror or error}"
        if new:
            self.noted()
        return None

    @property
    def cleared(self) -> bool:
        """True if no standby would begin the run in place of this server, if that ended now."""
        return self._clock.now() >= self._may_begin_until

    def noted(self) -> None:
        """Send changed settings of the run to the standby."""
        if self._standby is not None and self._election is None:
            self._send(m.Recorded(json.dumps(self._run_settings()), self._waits))

    @property
    def _waits(self) -> bool:
        """Return whether a standby may begin the run in place of this server, if that ends."""
        return not self._begun and self._info.series.fit > 1

    @property
    def followed(self) -> bool:
        """True if a standby follows this server."""
        return self._standby is not None

    def end(self, reason: str, follows: bool = False) -> None:
        """End the run in good order.

        `follows`: another run follows, which the standby may begin from here on; so run.json names
        it before. One that the disk does not take follows that run as any new standby does.
        """
        if self._standby is not None and self._election is None and (
                not follows or self.named()):
            self._send(m.Over(reason, follows))

    def all_have_it(self) -> None:
        """Note that all workers and the standby have the final version."""
        if self._standby is not None and not self.alone and self.settled:
            self._send(m.AllHave(self._standby.held))

    def handlers(self) -> Handlers:
        """Return the handlers for a standby's messages and for workers' votes."""
        return Handlers({m.Follow: self.follow, m.Held: self.held, m.Ask: self.ask},
                        {m.Elected: self.elected})

    def follow(self, peer: Peer, request: m.Follow) -> None:
        """Handle a process that requests to be the standby.

        It may also be the earlier standby of a run that has ended. It is challenged until it has
        proven that it knows the run's secret, or the key of a first contact.

        Raises:
            WireError: the message is invalid.
        """
        identity = peer.identity
        host = peer.host
        now = self._clock.now()
        old = self._standby
        info = self._info
        if reason := other_protocol("the standby", request.protocol):
            self._sessions.answer(identity, m.Refused(reason))
            self._sessions.log.count(reason)
            return
        bond = self._sessions.proven(identity, request, info.secret, self._socket.contact)
        if bond is None:
            return
        if bond.key == info.secret and (ahead := self._ahead(request)) is not None:
            if ahead == 1 and not has_version(request.rank):
                self._sessions.send(identity, m.NotServing(
                    "the server's next run has not begun yet"))
            else:
                self._outrun(f"{host}:{request.port}", request.fit)
                if not ahead:  # it continues above this epoch, for which a welcomed worker searches
                    self._sessions.send(identity, m.NotServing(
                        self.superseded or "", rank=rank_of(info.epoch, False)))
            return
        if request.run not in ("", info.run) and bond.key == info.secret:
            self._sessions.send(identity, m.Over("its run has ended, and another has begun", True))
            return
        reason = objection(request, info)
        if request.run == info.run and epoch_of(request.rank) > self._info.epoch:
            if bond.key != info.secret:
                reason = (f"the standby has a state of epoch {epoch_of(request.rank)}, later than "
                          f"this server's {self._info.epoch}, but lacks the run's secret: start it "
                          "before this server")
            elif has_version(request.rank) or not self._begun:
                self._taken_over(epoch_of(request.rank), f"{host}:{request.port}")
                return
            elif not reason and self.alone and not self._continue_above(epoch_of(request.rank)):
                return  # it will ask again
        if (request.run == info.run and self._begun and bond.key == info.secret
                and request.rank == rank_of(info.epoch, True)):
            reason = reason or (
                f"the standby has a state of its own of epoch {info.epoch}, in which this server "
                "serves: no two processes have one epoch, unless one folder is a copy of the "
                "other; start the standby with an empty folder")
        if reason:
            self._sessions.send(identity, m.Refused(one_line(reason)))
            self._tell(f"refused: {reason}")
            return
        if old is not None and old.identity != identity:
            if (old.host, old.port) == (host, request.port) and self._has_ended(old, request, now):
                self._forget(now)
                if self._standby is None:  # else the disk is full: it will ask again
                    self._may_begin_until = -math.inf
                    self._tell(f"the standby at {old} was started again")
                    self.follow(peer, request)
                return
            if self.alone and now - old.liveness.heard > STANDBY.quiet:
                self._tell(f"the standby at {old} holds no snapshot and is silent: replacing it")
                self._standby = None
            elif self._election is not None or old.reaches(self._socket):
                self._sessions.send(identity, m.NotServing(
                    f"workers know a server of this run of epoch {self._later}, later than epoch "
                    f"{info.epoch} of this one: if that was at {old}, start it with --resume"
                    if self._later > info.epoch else f"there is a standby at {old}"))
                return
            else:
                self._lose(old, now)
                self.follow(peer, request)
                return
        self._end_election()
        again = old is not None and old.identity == identity
        held = old.held if old is not None and again else 0
        self._standby = StandbySession(identity, Liveness(STANDBY, now), host, request.port, held,
                                       again, again, bond, moved=now)
        self._sessions.queues.drop_transfer(identity)
        way = self._sessions.lending.follow(request.socket)
        self._tell(f"standby at {self._standby}, over {way}", "standby",
                   address=str(self._standby))
        self._let_begin(self._standby, now)
        self._send(m.Following(json.dumps(self._run_settings()), self._standby.may_begin))

    def _ahead(self, request: m.Follow) -> int | None:
        """Return by how many runs of the series a proven process is ahead of this server, or None.

        0: it has a version of the run, and this server waits for that one's first.
        """
        ahead = request.fit - self._info.series.fit
        begun = request.run == self._info.run and has_version(request.rank) and not self._begun
        return ahead if ahead > 0 else 0 if begun else None

    def _let_begin(self, standby: StandbySession, now: float) -> None:
        """Have the standby begin the run in place of this server, if that ends before.

        A later server of this folder must ask there first.
        """
        if standby.let_begin(self._waits and self._record(standby=str(standby))):
            self._may_begin_until = now + timeouts.ELECTION

    def _has_ended(self, old: StandbySession, request: m.Follow, now: float) -> bool:
        """Return whether the standby has ended, and has not served, as one at its address proves.

        Only one process can listen there, so the snapshots of the old one are lost. If that had
        served from one, the new one would have the later state, or workers would know. Without a
        version it has no such state, whatever its epoch is: it may have waited for this fit.
        """
        epoch = self._info.epoch
        older = epoch_of(request.rank) < epoch or not has_version(request.rank)
        return self.alone or old.beats.fresh(now) or (older and self._later <= epoch)

    def came(self, worker: int | None, own: bytes) -> None:
        """Handle a worker's new process that connects while another server may serve.

        It replaces a process that could vote, unless that is still connected.
        """
        old = None if worker is None else self._sessions.of(worker)
        if self._election is not None and not (old and self._sessions.reaches(old)):
            self._election.came(worker, own, self._clock.now())

    def held(self, peer: Peer, held: m.Held) -> None:
        """Handle the standby's heartbeat, with the number of the snapshot that it holds.

        Raises:
            WireError: this snapshot was never made.
        """
        standby = self._standby
        now = self._clock.now()
        if (standby is None or standby.identity != peer.identity
                or not standby.bond.proves(held.proof, "held", held.number, held.beat,
                                           held.answered)):
            self._sessions.answer(peer.identity, m.Unknown())
            return
        standby.hear(held, now)
        self._send(m.Alive(held.beat))
        if (election := self._election) is None:
            self._release(standby.beats.touch)
        elif not election.asked and standby.beats.touch >= election.since:
            self._end_election()  # this server was suspended
        if standby.asked is not None and held.answered > standby.asked and not held.number:
            self._forget(now)
            return
        if standby.may_begin:
            self._hear_of_begin(standby, held, now)
        if held.number <= standby.held:
            if standby.returned:  # a part of the snapshot in flight is lost
                standby.holds(standby.held)
                self._send_again(standby)
            return
        copy = self._copies.get(held.number)
        if copy is None:
            raise m.WireError(f"the standby holds snapshot {held.number}, which was never made")
        if not standby.held:
            self._tell(f"the standby at {standby} holds version {copy.newest.version}")
        standby.holds(held.number)
        copy.arrived()
        # the message may be older than the next snapshot, which is in flight or has arrived
        self._copies = {number: made for number, made in self._copies.items()
                        if number >= held.number}
        self._snapshots.held(copy.mark)

    def _hear_of_begin(self, standby: StandbySession, held: m.Held, now: float) -> None:
        """Note by its heartbeat whether the standby knows that the run has begun."""
        may = standby.let_begin(not self._begun
                                or not (held.number or held.answered > standby.told))
        self._may_begin_until = now + timeouts.ELECTION if may else -math.inf

    def ask(self, peer: Peer, ask: m.Ask) -> None:
        """Answer a server that has lost its standby and asks which server serves.

        It may have slept through the rest of its run: here is a later one of the series, then.
        """
        info = self._info
        serves = self._begun if ask.run == info.run else info.series.had(ask.run, ask.fit)
        self._sessions.answer(peer.identity, m.Leading(
            info.epoch, proof=answer(info.secret, ask.nonce, "leading", info.epoch))
            if serves else m.NotServing("another run is served here"))

    def hear_of(self, epoch: int, worker: int) -> None:
        """Handle a worker that knows a later server of this run: check whether that serves."""
        now = self._clock.now()
        self._later = max(self._later, epoch)
        if (self.superseded is not None or self._election is not None
                or now < self._doubted_at + timeouts.LOOKED_INTO):
            return
        self._doubted_at = now
        self._tell(f"worker {worker} knows a server of this run of epoch {epoch}, later than epoch "
                  f"{self._info.epoch} of this one: "
                  + ("refusing the worker; start that server again" if self.alone
                     else f"asking the standby at {self._standby}"))
        if self._standby is not None and not self.alone:
            self._doubt(self._standby, now)

    def woke(self, now: float) -> None:
        """Handle the end of a suspension: earlier messages prove nothing any more."""
        if self._standby is not None:
            self._standby.woke(now)

    def elected(self, session: WorkerSession, elected: m.Elected) -> None:
        """Handle a member's vote."""
        owner = self._info.owners.get(session.worker)
        if self._election is not None and owner is not None:
            self._election.answered((session.worker, owner.owner), elected, self._clock.now())

    def poll(self) -> None:
        """Do the periodic work: connection, snapshots, election."""
        standby = self._standby
        now = self._clock.now()
        if self.superseded is not None:
            return
        if self._beside is not None:
            self._rule_out(self._beside)
        if self._inquiry is not None:
            self._look_beside(self._inquiry, now)
            if self.superseded is not None:
                return
        if standby is None:
            self._disown()
            return
        if self._election is not None:
            self._settle(self._election, standby, now)
            return
        if standby.lost(self._socket, now):
            self._lose(standby, now)
            return
        if (standby.receiving and now - standby.moved > timeouts.SNAPSHOT_STALLED
                and now - standby.liveness.heard < timeouts.STANDBY_BACK):
            self._stalled(standby, now)
            return
        if standby.parting:
            self._part(standby)

    @property
    def parting(self) -> bool:
        """True if the run ends without its standby, which no part of a snapshot reaches."""
        return self._standby is not None and self._standby.parting

    @property
    def free(self) -> bool:
        """True if a standby can be sent a snapshot now."""
        standby = self._standby
        return bool(self._begun and standby and self._election is None
                    and self.superseded is None and not (standby.receiving or standby.parting))

    def wants(self, now: float) -> bool:
        """Return whether the standby lacks the newest version, or its state."""
        copy = None if self._standby is None else self._copies.get(self._standby.held)
        return copy is None or self._snapshots.engine.newest > copy.newest

    def _stalled(self, standby: StandbySession, now: float) -> None:
        """Handle a snapshot of which no part reaches a running standby.

        While workers train, the standby's older snapshot counts, because it may serve from that. A
        run that is done ends without the standby, with its consent or without an answer.
        """
        done = self._snapshots.engine.done
        self._say(f"no part of a snapshot reached the standby at {standby} for "
                  f"{timeouts.SNAPSHOT_STALLED:g} s; "
                  + ("ending without it" if done else
                     "workers keep newer pushes; check the network to it, or end it"))
        if done and standby.parting:
            self._forget(now)
        standby.stalls(now, parting=done)

    def _part(self, standby: StandbySession) -> None:
        """End the run without a running standby.

        At each moment, exactly one state must exist from which the run could continue if its server
        were lost. First the last version is written to disk; then the standby discards its
        snapshot, as for a server that continues alone; `held` then forgets it.
        """
        if self._snapshots.saved and standby.asked is None:
            standby.is_asked_to_discard()
            self._sessions.queues.drop_transfer(standby.identity)
            epoch = self._info.epoch + SERVER_STEP
            self._send(m.Following(json.dumps(self._run_settings() | {"epoch": epoch})))

    def named(self) -> bool:
        """Return whether run.json names the standby, so that a later server of this folder asks
        there, however this one ends."""
        return not self.alone or self._record(standby=str(self._standby))

    def take(self, snapshot: Snapshot) -> None:
        """Send the standby a snapshot."""
        standby = self._standby
        assert standby is not None
        self._number += 1
        self._copies[self._number] = SentCopy(
            snapshot.mark, snapshot.newest,
            snapshot.state.voters(self._info.config.worker_num), snapshot)
        self._transfer(standby, self._number, snapshot)

    def _send_again(self, standby: StandbySession) -> None:
        """Send the snapshot that was in flight when the connection broke.

        The file may have it. Of what neither holds, workers keep the part before a snapshot apart
        from the part after it only until the next one is made: see `ResendBuffer`.
        """
        number = max(self._copies, default=0)
        if number > standby.held and (snapshot := self._copies[number].snapshot) is not None:
            self._transfer(standby, number, snapshot)

    def _transfer(self, standby: StandbySession, number: int, snapshot: Snapshot) -> None:
        """Send the standby a snapshot, now or when the shards have sent it."""
        # without its tensors: a snapshot that its own future holds would stay in memory
        state, layout, frozen = snapshot.state, snapshot.layout, snapshot.frozen
        standby.receives(self._clock.now())

        def send(future: Future[Whole]) -> None:
            made = self._copies.get(number)
            if made is not None and self._standby is standby and future.exception() is None:
                whole = future.result()
                lent, segment = self._sessions.lending.copy(whole.snapshot.vector)
                made.lend(lent)
                self._sessions.queues.transfer(standby.identity, messages(
                    number, layout, state, whole, segment, frozen,
                    with_frozen=not standby.held), self._clock.now())

        snapshot.whole.add_done_callback(send)

    def _disown(self) -> None:
        """Note that no standby can have a later state of the run, so that a later server of this
        folder need not ask there."""
        if (self._begun and self.alone and self.cleared
                and self._run_settings().get("standby") is not None):
            self._record(standby=None)

    def _rule_out(self, votes: Votes) -> None:
        """Note that the other process can no longer win, once most workers have voted here.

        A server that is started later need not ask that process.
        """
        owners = self._info.owners
        votes.begin_anew(
            (session.worker, owners[session.worker].owner) for session in self._sessions
            if session.worker in owners and session.plane is not None
            and (session.returning is None or session.returning.answer is not None))
        if votes.won and self._record(beside=None):
            self._beside = None

    def _look_beside(self, inquiry: Inquiry, now: float) -> None:
        """Before training, yield to the other process if workers have elected that.

        This server was unreachable for them meanwhile, and has decided nothing.
        """
        epoch = inquiry.epoch(now)
        if epoch is not None and epoch > self._info.epoch:
            self._taken_over(epoch, inquiry.address)
        elif self._beside is not None and not self._snapshots.engine.started:
            return
        inquiry.close()
        self._inquiry = None

    # A standby that is unreachable.

    def _lose(self, standby: StandbySession, now: float) -> None:
        if self.alone:
            self._tell(f"lost the standby at {standby} before its first snapshot",
                       "standby_lost", address=str(standby))
            self._standby = None
            return
        self._tell(f"the standby at {standby} is unreachable; checking whether its process "
                   "has ended",
                   "standby_lost", address=str(standby))
        self._doubt(standby, now)

    def _doubt(self, standby: StandbySession, now: float) -> None:
        """Determine which of the two serves."""
        votes = Votes(self._info.epoch, SERVER_STEP,
                      [copy.voters for copy in self._copies.values()],
                      lambda voter: voter[1] == "")
        inquiry = self._inquire(standby.host, standby.port)
        self._election = Election(votes, inquiry, standby.liveness, standby.beats, now)

    def _inquire(self, host: str, port: int) -> Inquiry:
        """Ask the process at this address whether it serves."""
        info = self._info
        return Inquiry(self._socket, host, port, info.run, info.secret, info.series.fit)

    def _settle(self, election: Election, standby: StandbySession, now: float) -> None:
        """Settle the election if it is decided."""
        epoch = election.served(now)
        if epoch is not None and epoch > self._info.epoch:
            self._taken_over(epoch, str(standby))
        elif reason := election.why_alone(self._clock.now, self._later > self._info.epoch):
            self._forget(now)
            if self._election is None:
                self._tell(f"{reason}; continuing without a standby")
        elif election.due(now):
            ledger = self._snapshots.engine.ledger
            self._tell_members(lambda worker: m.Elect(
                election.votes.epoch, election.votes.since, ledger.next_seq(worker)))
            if line := election.notice(now):
                self._tell(line)

    def _end_election(self) -> None:
        if self._election is None:
            return
        if self._election.asked:  # votes for this server are void, too: see `_release`
            for session in self._sessions:
                session.note_vote(since=self._clock.now())
        self._election.close()
        self._election = None

    def _forget(self, now: float) -> None:
        """Discard the standby's snapshots: they are lost, or must not be used."""
        epoch = self._info.epoch + SERVER_STEP
        if not (self.alone or self._record(standby=None, epoch=epoch)):
            return
        self._end_election()
        self._standby = None
        if self.alone:
            return
        self._copies.clear()
        self.lost()
        self._event("alone", epoch=epoch)
        self._lead(epoch)

    def _lead(self, epoch: int) -> None:
        """Serve in this epoch, which is in run.json, from here on."""
        self._info.lead(epoch)
        self._tell_members(lambda worker: m.Leading(epoch, self._info.ticket(worker)))
        self._snapshots.decides()

    def _continue_above(self, epoch: int) -> bool:
        """Continue in an epoch above that of a process that has no version of this run.

        A worker that it has welcomed searches for its epoch, or a later one. Return False if the
        disk fails: try again.
        """
        own = self._info.series.next_epoch(epoch, STANDBY_STEP)
        if done := self._record(epoch=own):
            self._lead(own)
        return done

    def _record(self, **changes: Any) -> bool:
        """Write changes of the run's settings; return False if the disk fails: try again."""
        try:
            self._run_settings(**changes)
        except OSError as error:
            if not self._full:
                self._tell(f"cannot write run.json: {error.strerror}; trying again")
            self._full = True
            return False
        self._full = False
        return True

    def _taken_over(self, epoch: int, address: str) -> None:
        self._supersede(f"the server at {address} has taken over (epoch {epoch}, here "
                        f"{self._info.epoch})")

    def _outrun(self, address: str, fit: int) -> None:
        """Yield to a process with a later state of the series, which serves once this one ends."""
        self._record(beside=address)  # a later server of this folder asks there first
        here = self._info.series.fit
        self._supersede(f"the standby at {address} has a version of fit {fit}, and this server "
                        "waits for its first one" if fit == here else
                        f"the standby at {address} is at fit {fit}, and this server is at fit "
                        f"{here}")

    def _supersede(self, reason: str) -> None:
        self.superseded = reason
        for session in list(self._sessions):
            self._sessions.send(session.identity, m.NotServing(self.superseded))

    def _release(self, touch: float) -> None:
        """Release the votes of reconnected workers, because the standby followed this server.

        Their votes for the standby before that time are void, and they may vote again.
        """
        for session in self._sessions:
            if session.attached_at is not None and session.attached_at <= touch:
                session.note_vote(since=None)
                self._sessions.send(session.identity, m.Leading(
                    self._info.epoch, self._info.ticket(session.worker)))

    def _tell_members(self, message: Callable[[int], m.Message]) -> None:
        for session in self._sessions:
            if session.plane is not None:
                self._sessions.send(session.identity, message(session.worker))

    def _tell(self, text: str, kind: str = "", **facts: Any) -> None:
        self._sessions.log.tell("the standby", text, kind, **facts)

    def _send(self, message: m.Message) -> None:
        assert self._standby is not None
        self._sessions.send(self._standby.identity, message)
