"""A standby as its server sees it, and what the server does when it is out of reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wbsp.ps.config import Terms
from wbsp.ps.replication.election import PROOF, SILENT, Ballot, Beats
from wbsp.ps.replication.probe import Inquiry
from wbsp.ps.replication.snapshot import Voter
from wbsp.ps.sessions.session import disagreement
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Bond
from wbsp.wire.sockets import ServerSocket

_ASK = 1.0  # seconds between two questions to workers
_NOTICE = 10.0  # seconds between two lines


@dataclass
class Follower:
    """A standby; times are the server's own."""

    identity: bytes  # of its socket
    host: str
    port: int
    heard: float  # time at which its newest message was read
    held: int  # number of the newest copy that it holds
    receiving: bool  # a copy is on its way, or may be; then its next word says
    returned: bool  # over a new connection; it has not said since what it holds
    bond: Bond  # by which it proves what it says
    probed: float = 0.0
    beats: Beats = field(default_factory=Beats)
    chunks: int = 0  # of copies that have come there
    moved: float = 0.0  # time of the newest of these, or of the begin of a copy
    beat: int = 0  # number of its newest sign of life
    parting: bool = False  # the run is done, and ends without it
    asked: int | None = None  # to hold nothing any more, behind the answer to this sign of life

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def objection(request: m.Follow, terms: Terms) -> str | None:
    """Why a process cannot be the standby of such a run, in one line; None if it can."""
    settings = terms.settings | terms.shared
    if reason := disagreement("the standby", "standby", request.settings, settings):
        return reason
    lacks = [name for name in settings if name not in {"folder", "id", *request.settings}]
    if terms.shared and lacks:
        return (f"the standby and the server disagree: the server has {lacks[0]}="
                f"{settings[lacks[0]]!r}, and the standby has none; start both with the same value")
    return None if request.run in ("", terms.run) else (
        f"the standby holds a state of run {request.run}, not of {terms.run}")


@dataclass
class Made:
    """A copy that was made for it.

    last:   the run ends with this version; it was known then
    voters: the workers' processes that there were then
    lent:   memory that the standby may serve from: held, it is not written to
    """

    mark: int
    version: int
    last: bool
    voters: frozenset[Voter]
    lent: np.ndarray | None = None

    @property
    def newest(self) -> tuple[int, bool]:
        """As of `Engine`."""
        return self.version, self.last


class Contest:
    """A standby that is out of reach and holds a copy: it may take over, or have done so.

    ballot: the promises of the workers to this server
    since:  when it began
    asked:  whether they have been asked for any; then they decide, whatever is heard
    """

    def __init__(self, follower: Follower, ballot: Ballot, socket: ServerSocket, terms: Terms,
                 now: float):
        self._follower, self.ballot = follower, ballot
        self._inquiry = Inquiry(socket, follower.host, follower.port, terms.run, terms.secret)
        self.asked, self._asked_at, self._noticed = False, 0.0, now
        self.since = now

    def served(self, now: float) -> int | None:
        """The epoch that is served there; None: no answer says so."""
        return self._inquiry.epoch(now)

    def why_alone(self, clock: Callable[[], float]) -> str | None:
        """Why this server serves, and the standby does not, in one line; None: that is not known.

        clock: it may be later when it is seen that the standby's address refuses connections
        """
        if self._inquiry.refused(clock()) and clock() < self._follower.beats.touch + PROOF:
            return f"the standby at {self._follower} has ended"
        if self.ballot.won:
            return f"{self.ballot} stay with this server"
        return None

    def due(self, now: float) -> bool:
        """True when the workers are to be asked."""
        silent = now - self._follower.heard >= SILENT
        if now - self._asked_at < _ASK or not (silent or self.asked):
            return False
        self.asked, self._asked_at = True, now
        return True

    def notice(self, now: float) -> str | None:
        """A line about it, now and then."""
        if now - self._noticed < _NOTICE:
            return None
        self._noticed = now
        why = self._inquiry.why
        return (f"the standby at {self._follower} is silent, and may have taken over: "
                f"{self.ballot} are here, {self.ballot.needed} are needed"
                + (f"; {why}" if why else ""))

    def close(self) -> None:
        self._inquiry.close()
