"""A server in waiting: it follows the one that serves, and takes its place when that is gone.

Two kinds of process wait so: a standby, which holds the newest copy; and a server that was started
again and had a standby, which has its checkpoint, and must not go on from it where the standby does
so from a newer state. Which of two may serve says `wbsp.ps.contest`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import zmq

from wbsp.ps.candidacy import Candidacy, State
from wbsp.ps.clock import Nap
from wbsp.ps.contest import PROOF, SILENT, STANDBY_STEP
from wbsp.ps.copies import Copy
from wbsp.ps.interrupt import Interrupts
from wbsp.ps.leader import Leader
from wbsp.ps.server import Server
from wbsp.ps.worker_session import check_reattach
from wbsp.runlog.console import say
from wbsp.wire import messages as m
from wbsp.wire.sockets import ServerSocket, peer_address, split_address

PATIENCE = 600.0  # seconds without a server, and without the right to serve
_POLL = 0.05  # seconds between two looks at the timers
_NOTICE = 10.0  # seconds between two lines about a silent server


class Standby:
    """A process that does not serve yet.

    follow: address, host:port, of the server that may serve
    serve:  makes the server: from a copy or, given None, from this process's own checkpoint
    own:    what is in that; None: there is none
    share:  whether memory is shared with a server of this machine and user
    """

    def __init__(self, socket: ServerSocket, follow: str, settings: dict[str, str],
                 serve: Callable[[Copy | None], Server], interrupts: Interrupts,
                 own: State | None = None, share: bool = True):
        """Raises ValueError for a bad address."""
        self._socket, self._serve, self._interrupts = socket, serve, interrupts
        self._own = own
        self._leader = Leader(socket, *split_address(follow), m.Follow(
            m.PROTOCOL, settings, socket.port, own.run if own else "", own.rank if own else 0),
            share)
        self._candidacy: Candidacy | None = None  # while the server is silent
        self._silent_since = self._noticed = self._socket.on.clock.monotonic()
        self._overtaken = False  # who had an older state of this run does not serve, but follows
        self._said = False  # that a copy is held
        self._began = self._socket.on.clock.monotonic()
        self._nap = Nap(self._began)
        self._follower: tuple[bytes, m.Follow, str] | None = None  # takes this one for the server
        self._later = False  # a worker has come from a server with a later state

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
        server = self._serve(self._leader.copy)
        return server.run(lambda: self._hand_over(server))

    def _hand_over(self, server: Server) -> None:
        """Have the server, which is ready now, answer those who have come here before."""
        replication = server.dispatcher.replication
        replication.lost()
        if self._follower is not None:
            with contextlib.suppress(m.WireError):
                replication.follow(*self._follower)
        if self._candidacy is not None:
            for identity, request in self._candidacy.requests.items():
                with contextlib.suppress(m.WireError):
                    server.dispatcher.admission.reattach(identity, request)

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
        if leader.refusal is not None:
            say(f"the server at {leader.address} refused: {leader.refusal}")
            return 1
        if leader.copy is not None and not self._said:
            self._said = True
            say(f"holding version {leader.copy.saved.state['version']} of the server at "
                f"{leader.address}")
        if state is not None and self._overtaken:
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
            if self._candidacy.ballot.won:
                return f"{self._candidacy.ballot} have come here"
        return self._wait_on(now)

    def _proves(self, leader: Leader, state: State, now: float) -> bool:
        """Whether the end of the other process means that nobody serves, and has served since."""
        if leader.epoch > state.epoch:
            return False
        if leader.copy is not None:
            return now < leader.touch + PROOF
        # The checkpoint of a server that was started again. Its standby may have served since then,
        # and ended; workers that still live know, and are given time to say so.
        return not self._later and now > self._began + SILENT

    def _wait_on(self, now: float) -> int | None:
        """Nobody serves, as far as can be seen; not for ever."""
        waited = now - self._silent_since
        state, epoch = self._state, self._leader.epoch
        missing = ("this process holds nothing" if state is None else
                   "that process does not serve yet" if self._candidacy is None else
                   f"the state here is of epoch {state.epoch}, and that one had epoch {epoch}"
                   if epoch > state.epoch else
                   f"{self._candidacy.ballot} have come here, "
                   f"{self._candidacy.ballot.needed} are needed")
        if waited > PATIENCE:
            say(f"no server at {self._leader.address} for {PATIENCE:g} s, and {missing}")
            return 1
        if now - max(self._noticed, self._silent_since) > _NOTICE:
            self._noticed = now
            say(f"no server at {self._leader.address} for {waited:.0f} of {PATIENCE:g} s; "
                f"{missing}")
        return None

    def _withdraw(self) -> None:
        if self._candidacy is not None:
            self._candidacy.withdraw(self._reason)
            self._candidacy = None

    @property
    def _reason(self) -> str:
        """Why workers are turned away."""
        return (f"the process at port {self._socket.port} is in waiting for the server at "
                f"{self._leader.address}")

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
        self._socket.received(frames[0], candidacy is not None and identity in candidacy.requests,
                              frames[1:])
        message = m.decode(m.FromWorker, frames[0].buffer)
        match message:
            case m.Reattach():
                check_reattach(message)
                self._note_epoch(message)
                if candidacy is None or not candidacy.come(identity, message):
                    self._send(identity, m.NotServing(self._reason))
            case m.Elected():
                if candidacy is not None:
                    candidacy.promised(identity, message)
            case m.Follow():
                self._followed(identity, message, peer_address(frames[0]))
            case m.Held():
                self._send(identity, m.Unknown())
            case m.Hello() | m.Ask() | m.Watch():
                self._send(identity, m.NotServing(self._reason))

    def _note_epoch(self, request: m.Reattach) -> None:
        state = self._state
        if (state is not None and not self._later and request.run == state.run
                and request.epoch > state.epoch):
            self._later = True
            say(f"worker {request.worker} comes from a server of epoch {request.epoch}, and the "
                f"state here is of epoch {state.epoch}: start that server again")

    def _followed(self, identity: bytes, follow: m.Follow, host: str) -> None:
        """Another process in waiting, at address `host`, takes this one for the server."""
        state, self._follower = self._state, (identity, follow, host)
        if state is None:
            self._send(identity, m.Vacant())
        elif follow.run == state.run and 0 < follow.rank < state.rank:
            self._overtaken = True  # and is answered by the server that this one becomes
        else:
            self._send(identity, m.NotServing(self._reason))

    def _send(self, identity: bytes, message: m.Message) -> None:
        self._socket.reaches(identity, m.encode(message))
