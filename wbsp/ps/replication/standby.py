"""A standby server: it follows the server that serves, and takes over when that is lost.

Two kinds of process wait like this: a standby, which holds the newest snapshot; and a restarted
server that had a standby, which has its checkpoint, and must not resume from it if the standby
continues from a newer state. `wbsp.ps.replication.election` decides which of the two serves.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection
from typing import Any, Protocol

import zmq
from msgspec import structs

from wbsp import timeouts
from wbsp.limits import one_line
from wbsp.process.signals import Interrupts
from wbsp.process.throttle import Throttle
from wbsp.ps.replication.election import (
    NEW_PROCESSES,
    Candidate,
    Standing,
    epoch_of,
    rank_of,
)
from wbsp.ps.replication.snapshot import CopyReader, RunCopy, RunNote, settings_of
from wbsp.ps.series import STANDBY_STEP, awaits, next_run
from wbsp.ps.sessions.handlers import Peer
from wbsp.ps.sessions.session import check_reattach, other_protocol
from wbsp.runlog.console import say
from wbsp.runlog.folder import SECRET
from wbsp.wire.addresses import split_address, to_check
from wbsp.wire.liveness import PRIMARY, Beats, Liveness, Nap
from wbsp.wire.loop import POLL, Loop
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.sharding import Denied, Lead
from wbsp.wire.proof import answer, key_of_process, ticket
from wbsp.wire.server_link import ServerLink
from wbsp.wire.sockets import ServerSocket

_NOTICE = 10.0  # seconds between two lines about a silent server


class PrimaryLink(ServerLink):
    """The link to the server that is followed; times are seconds of the monotonic clock.

    Messages of the process there count once it has proven that it belongs to this run, or to this
    user or token if this standby knows no run yet; and only over that connection.

    Attributes:
        liveness: of the server; before its first message, from the start on.
        beats: of this standby.
        follows: the server has accepted this process as its standby.
        epoch: of the server at its last acceptance; 0: never.
        refuses: its address has just refused a connection.
        vacant: the process there holds no state of the run.
        rank: of the process there if it waits, too, as in Follow; 0: not known.
        newest: epoch of the run that this process knows of that one.
        refusal: why it refuses this standby.
        over: why the run has ended.
        another_follows: another run of that server follows.
        note: a run of the server that has not begun, and that this process may begin in its place.
        trouble: why the newest failed snapshot could not be received; it is requested again.
    """

    def __init__(self, server: ServerSocket, host: str, port: int, follow: m.Follow,
                 share: bool = True, secret: bytes | None = None):
        """Connect.

        Args:
            follow: the message in which this process introduces itself.
            share: as in `CopyReader`.
            secret: of the run whose state this process has; None: no state, or one without secret.
        """
        super().__init__(server, host, port, *([secret] if secret else []), server.contact)
        self._contact = server.contact
        self._seen = 0  # connections so far
        self._follow = follow
        self._first = follow.run, follow.rank, follow.fit  # of the state that this one began with
        self._told = -timeouts.STANDBY_BEAT
        self.follows = False
        self.epoch = 0
        self._copies = CopyReader(share, server.on)
        self.liveness = Liveness(PRIMARY, server.on.clock.monotonic())
        self.beats = Beats()
        self._beat = self._answered = 0  # numbers of the newest, and of the newest with an answer
        self._asked_at: float | None = None  # when the question left that Following may answer
        self.refuses = self.vacant = False
        self.rank = self.newest = 0
        self.refusal: str | None = None
        self.over: str | None = None
        self.another_follows = False
        self.note: RunNote | None = None
        self._run: dict[str, Any] = {}  # settings of the server's run
        self.trouble: str | None = None

    @property
    def copy(self) -> RunCopy | None:
        """The newest complete snapshot, unless the server has revoked it."""
        return self._copies.newest

    def poll(self, now: float) -> None:
        """Send heartbeats with the held snapshot, and read messages."""
        self.refuses = self.refused(now)
        if self.made != self._seen:
            self._seen = self.made
            self.renew()
            self.vacant = False
            self.rank = 0
            self._ask_again()
        if now - self._told >= timeouts.STANDBY_BEAT:
            self._tell(now)
        for frames in self.read():
            self._take(frames, now)
            if self.refusal is not None or self.over is not None:
                break

    def woke(self, now: float) -> None:
        """Handle the end of a suspension: observations prove nothing before a new request."""
        self.beats.doubt()
        self.liveness.woke(now)
        self.vacant = self.refuses = False
        self.gone_since = None
        self._told = -timeouts.STANDBY_BEAT

    def next_run(self) -> None:
        """Expect the next run of the server, which has ended one.

        This process may begin it in place of a server that ends before it has begun.
        """
        follows = next_run(self._run)
        self.note = None if follows is None else RunNote(follows)
        self.over = None
        self._run = {}
        self._copies.forget()
        self.rank = self.epoch = self.newest = 0
        self._first = "", 0, 0
        self._introduce()
        self._ask_again()

    def close(self, patience: float = 0.0) -> None:
        super().close(patience)
        self._copies.close()

    def _tell(self, now: float) -> None:
        self._told = now
        claim = self.claim
        if self.follows:
            held = self.copy.number if self.copy else 0
            self._beat += 1
            self.beats.sent(self._beat, now)
            proof = claim.bond.mac("held", held, self._beat, self._answered) if claim.bond else b""
            self.send(m.Held(held, self._beat, self._answered, proof, self._copies.chunks))
        else:
            if self._asked_at is None:
                self._asked_at = now
            self.send(claim.sealed(structs.replace(self._follow, socket=self._copies.socket)))

    def _ask_again(self) -> None:
        """Introduce this process again, because messages in flight may be lost.

        A first contact proves only that both are of one user or token: now it proves the run.
        """
        if self.proven and not self._of_run:
            self.claim.renew()
        self.follows = False
        self._asked_at = None
        self._copies.drop()
        self._told = -timeouts.STANDBY_BEAT

    def _take(self, frames: list[zmq.Frame], now: float) -> None:
        try:
            message = m.decode(m.FromServer, frames[0].buffer)
            self._handle(message, frames[1].buffer if len(frames) == 2 else None, now)
        except (m.WireError, MemoryError) as error:
            if self.proven:
                self.trouble = str(error) or "not enough memory"
            self._ask_again()
            self._told = now  # not at once: it may fail again

    def _handle(self, message: m.Message, body: memoryview | None, now: float) -> None:
        if isinstance(message, m.Challenge):
            if self.meets(message):
                self._tell(now)
            self.follows = self.follows and self.proven
            return
        if isinstance(message, m.NotServing):  # unproven: only for console lines
            self.says = message.reason
        claim, of_run = self.claim, self._of_run
        if isinstance(message, m.Refused) and not of_run:
            self.doubt = one_line(message.reason)
            self.follows = False
            return
        if isinstance(message, m.Vacant):
            self.vacant = claim.answers(message.proof, "vacant")
            if self.vacant:
                self.liveness.hear(now)
                self.gone_since = self.gone_since or now
            return
        if not self.proven:
            return
        self.liveness.hear(now)
        match message:
            case m.Following():
                run = self._record(message)
                self._copies.follow(run)
                self.follows = True
                self.epoch = run["epoch"]
                self.newest = max(self.newest, self.epoch)
                self.says = self.doubt = None
                if self._asked_at is not None:  # as old as the first question, perhaps
                    self.beats = Beats(self._asked_at)
                    self._asked_at = None
                self.rank = 0  # it no longer waits
                claim.has(bytes.fromhex(run[SECRET]), self._contact)
                self._tell(now)
            case m.Recorded() if self.follows:
                self._copies.note(self._record(message))
                self._tell(now)  # at once, because workers may wait for it
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
                self.beats.answered(message.chunks)
                self._answered = max(self._answered, message.chunks)
            case m.NotServing():
                self.rank = message.rank if of_run else 0
                self.newest = max(self.newest, epoch_of(self.rank))
            case m.Refused():
                self.refusal = one_line(message.reason)
            case m.Over() if self.follows or of_run:
                self.over = one_line(message.reason)
                self.another_follows = message.follows

    def _record(self, message: m.Following | m.Recorded) -> dict[str, Any]:
        """Note the settings of the server's run, and return them.

        Raises:
            WireError: no server has written them.
        """
        run = self._run = settings_of(message.run)
        self.note = RunNote(run) if message.waits and awaits(run) else None
        self._introduce()
        return run

    @property
    def _of_run(self) -> bool:
        """Return whether the process there has proven that it is of the run, as far as this one
        knows that."""
        claim = self.claim
        return claim.bond is not None and claim.bond.key == claim.keys[0]

    @property
    def state(self) -> Standing | None:
        """What this process has of the server's run, and could continue from; None: nothing."""
        if self.copy is not None:
            return Standing.of(self.copy.run, self.copy.saved.state, STANDBY_STEP)
        return None if self.note is None else Standing.of_note(self.note.run, STANDBY_STEP)

    def _introduce(self) -> None:
        """Have this process introduce itself with the state that it has now."""
        state = self.state
        run, rank, fit = self._first if state is None else (state.run, state.rank, state.fit)
        self._follow = structs.replace(self._follow, run=run, rank=rank, fit=fit)

    def _hold(self, now: float) -> None:
        """Handle a complete snapshot."""
        # newer than this process's first state, so that the other one must not overtake it
        self._introduce()
        self._tell(now)


class Successor(Protocol):
    """The server that a waiting process becomes: see `wbsp.ps.server.Server`."""

    @property
    def epoch(self) -> int: ...

    def run(self, attend: Callable[[str], None],
            earlier: Callable[[], list[tuple[Peer, m.Message]]]) -> int: ...


class Standby:
    """A process that does not serve yet.

    Args:
        follow: address, host:port, of the server that may serve.
        serve: makes the server, from a snapshot, or of a run that has not begun; given None, from
            what this process has of the run. Its epoch is above the second argument. The third is
            true if workers have elected this process, so that the other one may still run.
        own: state in that checkpoint, or None.
        share: share memory with a server of this machine and user.
        keep: writes the last version of a run that another one follows.
        close: notes that the run of `own` has ended, and another one follows.
        first: seconds to wait for a server that this process has no state of yet.

    Attributes:
        primary: the connection to the server that may serve.
        candidate: the election, while that server is silent; else None.
        serves: this process has taken over.
    """

    def __init__(self, socket: ServerSocket, follow: str, settings: dict[str, str],
                 serve: Callable[[RunCopy | RunNote | None, int, bool], Successor],
                 interrupts: Interrupts,
                 own: Standing | None = None, share: bool = True,
                 first: float = timeouts.PRIMARY_MISSING,
                 keep: Callable[[RunCopy], None] = lambda copy: None,
                 close: Callable[[], None] = lambda: None):
        """Start.

        Raises:
            ValueError: the address is bad.
        """
        self._socket = socket
        self._serve = serve
        self._interrupts = interrupts
        self._keep, self._close = keep, close
        self.serves = False
        self._own = own
        self._first = first
        self.primary = PrimaryLink(socket, *split_address(follow), m.Follow(
            m.PROTOCOL, settings, socket.port, own.run if own else "", own.rank if own else 0,
            fit=own.fit if own else 0),
            share, own and own.secret)
        self._identity = self.primary.socket.routing_id  # the socket loses it when it is closed
        self._itself = False  # this process has been told to follow itself
        self.candidate: Candidate | None = None  # while the server is silent
        self._silent_since = self._socket.on.clock.monotonic()
        self._silence = Throttle(_NOTICE)
        self._said: set[str] = set()  # lines that are printed once, or their subjects
        self._began = self._socket.on.clock.monotonic()
        self._nap = Nap(self._began)
        self._follower: tuple[Peer, m.Follow] | None = None  # takes this one for the server
        self._serves_at: float | None = None  # time of the next attempt, if the disk fails
        self._unwritten: str | None = None  # why the disk does not take the state that it has
        self._epoch = 0  # to serve with, while it waits for shards
        self._delay = ""  # the answer to other peers then
        # Times of workers' newest requests; of those proven to be from a later server.
        self._came_at: dict[int, float] = {}
        self._unnamed: dict[bytes, float] = {}  # the same of processes without an index
        self._later: dict[int, float] = {}

    def run(self) -> int:
        """Wait, and serve when this process is elected; return the exit code."""
        say(f"listening on port {self._socket.port}, following the server at "
            f"{self.primary.address}")
        try:
            server = self._elected()
        finally:
            self.primary.close()
        if isinstance(server, int):
            self._socket.close(1.0)
            return server
        self._epoch = server.epoch
        self.serves = True
        for peer, request in self.candidate.came.values() if self.candidate else ():
            self._lead(peer.identity, request)
        return server.run(self._attend, self._earlier)

    def _elected(self) -> Successor | int:
        """Return the server that this process becomes, or an exit code.

        If the disk fails, the held state stays in memory, and this process waits on. The other
        server may be back by then, and workers with it: votes from before prove nothing any more.
        """
        while True:
            why = self._wait()
            if isinstance(why, int):
                if self._unwritten is not None and self._interrupts.first is not None:
                    say("stopping: interrupted before the newest state could be written")
                return why
            self._say_once(f"taking over from the server at {self.primary.address}: {why}")
            try:
                return self._serve(self.primary.copy or self.primary.note, self.primary.newest,
                                   self.candidate is not None and self.candidate.won)
            except OSError as error:
                self._unwritten = error.strerror or str(error)
                self._say_once(f"cannot take over yet: {self._unwritten}; the newest state stays "
                               f"in memory, trying again every {timeouts.SERVE_AGAIN:g} s")
            self._serves_at = self._socket.on.clock.monotonic() + timeouts.SERVE_AGAIN
            if self.candidate is not None:
                self.candidate.begin_anew()

    def _earlier(self) -> list[tuple[Peer, m.Message]]:
        """Return the peers that have connected, for the server to answer once it is ready."""
        return [*([self._follower] if self._follower else []),
                *(self.candidate.came.values() if self.candidate else [])]

    def _attend(self, reason: str) -> None:
        """Answer peers after taking over and before serving, with the reason of the delay.

        All peers learn that this process has taken over, so that the other one is not elected.
        """
        self._delay = reason
        self._socket.watch()
        self.receive()

    def _lead(self, identity: bytes, request: m.Reattach) -> None:
        """Inform a proven worker that this process has taken over.

        The worker then votes for no process that follows an earlier epoch.
        """
        if self._state is not None and self._state.secret is not None:
            self._send(identity, m.Leading(self._epoch, ticket(
                self._state.secret, request.worker, request.owner, self._epoch)))

    @property
    def _state(self) -> Standing | None:
        """Return the state that this process could continue from, or None."""
        return self.primary.state or self._own

    def _wait(self) -> int | str:
        """Follow until this process must serve; return why, in one line, or an exit code."""
        loop = Loop(self._socket, self._socket.watch, POLL)
        loop.register(self.primary.socket)
        while True:
            loop.wait(POLL)
            self._socket.watch()
            now = self._socket.on.clock.monotonic()
            if self._nap.over(now):
                self.woke(now)
            self.primary.poll(now)
            self.receive()
            if self._interrupts.first is not None:
                return 128 + self._interrupts.first
            now = self._socket.on.clock.monotonic()  # it has advanced
            verdict = self.verdict(now)
            if isinstance(verdict, str) and self._serves_at is not None and now < self._serves_at:
                verdict = self._wait_on(now)
            if verdict is not None:
                return verdict

    def woke(self, now: float) -> None:
        """Handle the end of a suspension: silence, patience and proofs start at `now`."""
        self.primary.woke(now)
        self._began = now
        self._silent_since += self._nap.seconds

    def verdict(self, now: float) -> int | str | None:
        """Return why to serve now, or an exit code; None: continue waiting."""
        primary = self.primary
        state = self._state
        if primary.over is not None:
            say(f"the run has ended: {primary.over}")
            if not primary.another_follows:
                return 0
            self._await_next_run(now)
            return None
        if self._itself:
            say(f"--standby_of={primary.address} is the address of this process itself; give the "
                "address of the server to follow")
            return 1
        if primary.refusal is not None:
            say(f"the server at {primary.address} refused: {primary.refusal}")
            return 1
        if primary.doubt is not None:
            line = f"the process at {primary.address} is not trusted: {primary.doubt}"
            if state is None:
                say(line)
                return 1
            self._say_once(line, "foreign")
        if primary.copy is not None:
            self._say_once(f"holding version {primary.copy.saved.state.version} of the server at "
                           f"{primary.address}", "holding")
        if primary.trouble is not None:
            self._say_once(f"cannot receive a snapshot of the server at {primary.address}: "
                           f"{one_line(primary.trouble)}; requesting another", "trouble")
        if state is not None and 0 < primary.rank < state.rank:
            return "it was restarted, and has an older state"
        # If workers call `fit` again, the next fit may have begun since then, and have ended.
        if primary.refuses and primary.copy is not None and primary.copy.saved.state.over and (
                primary.beats.fresh(now) or not awaits(primary.copy.run)):
            return "its process has ended, and all workers have the final version"
        if (state is not None and (primary.refuses or primary.vacant)
                and self._proves(primary, state, now)):
            return "its process has ended" + (
                "; no version of this run is left: it begins anew, and its workers must be started "
                "again" if self._lost_all(state) else "")
        if not primary.liveness.silent(now):
            if primary.follows:
                self._silent_since = now
                if self._serves_at is not None and (
                        primary.liveness.heard > self._serves_at - timeouts.SERVE_AGAIN):
                    self._serves_at = self._unwritten = None  # that server is back
            if self.candidate is not None:  # waiting workers have no other server
                self.candidate.withdraw(self._reason)
                self.candidate = None
        elif state is not None:
            self.candidate = self.candidate or Candidate(state, self._socket)
            self.candidate.poll(now)
            if self.candidate.won:
                return f"{self.candidate.votes} voted for this standby"
        return self._wait_on(now)

    def _await_next_run(self, now: float) -> None:
        """Follow the server to its next run."""
        if self.primary.copy is not None:
            self._keep(self.primary.copy)
        elif self._own is not None:
            self._close()
        self.primary.next_run()
        self._own = self.candidate = self._follower = None
        self._began = self._silent_since = now
        self._came_at.clear()
        self._unnamed.clear()
        self._later.clear()
        self._said.clear()

    def _proves(self, primary: PrimaryLink, state: Standing, now: float) -> bool:
        """Return whether the end of the other process proves that no server has run since."""
        if primary.epoch > state.epoch:
            return False
        held = primary.state is not None
        if held and primary.beats.fresh(now):
            return True
        # The other process may have served since then: workers know that, and are given time to
        # report it. It may also have ended the run without some workers: those with the final
        # version have ended, and do not connect.
        later = any(now < since + timeouts.LATER_SERVER for since in self._later.values())
        named = {worker for worker, _ in state.voters}
        since = self.primary.gone_since if held else self._began
        return (not later and since is not None and now > since + timeouts.ELECTION
                and (2 * self._here(named) > len(named) or not (held or named)))

    def _lost_all(self, state: Standing) -> bool:
        """Return whether no version of the run is left: this process has served it and saved none,
        as on a full disk, and the process that may have held one has none."""
        return not state.begun and self.primary.state is None and self.primary.vacant

    def _here(self, named: Collection[int]) -> int:
        """Return how many of these workers have connected since the other process ended.

        They may be old or new processes; the other process has not sent them the final version.
        """
        ended = self.primary.gone_since
        if ended is None:
            return 0
        here = sum(self._came_at.get(worker, -math.inf) > ended for worker in named)
        return min(here + sum(at > ended for at in self._unnamed.values()), len(named))

    def _wait_on(self, now: float) -> int | None:
        """Wait while no server is known, up to a limit; return an exit code then, or None."""
        waited = now - self._silent_since
        state = self._state
        epoch = self.primary.epoch
        patience = self._first if state is None and not epoch else timeouts.PRIMARY_MISSING
        missing = ("this process holds no state" if state is None else
                   f"the newest state is in this process's memory only: {self._unwritten}; free "
                   "some space on its disk" if self._unwritten else
                   f"the state here is of epoch {state.epoch}, and that one had epoch {epoch}"
                   if epoch > state.epoch else
                   self._too_few(state) if self.primary.vacant else
                   "that process does not serve yet" if self.candidate is None else
                   self.candidate.missing)
        why = self.primary.why
        if why is not None:
            missing = f"{missing}; {why}"
        if waited > patience:
            if why is None and state is None and not epoch:
                missing = f"{missing}; {to_check(self.primary.address)}"
            say(f"no server at {self.primary.address} for {patience:g} s, and {missing}"
                + ("; that state ends with this process: start that server with --resume, to "
                   "continue from its own" if self._unwritten else ""))
            return 1
        if why is not None:
            self._say_once(f"no server at {self.primary.address} yet; {missing}", why)
        if waited > _NOTICE and self._silence.due(now):
            say(f"no server at {self.primary.address} for {waited:.0f} of {patience:g} s; "
                f"{missing}")
        return None

    def _too_few(self, state: Standing) -> str:
        """Return why this process does not serve although the other holds no state of the run."""
        named = {worker for worker, _ in state.voters}
        if not named:
            return "a worker may know of a later server of the run"
        return (f"{self._here(named)} of {len(named)} workers voted for this standby, more than "
                "half of them are needed")

    @property
    def _reason(self) -> str:
        """Return why workers are refused."""
        here = f"the process at port {self._socket.port}"
        server = f"the server at {self.primary.address}"
        return self._delay or (f"{here} cannot take over from {server} yet: {self._unwritten}"
                               if self._unwritten else f"{here} is a standby of {server}")

    # Messages of workers, and of other waiting processes.

    def receive(self) -> None:
        """Handle the messages that have arrived."""
        for identity, *frames in self._socket.messages():
            with contextlib.suppress(m.WireError):
                self.handle(identity.bytes, frames)

    def handle(self, identity: bytes, frames: list[zmq.Frame]) -> None:
        """Handle one message from the socket with this identity.

        Raises:
            WireError: the message is invalid.
        """
        candidate = self.candidate
        if not frames:
            return
        line = self._socket.received(
            frames[0], candidate is not None and identity in candidate.came, frames[1:])
        peer = Peer(identity, line, frames[0])
        message = m.decode(m.FromWorker, frames[0].buffer)
        match message:
            case m.Reattach():
                self._came(peer, message)
            case m.Elected():
                if candidate is not None:
                    candidate.promised(peer, message)
            case m.Follow():
                self._followed(peer, message)
            case m.Held():
                self._send(identity, m.Unknown())
            case m.Hello():
                self._introduced(identity, message)
            case m.Ask() | m.NextVersion() | m.Evaluated():
                self._send(identity, m.NotServing(self._reason))
            case Lead():
                self._send(identity, Denied(f"{self._reason}, and no shard"))

    def _came(self, peer: Peer, request: m.Reattach) -> None:
        """Handle a worker that takes this process for the server; it votes once it is proven.

        Raises:
            WireError: the message is invalid.
        """
        check_reattach(request)
        identity = peer.identity
        state = self._state
        candidate = self.candidate
        if (state is not None and state.secret is not None and request.run == state.run
                and request.protocol == m.PROTOCOL):
            key = ticket(state.secret, request.worker, request.owner, request.epoch)
            if self._socket.challenges.admit(self._send, identity, request, key) is None:
                return
            if self._epoch and request.epoch <= self._epoch:
                self._lead(identity, request)
            elif request.epoch > state.epoch or not (state.begun or self._lost_all(state)):
                self._later[request.worker] = self._socket.on.clock.monotonic()
                self._say_once(
                    f"worker {request.worker} was served in epoch {request.epoch}, later than "
                    f"epoch {state.epoch} of the state here: start that server again"
                    if state.begun or request.epoch > state.epoch else
                    f"worker {request.worker} trains this run, of which no version is here: asking "
                    f"the process at {self.primary.address} for one", "later")
            else:
                self._note(request.worker)
                if candidate is not None and candidate.come(peer, request):
                    return
        self._send(identity, m.NotServing(self._reason))

    def _introduced(self, identity: bytes, hello: m.Hello) -> None:
        """Handle a worker that begins a fit, or waits for one.

        One that has ended a later run of the series than the state here proves a later server.
        """
        state, worker = self._state, hello.worker
        if (state is not None and state.secret is not None and worker is not None and hello.nonce
                and hello.fit > state.fit + state.begun):
            key = key_of_process(state.secret, worker, hello.own)
            if self._socket.challenges.admit(self._send, identity, hello, key) is None:
                return
            self._later[worker] = self._socket.on.clock.monotonic()
            self._say_once(
                f"worker {worker} begins fit {hello.fit}, and the state here is of fit "
                f"{state.fit}: start the server that served fit {hello.fit - 1} again", "later")
        else:
            self._note(worker, hello.own)
        self._send(identity, m.NotServing(self._reason))

    def _note(self, worker: int | None, own: bytes = b"") -> None:
        """Note that this worker has connected, in any process; None: `own`, without an index."""
        state = self._state
        now = self._socket.on.clock.monotonic()
        if worker is None:
            if own in self._unnamed or len(self._unnamed) < NEW_PROCESSES:
                self._unnamed[own] = now
        elif state is not None and any(worker == named for named, _ in state.voters):
            self._came_at[worker] = now

    def _followed(self, peer: Peer, follow: m.Follow) -> None:
        """Handle another waiting process that takes this one for the server."""
        identity = peer.identity
        if identity == self._identity:
            self._itself = True
            return
        state = self._state
        contact = self._socket.contact
        if reason := other_protocol("the standby", follow.protocol):
            self._send(identity, m.Refused(reason))
            return
        if state is None:
            self._send(identity, m.Vacant(answer(contact, follow.nonce, "vacant")))
            return
        keys = [contact] if state.secret is None else [state.secret, contact]
        bond = self._socket.challenges.admit(self._send, identity, follow, *keys)
        if bond is None:
            return
        self._follower = peer, follow  # the server that this one becomes answers, too
        rank = rank_of(self._epoch, state.begun) if self._epoch else state.rank
        if later := bond.key == state.secret and follow.fit > state.fit:
            rank = 1  # of the same series
        elif follow.run != state.run:
            rank = 0
        if later or (follow.run == state.run and follow.rank > rank):
            # It has the newer state, and serves once it knows: both must not be elected meanwhile.
            self.primary.liveness.hear(self._socket.on.clock.monotonic())
        self._send(identity, m.NotServing(self._reason, rank=rank))

    def _say_once(self, line: str, about: str = "") -> None:
        """Print a line unless it, or one with this subject `about`, was printed before."""
        if (what := about or line) not in self._said:
            self._said.add(what)
            say(line)

    def _send(self, identity: bytes, message: m.Message) -> None:
        self._socket.reaches(identity, m.encode(message))
