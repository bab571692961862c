"""The server's session with one worker, and checks of the worker's messages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import zmq

from wbsp.core.ledger import Ledger
from wbsp.core.stats import ALWAYS, PHASES, Report
from wbsp.ps.checkpoint.state import Totals
from wbsp.ps.sessions.data_plane import DataPlane, DataPlanes
from wbsp.sync.base import Push
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.liveness import KnownPeer
from wbsp.wire.messages import codec as m

_MAX_COUNT = 1 << 40  # steps or samples in one push; sums of them stay 64-bit integers
_MAX_SECONDS = 1e9  # thirty years; sums and products in models stay finite


@dataclass
class Progress:
    """Progress of a session's transfers, in chunks; `changed` is the time of the newest."""

    received: int = 0  # of the worker's vector, or of the W_0 that it waits for
    fetched: int = 0  # of models, as the worker has reported
    changed: float = 0.0
    told: float = 0.0  # time at which `received` was last reported to the worker

    def note_received(self, now: float) -> None:
        """Count a received chunk of an incomplete vector."""
        self.received, self.changed = self.received + 1, now

    def go_on(self, now: float) -> None:
        """Count the seconds without progress from `now` on."""
        self.changed = max(self.changed, now)

    def note_told(self, now: float) -> None:
        """Note that the worker is sent its progress."""
        self.told = now

    def note_fetched(self, chunks: int, now: float) -> None:
        """Note the number of models' chunks that the worker has received."""
        if chunks != self.fetched:
            self.fetched, self.changed = chunks, now


@dataclass(frozen=True)
class Returning:
    """A worker that reattached to a server without a session of it."""

    request: m.Reattach
    lacks: int | None  # first push of the sum that the worker must resend; None: none, or done
    answer: m.Reattached | None = None  # once it may continue
    early: int = 0  # number of a fetch that waits for a grant


@dataclass
class WorkerSession(KnownPeer):
    """Session of one incarnation of a worker; times are the server's own."""

    worker: int
    line: object = None  # the connection over which it has identified itself
    own: bytes = b""  # as in `messages.Hello`
    proven: bool = False  # it was this worker in an earlier run, or is welcomed as it by that proof
    replaces: bool = False  # as in `messages.Hello`
    passes: int = 0  # number of the run that its fit was, and that has ended; 0: of none
    request: m.Join | m.Reattach | None = None  # as which it asked to be a member
    joined: bool = False  # it asked to join, and has not left
    ledger: Ledger | None = None  # of its pushes, once it is admitted
    plane: DataPlane | None = None  # from its admission on
    answer: m.Joined | None = None  # to its request to join
    returning: Returning | None = None  # it has reattached
    progress: Progress = field(default_factory=Progress)
    held: int = m.NONE  # version whose floats it has, by its newest request
    deaf: bool = False  # too many messages wait for it: it does not read
    # Time of its reattachment, until it is certain that no other server has its vote.
    attached_at: float | None = None
    earlier: Totals | None = None  # totals of the worker's earlier incarnations
    report: Report | None = None  # its newest
    worked_at: float = 0.0  # time of the newest sign that its loop works, or waits for others
    # the newest message of each kind that it may have missed, but for answers to pushes
    retained: dict[type[m.Message], m.Message] = field(default_factory=dict)

    @property
    def certain(self) -> bool:
        """True if this process is the worker: it was before, or is a member."""
        return self.proven or self.plane is not None

    @property
    def layout(self) -> list[TensorSpec] | None:
        """Layout of its model; None before it requests to join."""
        return self.request.layout if self.request else None

    @property
    def frozen(self) -> list[TensorSpec]:
        """What no step changes in its model."""
        return self.request.frozen if isinstance(self.request, m.Join) else []

    @property
    def local(self) -> list[str]:
        """Names of the variables that it keeps for itself."""
        return self.request.local if isinstance(self.request, m.Join) else []

    def introduced(self, line: object, proven: bool, replaces: bool, passes: int) -> None:
        """Note that it has introduced itself; arguments as the attributes."""
        self.line, self.proven = line, proven or self.proven
        self.replaces, self.passes = replaces, passes

    def asks_to_join(self, join: m.Join) -> None:
        """Note that it has built its model."""
        self.request, self.joined = join, True

    def accept(self, answer: m.Joined) -> m.Joined:
        """Keep the answer to its request to join, and return it."""
        self.answer = answer
        return answer

    def has_sent_initial(self) -> None:
        """Note that W_0 is here: its request to join awaits the answer that the others' do."""
        self.answer = None

    def reconnects(self, line: object, now: float) -> None:
        """Note that a member has proven itself over a new connection."""
        self.line, self.attached_at = line, now
        self.liveness.hear(now)

    def returns(self, request: m.Reattach, lacks: int | None) -> Returning:
        """Note that a former member has reconnected; `lacks`: as in `Returning`."""
        self.returning = back = Returning(request, lacks)
        return back

    def has_returned(self, back: Returning) -> None:
        """Note that a former member has resent all that it must."""
        self.returning = replace(back, lacks=None)
        self.joined = not back.request.left

    def may_continue(self, answer: m.Reattached) -> None:
        """Note the answer with which a former member, if it is one, continues."""
        self.returning = self.returning and replace(self.returning, answer=answer)

    def fetches_early(self, request: int) -> None:
        """Note a former member's fetch that waits for a grant; 0: none does any more."""
        self.returning = self.returning and replace(self.returning, early=request)

    def holds(self, version: int, request: int) -> None:
        """Note the version that a member has, and that it no longer reads the answers to fetches
        before this one."""
        self.held = version
        if self.plane is not None:
            self.plane.returned(request)

    def leaves(self) -> None:
        """Note the worker's message that it leaves."""
        self.joined = False

    def note_vote(self, since: float | None) -> None:
        """Note since when another server may have its vote; None: none has."""
        self.attached_at = since

    def admit(self, ledger: Ledger, planes: DataPlanes, size: int, name: str, now: float) -> None:
        """Make it a member; one that returns has all the time."""
        self.ledger = ledger
        self.progress.go_on(now)
        self.attach(planes, size, name)

    def attach(self, planes: DataPlanes, size: int, name: str) -> None:
        """Prepare for floats over a new connection; arguments as for `DataPlanes.plane_for`."""
        self.unshare()
        self.plane = planes.plane_for(self, size, name)

    def unshare(self, failed: bool = False) -> None:
        """End the sharing of memory: it reattaches, has ended, or could not be lent a version."""
        if self.plane is not None:
            self.plane = self.plane.unshared(failed)

    def reads(self, well: bool) -> None:
        """Note whether it reads its messages, or too many wait for it."""
        self.deaf = not well

    def retain(self, message: m.Message) -> None:
        """Keep a message that it may miss, in place of an earlier one of this kind."""
        self.retained.pop(type(message), None)  # the newest is repeated last
        self.retained[type(message)] = message

    def has(self, kind: type[m.Message]) -> None:
        """Note that it has received the newest message of a kind, which is not repeated."""
        self.retained.pop(kind, None)

    def woke(self, now: float) -> None:
        """Count silence from `now` on, because this process was suspended."""
        self.liveness.woke(now)
        self.progress.go_on(now)
        self.worked_at = max(self.worked_at, now)

    def take_report(self, report: Report, now: float) -> None:
        """Note its newest totals."""
        known, self.report = self.report, report
        if known is None or report.signs != known.signs or report.own <= known.own:
            self.worked_at = now

    def alive(self) -> m.Alive:
        """Return the server's heartbeat for this worker."""
        return m.Alive(self.progress.received, self.ledger.durable if self.ledger else 0)

    def decided(self, query: int) -> m.CutDecision | None:
        """Return the answer to this query, if it was asked before, else None."""
        known = self.retained.get(m.CutDecision)
        return known if isinstance(known, m.CutDecision) and known.number == query else None

    @property
    def group(self) -> m.ShardGroup | None:
        """The shards, for the worker; None: no shards, or it is not a member yet."""
        return self.plane.group if self.plane else None

    @property
    def inbox(self) -> int:
        """Number of the shared segment, for the worker; 0: none."""
        return self.plane.inbox if self.plane else 0

    def check_push(self, push: Push, newest: int) -> None:
        """Raise Impossible for metadata that this worker cannot have; `newest` is a version."""
        if not (push.worker == self.worker and push.seq >= 0
                and 1 <= push.steps <= _MAX_COUNT and 0 <= push.samples <= _MAX_COUNT
                and 0 <= push.base_version <= newest and 0 <= push.seconds <= _MAX_SECONDS
                and all(use is None or 0 <= use <= 1 for use in (push.cpu, push.memory))):
            raise m.Impossible(f"worker {self.worker} pushed with impossible metadata {push}")

    def check_kept(self, kept: m.Kept, answered: int) -> None:
        """Raise Impossible for a sum of pushes that this worker cannot have.

        `answered`: number after its newest answered push, by its own report.
        """
        work = kept.work
        if not (work.first <= work.last < answered and max(work.steps, work.samples) <= _MAX_COUNT
                and work.unused <= work.samples and sum(work.rejected.values()) <= work.pushes):
            raise m.Impossible(f"worker {self.worker} resent impossible metadata: {work}")

    def check_query(self, query: m.CutQuery) -> None:
        """Raise Impossible for a query that this worker cannot have."""
        if not (query.number >= 0 and 1 <= query.steps <= _MAX_COUNT
                and 0 <= query.seconds <= _MAX_SECONDS):
            raise m.Impossible(f"worker {self.worker} asked with impossible metadata {query}")


def body_of(message: m.Message, frames: list[zmq.Frame],
            session: WorkerSession | None) -> memoryview | None:
    """Return the floats of a message, or None for a message without floats.

    Raises:
        WireError: the frames do not fit the message.
    """
    plane = session.plane if session else None
    body = frames[1].buffer if len(frames) == 2 else None
    floats = isinstance(message, m.Initial)
    if isinstance(message, m.Update | m.Kept):
        floats = plane is None or not plane.heads
        if body is None and message.place is not None:
            if plane is None:
                raise m.WireError("a place in memory that is not shared")
            body = plane.read(message.place)
    if (body is not None) != floats:
        raise m.WireError(f"{type(message).__name__} with {len(frames)} frames")
    return body


def check_reattach(reattach: m.Reattach) -> None:
    """Raise WireError for numbers that no worker can have."""
    if max(reattach.first, reattach.kept) > reattach.answered:
        raise m.WireError(f"worker {reattach.worker} reattached with impossible numbers")


def check_report(report: Report, worker: int) -> None:
    """Raise WireError for totals that cannot be printed."""
    if not set(ALWAYS) <= set(report.seconds) <= set(PHASES) or not all(
            abs(seconds) <= _MAX_SECONDS for seconds in report.seconds.values()):
        raise m.WireError(f"worker {worker} sent an impossible report")


def other_protocol(who: str, protocol: int) -> str | None:
    """Return why a peer with this protocol is refused, in one line, or None."""
    if protocol == m.PROTOCOL:
        return None
    return (f"{who} has protocol {protocol}, the server {m.PROTOCOL}; install the same wbsp on "
            "both")


def disagreement(who: str, side: str, given: dict[str, str],
                 settings: dict[str, str]) -> str | None:
    """Return how a peer's `given` settings differ from the server's, in one line, or None."""
    for name, value in given.items():
        if name in settings and settings[name] != value:
            return (f"{who} and the server disagree: {name} is {value!r} on the {side} and "
                    f"{settings[name]!r} on the server; start both with the same value")
    return None
