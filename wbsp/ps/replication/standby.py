"""A server in waiting: it follows the one that serves, and takes its place when that is gone.

Two kinds of process wait so: a standby, which holds the newest copy; and a server that was started
again and had a standby, which has its checkpoint, and must not go on from it where the standby does
so from a newer state. Which of two may serve says `wbsp.ps.replication.election`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection

import zmq

from wbsp.limits import one_line
from wbsp.process.host import Nap
from wbsp.process.signals import Interrupts
from wbsp.ps.replication.candidacy import Candidacy, State
from wbsp.ps.replication.election import PROOF, SILENT, STANDBY_STEP
from wbsp.ps.replication.leader import Leader
from wbsp.ps.replication.snapshot import Copy
from wbsp.ps.server import Server
from wbsp.ps.sessions.session import check_reattach, other_protocol
from wbsp.runlog.console import say
from wbsp.wire.addresses import split_address
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.sharding import Denied, Lead
from wbsp.wire.proof import answer, ticket
from wbsp.wire.sockets import ServerSocket, peer_address

PATIENCE = 600.0  # seconds without a server that was there, and without the right to serve
_POLL = 0.05  # seconds between two looks at the timers
_NOTICE = 10.0  # seconds between two lines about a silent server
_LATER = 30.0  # seconds for which a worker's word counts that it has belonged to a later server
_AGAIN = 10.0  # seconds between two attempts to begin to serve, where the disk takes nothing


class Standby:
    """A process that does not serve yet.

    follow: address, host:port, of the server that may serve
    serve:  makes the server: from a copy or, given None, from this process's own checkpoint
    own:    what is in that; None: there is none
    share:  whether memory is shared with a server of this machine and user
    first:  seconds to wait for a server that this process knows nothing of yet
    """

    def __init__(self, socket: ServerSocket, follow: str, settings: dict[str, str],
                 serve: Callable[[Copy | None], Server], interrupts: Interrupts,
                 own: State | None = None, share: bool = True,
                 first: float = PATIENCE):
        """Raises ValueError for a bad address."""
        self._socket, self._serve, self._interrupts = socket, serve, interrupts
        self._own = own
        self._first = first
        self._leader = Leader(socket, *split_address(follow), m.Follow(
            m.PROTOCOL, settings, socket.port, own.run if own else "", own.rank if own else 0),
            share, own and own.secret)
        self._itself = False  # this process has been told to follow itself
        self._why: str | None = None  # why the server is not followed, as was said last
        self._candidacy: Candidacy | None = None  # while the server is silent
        self._silent_since = self._noticed = self._socket.on.clock.monotonic()
        self._said: set[str] = set()  # lines that are said once
        self._began = self._socket.on.clock.monotonic()
        self._nap = Nap(self._began)
        self._follower: tuple[bytes, m.Follow, str] | None = None  # takes this one for the server
        # While it is to serve, and waits for shards: with which epoch, and what workers are told.
        self._epoch, self._delay = 0, ""
        # Times at which workers came last; of those that have proven to come from a later server.
        self._came_at: dict[int, float] = {}
        self._later: dict[int, float] = {}

    def run(self) -> int:
        """Wait, and serve when it is time; return the exit code."""
        say(f"listening on port {self._socket.port}, in waiting for the server at "
            f"{self._leader.address}")
        try:
            why = self._wait()
        finally:
            self._leader.close()
        if isinstance(why, int):
            self._socket.close(1.0)
            return why
        say(f"taking over from the server at {self._leader.address}: {why}")
        server = self._begin()
        if isinstance(server, int):
            self._socket.close(1.0)
            return server
        server.attend = lambda reason: self._attend(server, reason)
        for identity, one in self._candidacy.came.items() if self._candidacy else ():
            self._lead(identity, one.request, server.dispatcher.admission.epoch)
        return server.run(lambda: self._hand_over(server))

    def _begin(self) -> Server | int:
        """The server that this process becomes, once the disk takes what that needs; or an exit
        code. What was held stays in memory meanwhile."""
        said, clock = "", self._socket.on.clock
        poller = self._socket.on.network.poller()
        poller.register(self._socket.socket, zmq.POLLIN)
        while True:
            try:
                return self._serve(self._leader.copy)
            except OSError as error:
                reason = error.strerror or str(error)
                if reason != said:
                    said = reason
                    say(f"cannot take over yet: {said}; the newest state stays in memory, trying "
                        f"again every {_AGAIN:g} s")
            again = clock.monotonic() + _AGAIN
            while clock.monotonic() < again:
                poller.poll(int(1000 * _POLL))
                self._socket.watch()
                self._receive()
                if self._interrupts.first is not None:
                    say("stopping: interrupted before the newest state could be written")
                    return 128 + self._interrupts.first

    def _hand_over(self, server: Server) -> None:
        """Have the server, which is ready now, answer those who have come here before."""
        replication = server.dispatcher.replication
        replication.lost()
        if self._follower is not None:
            with contextlib.suppress(m.WireError):
                replication.follow(*self._follower)
        if self._candidacy is not None:
            for identity, one in self._candidacy.came.items():
                with contextlib.suppress(m.WireError):
                    server.dispatcher.admission.reattach(identity, one.request, one.line)

    def _attend(self, server: Server, reason: str) -> None:
        """This process has taken over, and does not serve yet, for that reason: all who come learn
        the first, so that the other one is not elected meanwhile."""
        self._epoch, self._delay = server.dispatcher.admission.epoch, reason
        self._socket.watch()
        self._receive()

    def _lead(self, identity: bytes, request: m.Reattach, epoch: int) -> None:
        """Tell a worker that has proven who it is that this process has taken over, with that
        epoch: it votes for none that follows on an earlier one."""
        if self._state is not None and self._state.secret is not None:
            self._send(identity, m.Leading(epoch, ticket(
                self._state.secret, request.worker, request.place, epoch)))

    @property
    def _state(self) -> State | None:
        """What this process could go on from."""
        copy = self._leader.copy
        if copy is None:
            return self._own
        return State.of(copy.run, copy.saved.state, STANDBY_STEP)

    def _wait(self) -> int | str:
        """Follow until it is time to serve: why, in one line; or an exit code."""
        poller = self._socket.on.network.poller()
        for one in (self._socket.socket, self._socket.monitor, self._leader.socket):
            poller.register(one, zmq.POLLIN)
        while True:
            poller.poll(int(1000 * _POLL))
            self._socket.watch()
            now = self._socket.on.clock.monotonic()
            if self._nap.over(now):
                self._woke(now)
            self._leader.poll(now)
            self._receive()
            if self._interrupts.first is not None:
                return 128 + self._interrupts.first
            verdict = self._verdict(self._socket.on.clock.monotonic())  # it may be later by now
            if verdict is not None:
                return verdict

    def _woke(self, now: float) -> None:
        """This process has slept until `now`: silence, patience and proof count from here on."""
        self._leader.woke(now)
        self._began = now
        self._silent_since += self._nap.seconds

    def _verdict(self, now: float) -> int | str | None:
        """Why to serve now, or the exit code; None: wait on."""
        leader, state = self._leader, self._state
        if leader.over is not None:
            say(f"the run has ended: {leader.over}")
            return 0
        if self._itself:
            say(f"--standby_of={leader.address} is the address of this very process; name that of "
                "the server that it is to stand by")
            return 1
        if leader.refusal is not None:
            say(f"the server at {leader.address} refused: {leader.refusal}")
            return 1
        if leader.foreign is not None:
            line = f"the process at {leader.address} is not believed: {leader.foreign}"
            self._say_once("foreign", line)
            if state is None:
                return 1
        if leader.copy is not None:
            self._say_once("holding", f"holding version {leader.copy.saved.state['version']} of "
                                      f"the server at {leader.address}")
        if leader.trouble is not None:
            self._say_once("trouble", f"a copy of the server at {leader.address} could not be "
                                      f"taken: {one_line(leader.trouble)}; asking for another")
        if state is not None and 0 < leader.rank < state.rank:
            return "it was started again, and has an older state"
        if leader.refused and leader.copy is not None and leader.copy.saved.state.get("over"):
            return "its process has ended, and all workers have the final version"
        if (state is not None and (leader.refused or leader.vacant)
                and self._proves(leader, state, now)):
            return "its process has ended"
        if now - leader.heard < SILENT:
            if leader.follows:
                self._silent_since = now
                self._withdraw()
        elif state is not None:
            self._candidacy = self._candidacy or Candidacy(state, self._socket)
            self._candidacy.poll(now)
            if self._candidacy.won:
                return f"{self._candidacy.ballot} have come here"
        return self._wait_on(now)

    def _proves(self, leader: Leader, state: State, now: float) -> bool:
        """Whether the end of the other process means that no server runs, or has since."""
        if leader.epoch > state.epoch:
            return False
        if leader.copy is not None:
            return now < leader.touch + PROOF
        # The checkpoint of a server that was started again. Its standby may have served since then:
        # workers know, and are given time to say so. It may have ended the run, too, without some:
        # those that have the final version are gone, and do not come here.
        later = any(now < since + _LATER for since in self._later.values())
        named = {worker for worker, _ in state.voters}
        return (not later and now > self._began + SILENT
                and (not named or 2 * self._here(named) > len(named)))

    def _here(self, named: Collection[int]) -> int:
        """How many of these workers, old processes or new ones, have come since the other process
        ended: it has not sent these the final version."""
        ended = self._leader.ended
        return 0 if ended is None else sum(
            self._came_at.get(worker, -math.inf) > ended for worker in named)

    def _wait_on(self, now: float) -> int | None:
        """Nobody serves, as far as can be seen; not for ever."""
        waited = now - self._silent_since
        state, epoch = self._state, self._leader.epoch
        patience = self._first if state is None and not epoch else PATIENCE
        missing = ("this process holds nothing" if state is None else
                   f"the state here is of epoch {state.epoch}, and that one had epoch {epoch}"
                   if epoch > state.epoch else
                   self._too_few(state) if self._leader.vacant else
                   "that process does not serve yet" if self._candidacy is None else
                   self._candidacy.missing)
        why = self._leader.why
        if why is not None:
            missing = f"{missing}; {why}"
        if waited > patience:
            say(f"no server at {self._leader.address} for {patience:g} s, and {missing}")
            return 1
        if why is not None and why != self._why:
            self._why = why
            say(f"no server at {self._leader.address} yet; {missing}")
        if now - max(self._noticed, self._silent_since) > _NOTICE:
            self._noticed = now
            say(f"no server at {self._leader.address} for {waited:.0f} of {patience:g} s; "
                f"{missing}")
        return None

    def _too_few(self, state: State) -> str:
        """Why this process does not serve beside one that holds nothing of the run."""
        named = {worker for worker, _ in state.voters}
        return (f"{self._here(named)} of {len(named)} workers have come here, more than half "
                "of them are needed")

    def _withdraw(self) -> None:
        if self._candidacy is not None:
            self._candidacy.withdraw(self._reason)
            self._candidacy = None

    @property
    def _reason(self) -> str:
        """Why workers are turned away."""
        return self._delay or (f"the process at port {self._socket.port} is in waiting for the "
                               f"server at {self._leader.address}")

    # Messages of workers, and of others in waiting.

    def _receive(self) -> None:
        self._socket.guard.behind = True
        for _ in range(64):
            try:
                identity, *frames = self._socket.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._socket.guard.behind = False
                return
            with contextlib.suppress(m.WireError):
                self._handle(identity.bytes, frames)

    def _handle(self, identity: bytes, frames: list[zmq.Frame]) -> None:
        candidacy = self._candidacy
        if not frames:
            return
        line = self._socket.received(
            frames[0], candidacy is not None and identity in candidacy.came, frames[1:])
        message = m.decode(m.FromWorker, frames[0].buffer)
        match message:
            case m.Reattach():
                self._came(identity, message, line)
            case m.Elected():
                if candidacy is not None:
                    candidacy.promised(identity, message, line)
            case m.Follow():
                self._followed(identity, message, peer_address(frames[0]))
            case m.Held():
                self._send(identity, m.Unknown())
            case m.Hello() | m.Ask() | m.Watch():
                if isinstance(message, m.Hello):
                    self._note(message.worker)
                self._send(identity, m.NotServing(self._reason))
            case Lead():
                self._send(identity, Denied(f"{self._reason}, and no shard"))

    def _came(self, identity: bytes, request: m.Reattach, line: object) -> None:
        """A worker takes this process for the server: it has a say once it has proven who it is.
        Raises WireError."""
        check_reattach(request)
        state, candidacy = self._state, self._candidacy
        if (state is not None and state.secret is not None and request.run == state.run
                and request.protocol == m.PROTOCOL):
            key = ticket(state.secret, request.worker, request.place, request.epoch)
            if self._socket.challenges.proven(identity, request, key) is None:
                self._challenge(identity, request.nonce, key)
                return
            if self._epoch and request.epoch <= self._epoch:
                self._lead(identity, request, self._epoch)
            elif request.epoch > state.epoch:
                self._later[request.worker] = self._socket.on.clock.monotonic()
                self._say_once("later", (
                    f"worker {request.worker} comes from a server of epoch {request.epoch}, and "
                    f"the state here is of epoch {state.epoch}: start that server again"))
            else:
                self._note(request.worker)
                if candidacy is not None and candidacy.come(identity, request, line):
                    return
        self._send(identity, m.NotServing(self._reason))

    def _note(self, worker: int) -> None:
        """This worker has come, in whatever process."""
        state = self._state
        if state is not None and any(worker == named for named, _ in state.voters):
            self._came_at[worker] = self._socket.on.clock.monotonic()

    def _followed(self, identity: bytes, follow: m.Follow, host: str) -> None:
        """Another process in waiting, at address `host`, takes this one for the server."""
        if identity == self._leader.socket.routing_id:
            self._itself = True
            return
        state, contact = self._state, self._socket.contact
        if reason := other_protocol("the standby", follow.protocol):
            self._send(identity, m.Refused(reason))
            return
        if state is None:
            self._send(identity, m.Vacant(answer(contact, follow.nonce, "vacant")))
            return
        keys = [contact] if state.secret is None else [state.secret, contact]
        if self._socket.challenges.proven(identity, follow, *keys) is None:
            self._challenge(identity, follow.nonce, *keys)
            return
        self._follower = identity, follow, host  # the server that this one becomes answers, too
        rank = 2 * self._epoch or state.rank  # of what this process goes on as, or could
        self._send(identity, m.NotServing(self._reason,
                                          rank=rank if follow.run == state.run else 0))

    def _challenge(self, identity: bytes, nonce: bytes, *keys: bytes) -> None:
        self._send(identity, self._socket.challenges.challenge(identity, nonce, *keys))

    def _say_once(self, what: str, line: str) -> None:
        if what not in self._said:
            self._said.add(what)
            say(line)

    def _send(self, identity: bytes, message: m.Message) -> None:
        self._socket.reaches(identity, m.encode(message))
