"""A server's standby: it is sent the newest version again and again, and what it holds is durable.

A copy is what a checkpoint is: a version, and the state of which nothing is pending, under a mark
of the ledger. So a standby that takes over goes on as from a checkpoint, and workers send it what
they have been answered since. Copies are made after aggregation, one at a time: a slow standby gets
fewer, and delays no worker.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.store import Whole
from wbsp.limits import one_line
from wbsp.ps.checkpoint.state import RunState, Voter
from wbsp.ps.checkpoint.writer import Checkpoints
from wbsp.ps.config import Reporter, RunInfo
from wbsp.ps.replication.election import SERVER_STEP, STANDBY_STEP, Election, Inquiry, Votes
from wbsp.ps.replication.snapshot import messages
from wbsp.ps.sessions.handlers import Handlers, Peer
from wbsp.ps.sessions.registry import SessionRegistry
from wbsp.ps.sessions.session import WorkerSession, disagreement, other_protocol
from wbsp.tensors.frozen import NOTHING, FrozenValues
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.addresses import split_address
from wbsp.wire.liveness import STANDBY, Beats, Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Bond, answer
from wbsp.wire.sockets import ServerSocket

# Settings that no flag of the standby gives.
_OF_THE_SERVER = {"folder", "path", "id", "runs", "series", "fit"}


@dataclass
class StandbySession:
    """A standby; times are the server's own."""

    identity: bytes  # of its socket
    host: str
    port: int
    liveness: Liveness
    held: int  # number of the newest copy that it holds
    receiving: bool  # a copy is on its way, or may be; then its next word says
    returned: bool  # over a new connection; it has not said since what it holds
    bond: Bond  # by which it proves what it says
    beats: Beats = field(default_factory=Beats)
    chunks: int = 0  # of copies that have come there
    moved: float = 0.0  # time of the newest of these, or of the begin of a copy
    beat: int = 0  # number of its newest sign of life
    parting: bool = False  # the run is done, and ends without it
    asked: int | None = None  # to hold nothing any more, behind the answer to this sign of life

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def objection(request: m.Follow, info: RunInfo) -> str | None:
    """Why a process cannot be the standby of such a run, in one line; None if it can."""
    settings = info.settings | info.config.terms
    if reason := disagreement("the standby", "standby", request.settings, settings):
        return reason
    lacks = [name for name in settings if name not in {*_OF_THE_SERVER, *request.settings}]
    if lacks:
        return (f"the standby and the server disagree: the server has {lacks[0]}="
                f"{settings[lacks[0]]!r}, and the standby has none; start both with the same value")
    return None if request.run in ("", info.run) else (
        f"the standby holds a state of run {request.run}, not of {info.run}")


class Source(NamedTuple):
    """What copies are made of. `state`: as in `Checkpoints`, without a word in the log."""

    engine: Engine
    layout: list[TensorSpec]
    state: Callable[[float], RunState]
    checkpoints: Checkpoints
    frozen: FrozenValues = NOTHING


@dataclass
class SentCopy:
    """A copy that was made for it.

    newest: as of `Engine`, then
    voters: the workers' processes that there were then
    lent:   memory that the standby may serve from: held, it is not written to
    """

    mark: int
    newest: tuple[int, bool]
    voters: frozenset[Voter]
    lent: np.ndarray | None = None


class Replication:
    """The server's side of its standby, if there is one; used by the event loop.

    superseded: why this server serves no longer; None: it does
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
        self._source: Source  # from `begin` on
        self._begun = False
        self._standby: StandbySession | None = None
        self._copies: dict[int, SentCopy] = {}  # number -> copy that the standby may hold
        self._election: Election | None = None
        # Promises to another process that could serve in this one's place: what it lacks.
        self._beside: Votes | None = None
        self._inquiry: Inquiry | None = None  # at that process, until this one trains
        self._number = 0  # of the newest copy
        self._full = False  # the disk
        self._lost_at = -math.inf
        self._doubted_at = -math.inf  # a worker spoke of a later server
        self.superseded: str | None = None

    @property
    def alone(self) -> bool:
        """True if no standby holds anything, so that checkpoints decide what is durable."""
        return not self._copies

    @property
    def holder(self) -> str | None:
        """Address of the standby, if it may hold something."""
        return None if self.alone or self._standby is None else str(self._standby)

    @property
    def doubt(self) -> str | None:
        """Why it is not certain that this server serves, in one line; None: it is."""
        if self._election is None:
            return None
        return (f"the standby at {self._standby} is silent, and may have taken over: finding out "
                "who serves")

    @property
    def settled(self) -> bool:
        """True if the newest version is held by the standby, or there is none; and if it is the
        last, that it is."""
        standby = self._standby
        return self.alone or bool(
            standby and not standby.receiving and self._election is None
            and standby.held in self._copies
            and self._copies[standby.held].newest >= self._source.engine.newest)

    @property
    def copying(self) -> bool:
        """True while a copy is on its way, which ends: it moves, or is given up."""
        return bool(self._standby and self._standby.receiving and self._election is None)

    def expected(self) -> bool:
        """True if the run's other server, lost just now, may be on its way back: it would take the
        end of the run for the death of this server."""
        return self._standby is None and self._clock.now() < self._lost_at + timeouts.STANDBY_BACK

    def lost(self) -> None:
        """The run's other server has ended."""
        self._lost_at = self._clock.now()

    def knows(self, identity: bytes) -> bool:
        """True for the standby's socket."""
        return self._standby is not None and self._standby.identity == identity

    def begin(self, source: Source) -> None:
        """There is a version to be copied."""
        self._source = source
        self._begun = True
        if (beside := self._run_settings().get("beside")) is not None:
            workers = source.state(self._clock.run()).voters(self._info.config.worker_num)
            self._beside = Votes(self._info.epoch, STANDBY_STEP, [workers])
            self._inquiry = Inquiry(self._socket, *split_address(beside), self._info.run,
                                    self._info.secret)

    @property
    def followed(self) -> bool:
        """Whether there is a standby."""
        return self._standby is not None

    def end(self, reason: str, follows: bool = False) -> None:
        """The run has ended in good order; `follows`: another one is to come."""
        if self._standby is not None and self._election is None:
            self._send(m.Over(reason, follows))

    def all_have_it(self) -> None:
        """All workers have the final version, and so has the standby."""
        if self._standby is not None and not self.alone and self.settled:
            self._send(m.AllHave(self._standby.held))

    def handlers(self) -> Handlers:
        """The messages of a standby, and of workers that choose between the two servers."""
        return Handlers({m.Follow: self.follow, m.Held: self.held, m.Ask: self.ask},
                        {m.Elected: self.elected})

    def follow(self, peer: Peer, request: m.Follow) -> None:
        """A process wants to be the standby; or has been it, and not heard that its run has ended.

        It is challenged until it has proven that it knows the run's secret, or the key of a first
        contact. Raises WireError.
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
        if request.run not in ("", info.run) and bond.key == info.secret:
            self._sessions.send(identity, m.Over("its run has ended, and another has begun", True))
            return
        reason = objection(request, info)
        if request.run == info.run and request.rank // 2 > self._info.epoch:
            if bond.key == info.secret:
                self._supersede(request.rank // 2, f"{host}:{request.port}")
                return
            reason = (f"the standby has a state of epoch {request.rank // 2}, later than this "
                      f"server's {self._info.epoch}, but not the run's secret: start it again "
                      "before this server")
        if reason:
            self._sessions.send(identity, m.Refused(one_line(reason)))
            self._tell(f"refused: {reason}")
            return
        if old is not None and old.identity != identity:
            again = (old.host, old.port) == (host, request.port)  # one process can listen there
            if again and (self.alone or old.beats.fresh(now)):
                self._forget(now)
                if self._standby is not None:
                    return  # it will ask again
                self._tell(f"the standby at {old} was started again")
            elif self.alone and now - old.liveness.heard > STANDBY.quiet:
                self._tell(f"the standby at {old} holds nothing, and is silent: it gives way")
                self._standby = None
            elif self._election is not None or self._reaches(old):
                self._sessions.send(identity, m.NotServing(f"there is a standby at {old}"))
                return
            else:
                self._lose(old, now)
                self.follow(peer, request)
                return
        self._end_election()
        again = old is not None and old.identity == identity
        held = old.held if old is not None and again else 0
        self._standby = StandbySession(identity, host, request.port, Liveness(STANDBY, now), held,
                                       again, again, bond, moved=now)
        self._sessions.queues.drop_transfer(identity)
        way = self._sessions.lending.follow(request.socket)
        self._tell(f"standby at {self._standby}, over {way}", "standby",
                   address=str(self._standby))
        self._send(m.Following(json.dumps(self._run_settings())))

    def held(self, peer: Peer, held: m.Held) -> None:
        """The standby lives, and holds a copy. Raises WireError for one that was never made."""
        standby = self._standby
        now = self._clock.now()
        if (standby is None or standby.identity != peer.identity
                or not standby.bond.proves(held.proof, "held", held.number, held.beat,
                                           held.answered)):
            self._sessions.answer(peer.identity, m.Unknown())
            return
        standby.liveness.hear(now)
        standby.beat = held.beat
        if held.chunks != standby.chunks:
            standby.chunks = held.chunks
            standby.moved = now
        self._send(m.Alive(held.beat))
        standby.beats.sent(held.beat, now)
        standby.beats.answered(held.answered)
        if (election := self._election) is None:
            self._release(standby.beats.touch)
        elif not election.asked and standby.beats.touch >= election.since:
            self._end_election()  # it was this server that slept
        if standby.asked is not None and held.answered > standby.asked and not held.number:
            self._forget(now)
            return
        if held.number <= standby.held:
            if standby.returned:  # half of what was on its way is lost
                standby.receiving = standby.returned = False
            return
        copy = self._copies.get(held.number)
        if copy is None:
            raise m.WireError(f"the standby holds copy {held.number}, which was never made")
        if not standby.held:
            self._tell(f"the standby at {standby} holds version {copy.newest[0]}")
        standby.held = held.number
        standby.receiving = standby.returned = False
        # the word may be of before the next copy, which is on its way, or there
        self._copies = {number: made for number, made in self._copies.items()
                        if number >= held.number}
        self._source.engine.ledger.saved(copy.mark)

    def ask(self, peer: Peer, ask: m.Ask) -> None:
        """A server that has lost its standby asks who serves."""
        epoch = self._info.epoch
        self._sessions.answer(peer.identity, m.Leading(
            epoch, proof=answer(self._info.secret, ask.nonce, "leading", epoch))
            if self._begun and ask.run == self._info.run
            else m.NotServing("another run is served here"))

    def hear_of(self, epoch: int, worker: int) -> None:
        """A worker knows a later server of this run, of that epoch: find out whether it serves."""
        now = self._clock.now()
        if (self.superseded is not None or self._election is not None
                or now < self._doubted_at + timeouts.LOOKED_INTO):
            return
        self._doubted_at = now
        self._tell(f"worker {worker} knows a server of this run of epoch {epoch}, and this one is "
                  f"of epoch {self._info.epoch}: "
                  + ("it is not taken back here; start that server again" if self.alone
                     else f"asking the standby at {self._standby}"))
        if self._standby is not None and not self.alone:
            self._doubt(self._standby, now)

    def woke(self, now: float) -> None:
        """This process has slept until `now`: nothing that it heard before is proof of anything."""
        if self._standby is not None:
            self._standby.beats.doubt()
            self._standby.liveness.woke(now)

    def elected(self, session: WorkerSession, elected: m.Elected) -> None:
        """A member has promised itself to this server."""
        owner = self._info.owners.get(session.worker)
        if (self._election is not None and elected.epoch == self._election.votes.epoch
                and owner is not None):
            self._election.votes.promised.add((session.worker, owner.owner))

    def poll(self) -> None:
        """Do the periodic work: connection, copies, election."""
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
            return
        if self._election is not None:
            self._settle(self._election, standby, now)
            return
        if standby.liveness.lost(now, lambda: self._reaches(standby)):
            self._lose(standby, now)
            return
        if (standby.receiving and now - standby.moved > timeouts.SNAPSHOT_STALLED
                and now - standby.liveness.heard < timeouts.STANDBY_BACK):
            self._stalled(standby, now)
            return
        if standby.parting:
            self._part(standby)
            return
        if not self._begun or standby.receiving:
            return
        source = self._source
        copy = self._copies.get(standby.held)
        if copy is None or source.engine.newest > copy.newest or source.checkpoints.wanted:
            source.engine.at_rest(self._begin_copy, self._clock.run())

    def _stalled(self, standby: StandbySession, now: float) -> None:
        """No part of a copy has reached a standby that lives.

        While workers train, its older copy counts: it may serve from that. A run that is done ends
        without it, with its consent, or without where that does not come either.
        """
        done = self._source.engine.done
        self._say(f"no part of a copy reached the standby at {standby} for "
                  f"{timeouts.SNAPSHOT_STALLED:g} s; "
                  + ("ending without it" if done else
                     "workers keep what it lacks; check the line to it, or end it"))
        standby.moved = now
        if done and standby.parting:
            self._forget(now)
        standby.parting = done

    def _part(self, standby: StandbySession) -> None:
        """End the run without a standby that lives: at each moment there is one state from which a
        run goes on that loses its server. First the last version is on the disk; then the standby
        gives up its copy, as of a server that has gone on alone; `held` then forgets it."""
        checkpoints = self._source.checkpoints
        if checkpoints.wanted and not checkpoints.writing:
            self._source.engine.ledger.next_mark()
            checkpoints.write_copy(self._clock.run())
        elif checkpoints.settled and standby.asked is None:
            standby.asked = standby.beat
            self._sessions.queues.drop_transfer(standby.identity)
            epoch = self._info.epoch + SERVER_STEP
            self._send(m.Following(json.dumps(self._run_settings() | {"epoch": epoch})))

    def _begin_copy(self, now: float) -> None:
        """Copy the newest version; nothing is pending. `now` is of the run."""
        source = self._source
        standby = self._standby
        if (standby is None or standby.receiving or self._election is not None
                or (self.alone and source.checkpoints.writing)):
            return
        # First: a later server of this folder must ask there, whatever becomes of this one.
        if self.alone and not self._record(standby=str(standby)):
            return
        standby.receiving = True
        standby.moved = self._clock.now()
        engine = source.engine
        mark = engine.ledger.next_mark()
        self._number += 1
        number = self._number
        state = source.state(now)
        made = self._copies[number] = SentCopy(mark, engine.newest,
                                               state.voters(self._info.config.worker_num))

        def send(future: Future[Whole]) -> None:  # at once, or when the shards have sent it
            if self._standby is standby and future.exception() is None:
                whole = future.result()
                made.lent, segment = self._sessions.lending.copy(whole.snapshot.vector)
                self._sessions.queues.transfer(standby.identity, messages(
                    number, source.layout, state, whole, segment, source.frozen,
                    with_frozen=not standby.held), self._clock.now())

        engine.store.whole().add_done_callback(send)
        source.checkpoints.write_copy(now)

    def _rule_out(self, votes: Votes) -> None:
        """Once more than half of the workers are here, the process that may have gone on beside
        this one is not elected any more: who starts again need not ask it."""
        owners = self._info.owners
        votes.promised = {
            (session.worker, owners[session.worker].owner) for session in self._sessions
            if session.worker in owners and session.plane is not None
            and (session.returning is None or session.returning.answer is not None)}
        if votes.won and self._record(beside=None):
            self._beside = None

    def _look_beside(self, inquiry: Inquiry, now: float) -> None:
        """Until it trains, this server gives way to the other process where workers have elected
        that: this one was out of their reach meanwhile, and has decided nothing."""
        epoch = inquiry.epoch(now)
        if epoch is not None and epoch > self._info.epoch:
            self._supersede(epoch, inquiry.address)
        elif self._beside is not None and not self._source.engine.started:
            return
        inquiry.close()
        self._inquiry = None

    # A standby that is out of reach.

    def _lose(self, standby: StandbySession, now: float) -> None:
        if self.alone:
            self._tell(f"the standby at {standby} is lost before its first copy",
                       "standby_lost", address=str(standby))
            self._standby = None
            return
        self._tell(f"the standby at {standby} is out of reach; checking whether its process "
                   "has ended",
                   "standby_lost", address=str(standby))
        self._doubt(standby, now)

    def _doubt(self, standby: StandbySession, now: float) -> None:
        """Find out which of the two serves."""
        votes = Votes(self._info.epoch, SERVER_STEP,
                      [copy.voters for copy in self._copies.values()],
                      lambda voter: voter[1] == "")
        inquiry = Inquiry(self._socket, standby.host, standby.port, self._info.run,
                          self._info.secret)
        self._election = Election(votes, inquiry, standby.liveness, standby.beats, now)

    def _settle(self, election: Election, standby: StandbySession, now: float) -> None:
        """Find out who serves."""
        epoch = election.served(now)
        if epoch is not None and epoch > self._info.epoch:
            self._supersede(epoch, str(standby))
        elif reason := election.why_alone(self._clock.now):
            self._forget(now)
            if self._election is None:
                self._tell(f"{reason}; continuing without one")
        elif election.due(now):
            ledger = self._source.engine.ledger
            self._tell_members(lambda worker: m.Elect(
                election.votes.epoch, election.votes.since, ledger.next_seq(worker)))
            if line := election.notice(now):
                self._tell(line)

    def _end_election(self) -> None:
        if self._election is None:
            return
        if self._election.asked:  # promises to this server count no more, either: see `_release`
            for session in self._sessions:
                session.attached_at = self._clock.now()
        self._election.close()
        self._election = None

    def _forget(self, now: float) -> None:
        """Discard the standby's copies: they are gone, or must not be used."""
        epoch = self._info.epoch + SERVER_STEP
        if not (self.alone or self._record(standby=None, epoch=epoch)):
            return
        self._end_election()
        self._standby = None
        if self.alone:
            return
        self._copies.clear()
        self.lost()
        self._info.epoch = epoch
        self._event("alone", epoch=epoch)
        self._tell_members(lambda worker: m.Leading(epoch, self._info.ticket(worker)))
        self._source.checkpoints.write_soon()

    def _record(self, **changes: Any) -> bool:
        """Note changes of the run's settings; False where the disk takes none: try again."""
        try:
            self._run_settings(**changes)
        except OSError as error:
            if not self._full:
                self._tell(f"cannot write run.json: {error.strerror}; trying again")
            self._full = True
            return False
        self._full = False
        return True

    def _supersede(self, epoch: int, address: str) -> None:
        self.superseded = (f"the server at {address} has taken over (epoch {epoch}, here "
                           f"{self._info.epoch})")
        for session in list(self._sessions):
            self._sessions.send(session.identity, m.NotServing(self.superseded))

    def _reaches(self, standby: StandbySession) -> bool:
        return self._socket.reaches(standby.identity, m.encode(m.Alive()))

    def _release(self, touch: float) -> None:
        """The standby followed this server at that time: what workers that have come back since
        had promised it counts no more, and they may promise themselves anew."""
        for session in self._sessions:
            if session.attached_at is not None and session.attached_at <= touch:
                session.attached_at = None
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
