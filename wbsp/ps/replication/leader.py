"""A standby's connection to the server that it follows, and the newest copy that came whole."""

from __future__ import annotations

import contextlib
import json
import math

import zmq
from msgspec import structs

from wbsp.limits import one_line
from wbsp.ps.replication.candidacy import State
from wbsp.ps.replication.election import STANDBY_STEP, Beats
from wbsp.ps.replication.probe import Probe
from wbsp.ps.replication.snapshot import Copy, CopyReader
from wbsp.runlog.folder import SECRET
from wbsp.wire.addresses import endpoint
from wbsp.wire.intake import Intake
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import STRANGER, Claim
from wbsp.wire.sockets import ServerSocket

_TELL = 0.5  # seconds between two signs of life
_GAP = 5.0  # seconds between two refusals after which another process may have been there


class Leader:
    """The server that is followed; times are seconds of the monotonic clock.

    heard:   time of its newest message; before the first, of the begin
    follows: the server has taken this process as its standby
    epoch:   of the server, when it did so last; 0: it never did
    refused: its address has just refused a connection
    vacant:  the process there holds nothing of the run
    ended:   time since which no process has been there that could serve; None: one may be
    rank:    as of Follow, of the process there: it waits, as this one does; 0: that is not known
    refusal: why it does not take this standby
    foreign: why it is not believed
    over:    why the run has ended
    trouble: why the newest copy that failed could not be taken; it is asked for again

    What the process there says counts once it has proven that it is of this run, or of this user or
    token where this standby knows no run yet; and over that connection alone.
    """

    def __init__(self, server: ServerSocket, host: str, port: int, follow: m.Follow,
                 share: bool = True, secret: bytes | None = None):
        """`follow`: how this process introduces itself; `share`: as of `CopyReader`; `secret`: of
        the run of which it has a state; None: it has none, or one without."""
        self.address = f"{host}:{port}"
        self.socket = server.dealer(host)
        self.refused = False
        self._intake = Intake(server, self.socket, lambda: self._claim.bond is not None)
        self._probe = Probe(self.socket, host, port, self._intake, server.on)
        self.socket.connect(endpoint(host, port))
        self._follow = follow
        self._contact = server.contact
        self._claim = Claim(server.on.scheduler.random, *([secret] if secret else []),
                            self._contact)
        self._told = -_TELL
        self.follows, self.epoch = False, 0
        self._copies = CopyReader(share, server.on)
        self.heard = server.on.clock.monotonic()
        self._beats = Beats()
        self._beat = self._answered = 0  # numbers of the newest, and of the newest with an answer
        self._asked_at: float | None = None  # when the question left that Following may answer
        self._connections = 0
        self.vacant, self.rank = False, 0
        self.ended: float | None = None
        self._refused_at = -math.inf
        self.refusal: str | None = None
        self.foreign: str | None = None
        self._says: str | None = None
        self.over: str | None = None
        self.trouble: str | None = None

    @property
    def why(self) -> str | None:
        """Why it is not followed, as far as is known, in one line."""
        if self._probe.strange or self.foreign:
            return self._probe.strange or self.foreign
        return self._says and f"it says: {one_line(self._says)}"

    @property
    def touch(self) -> float:
        """Time after which it has certainly heard of this standby."""
        return self._beats.touch

    @property
    def copy(self) -> Copy | None:
        """The newest that came whole, unless the server has given it up since."""
        return self._copies.newest

    def poll(self, now: float) -> None:
        """Say what is held, now and then, and read what has come."""
        self.refused = self._probe.refused(now)
        if self._probe.connections != self._connections:
            self._connections = self._probe.connections
            self._claim.renew()
            self.vacant, self.rank, self.ended = False, 0, None
            self.foreign = None
            self._ask_again()
        if self.refused:
            if self.ended is None or now - self._refused_at > _GAP:
                self.ended = now
            self._refused_at = now
        if now - self._told >= _TELL:
            self._tell(now)
        for frames in self._intake.read():
            self._take(frames, now)
            if self.refusal is not None or self.over is not None:
                break

    def woke(self, now: float) -> None:
        """This process has slept until `now`: what it finds is no proof, until it has asked anew.
        """
        self._beats.doubt()
        self.heard, self.vacant, self.refused = max(self.heard, now), False, False
        self.ended = None
        self._told = -_TELL

    def close(self) -> None:
        """Nothing that was said and has not left is sent any more."""
        self._probe.close()
        self.socket.close(0)
        self._copies.close()

    def _tell(self, now: float) -> None:
        self._told = now
        if self.follows:
            held = self.copy.number if self.copy else 0
            self._beat += 1
            self._beats.sent(self._beat, now)
            proof = (self._claim.bond.mac("held", held, self._beat, self._answered)
                     if self._claim.bond else b"")
            message = m.encode(m.Held(held, self._beat, self._answered, proof,
                                      self._copies.chunks))
        else:
            if self._asked_at is None:
                self._asked_at = now
            message = m.encode(self._claim.sealed(
                structs.replace(self._follow, socket=self._copies.socket)))
        with contextlib.suppress(zmq.Again):
            self.socket.send(message, zmq.NOBLOCK)

    def _ask_again(self) -> None:
        """Introduce this process anew: what was on its way may be lost."""
        self.follows, self._asked_at = False, None
        self._copies.drop()
        self._told = -_TELL

    def _take(self, frames: list[zmq.Frame], now: float) -> None:
        try:
            message = m.decode(m.FromServer, frames[0].buffer)
            self._handle(message, frames[1].buffer if len(frames) == 2 else None, now)
        except (m.WireError, MemoryError) as error:
            if self._claim.bond is not None:
                self.trouble = str(error) or "there is not enough memory"
            self._ask_again()
            self._told = now  # not at once: it may fail again

    def _handle(self, message: m.Message, body: memoryview | None, now: float) -> None:
        if isinstance(message, m.Challenge):
            self._meet(message, now)
            return
        if isinstance(message, m.NotServing):  # of anybody: for the lines about waiting alone
            self._says = message.reason
        bond = self._claim.bond
        of_run = bond is not None and bond.key == self._claim.keys[0]  # as far as this one knows
        if isinstance(message, m.Refused) and not of_run:
            self._doubt(one_line(message.reason))
            return
        if isinstance(message, m.Vacant):
            self.vacant = self._claim.answers(message.proof, "vacant")
            if self.vacant:
                self.heard, self.ended = now, self.ended or now
            return
        if bond is None:
            return
        self.heard = now
        match message:
            case m.Following():
                run = json.loads(message.run)
                self._copies.follow(run)
                self.follows, self.epoch, self._says = True, run["epoch"], None
                if self._asked_at is not None:  # as old as the first question, perhaps
                    self._beats = Beats(self._asked_at)
                    self._asked_at = None
                self.rank = 0  # it waits no more
                self._claim.keys = bytes.fromhex(run[SECRET]), self._contact
                self._tell(now)
            case m.Copy() if self.follows:
                if self._copies.begin(message):
                    self._hold(now)
            case m.CopyChunk() if self.follows and body is not None:
                if self._copies.add(message, body):
                    self._hold(now)
            case m.AllHave() if self.follows:
                self._copies.all_have(message.number)
            case m.Unknown() if self.follows:  # the connection is a new one, or the server is
                self._ask_again()
            case m.Alive():
                self._beats.answered(message.chunks)
                self._answered = max(self._answered, message.chunks)
            case m.NotServing():
                self.rank = message.rank if of_run else 0
            case m.Refused():
                self.refusal = one_line(message.reason)
            case m.Over() if self.follows:
                self.over = one_line(message.reason)

    def _meet(self, challenge: m.Challenge, now: float) -> None:
        """The process there asks for a proof, and gives its own."""
        known, met = self._claim.bond is not None, self._claim.meets(challenge)
        if met is False:
            self._doubt(STRANGER)
        elif met and not known:
            self.foreign = None
            self._tell(now)

    def _doubt(self, reason: str) -> None:
        """The process there has not proven that it is of this run."""
        self.follows, self.foreign = False, reason

    def _hold(self, now: float) -> None:
        """A copy has come whole."""
        assert self.copy is not None
        state = State.of(self.copy.run, self.copy.saved.state, STANDBY_STEP)
        # newer than what this process may have begun with: so the other one must not overtake it
        self._follow = structs.replace(self._follow, run=state.run, rank=state.rank)
        self._tell(now)
