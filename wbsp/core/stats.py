"""Statistics of one worker over a whole run, for logs and console.

The worker reports its time and traffic; the server counts its pushes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal, NamedTuple, get_args

from msgspec import Meta

from wbsp.limits import SPANS, Amount, Count, Real, Reason, Seconds, Sum, Text

MOST_LOSS = 1e300  # as `Real`: a sum beyond it would not decode
REASONS = 64  # distinct reasons of rejections that are counted
OTHERS = "for other reasons"  # all further ones
Phase = Literal["compute", "push", "pull", "wait", "data", "validation", "callbacks",
                "data or compute"]
Lane = Literal["compute", "network"]
PHASES: tuple[Phase, ...] = get_args(Phase)
WAITING = "push", "pull", "wait"  # for the server, or for others
ALWAYS = PHASES[:5]  # every worker reports these, and the others only if it has any
# A worker sends its report to the server; values beyond these bounds do not decode.
Spent = Annotated[float, Meta(ge=-1e9, le=1e9)]  # below 0 where a clock was set
Booked = Annotated[dict[Text[str, 16], float], Meta(max_length=len(PHASES))]
_SUMS = ("steps", "samples", "losses", "measured", "pushes", "push_seconds", "pulls",
         "pull_seconds", "signs")


class PhaseTimer:
    """Timer of a compute thread, which books every second under exactly one of `PHASES`.

    compute: a step, an ordered sleep included; push: cutting, sending, waiting for the Ack; pull:
    fetching and adopting; wait: waiting for other workers; data: waiting for the input pipeline,
    and the loop's work between epochs. If the loop can measure them: validation, and callbacks, the
    user's code around steps and epochs. data or compute: a step of a loop that cannot measure when
    its batch was ready. The phases add up to the wall time since `start`.
    """

    def __init__(self, start: float, phase: Phase = "wait",
                 seconds: dict[str, float] | None = None):
        """Start; `seconds`: booked before, by phase, and added to."""
        self.seconds: dict[str, float] = (
            dict.fromkeys(ALWAYS, 0.0) if seconds is None else seconds)
        self.phase = phase
        self.since = start

    def switch(self, phase: Phase, now: float) -> float:
        """Book the seconds since the last switch, and enter `phase`; return the booked seconds."""
        spent = now - self.since
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + spent
        self.phase = phase
        self.since = now
        return spent

    def at(self, now: float) -> dict[str, float]:
        """Return phase -> seconds booked up to `now`, those of the present phase included."""
        return {**self.seconds, self.phase: self.seconds.get(self.phase, 0.0) + now - self.since}


def sum_phases(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return phase -> seconds of all parts, for the phases in `ALWAYS` and those of any part."""
    total: dict[str, float] = dict.fromkeys(ALWAYS, 0.0)
    for part in parts:
        for phase, seconds in part.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return {phase: total[phase] for phase in PHASES if phase in total}


@dataclass
class Report:
    """Running totals of one worker: seconds, counts and bytes."""

    steps: Count = 0
    samples: Count = 0
    loss: float = float("nan")  # of the newest mini-batch
    losses: Real = 0.0  # of the samples whose loss is known and finite, summed
    measured: Count = 0  # how many samples these are
    seconds: Booked = field(default_factory=lambda: dict.fromkeys(ALWAYS, 0.0))
    pushes: Count = 0
    push_seconds: Spent = 0.0  # from each cut to its Ack, summed; may overlap compute
    last_push_seconds: Spent = 0.0
    pulls: Count = 0
    pull_seconds: Spent = 0.0
    last_pull_seconds: Spent = 0.0
    push_bytes: Count = 0  # of one update
    control_bytes: Count = 0  # of the messages around the newest update
    pull_bytes: Count = 0  # of one model
    behind: Count | None = None  # sites only: number of active workers
    signs: Count = 0  # of work: seconds in which the process used its processors

    @property
    def own(self) -> float:
        """Seconds of its own work, in which it waited for nothing of the run."""
        return sum(seconds for phase, seconds in self.seconds.items() if phase not in WAITING)

    @property
    def wall(self) -> float:
        """All booked seconds."""
        return sum(self.seconds.values())

    def share(self, phase: str) -> float:
        """Return the part of the wall time spent in `phase`, 0..1; 0 before anything was booked."""
        return self.seconds.get(phase, 0.0) / self.wall if self.wall else 0.0

    def __add__(self, later: Report) -> Report:
        """Return the totals of both; `later` is the report of a later incarnation of the worker."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        sums["losses"] = min(max(sums["losses"], -MOST_LOSS), MOST_LOSS)
        return replace(later, **sums, seconds=sum_phases([self.seconds, later.seconds]))

    def count_steps(self, steps: int, samples: int, loss: float) -> None:
        """Count steps that ended with the mean `loss`; NaN: not known. Without samples, it is none.
        """
        self.steps += steps
        if not samples:
            return
        self.samples += samples
        self.loss = loss
        losses = self.losses + loss * samples
        if abs(losses) <= MOST_LOSS:  # and no NaN
            self.losses = losses
            self.measured += samples

    def count_cut(self, nbytes: int) -> None:
        """Note the bytes of the newest update."""
        self.push_bytes = nbytes

    def count_sign(self) -> None:
        """Count a sign of work between two steps."""
        self.signs += 1

    def count_push(self, seconds: float, nbytes: int = 0) -> None:
        """Count a push that was acknowledged in `nbytes`, `seconds` after its cut."""
        self.control_bytes = nbytes
        self.pushes += 1
        self.last_push_seconds = seconds
        self.push_seconds += seconds

    def count_pull(self, seconds: float, nbytes: int) -> None:
        """Count a version of `nbytes` that arrived `seconds` after its request."""
        self.pull_bytes = nbytes
        self.pulls += 1
        self.last_pull_seconds = seconds
        self.pull_seconds += seconds

    def with_seconds(self, seconds: dict[str, float]) -> Report:
        """Return a copy of the present totals, with these seconds by phase."""
        return replace(self, seconds=seconds)


class AnsweredWork(NamedTuple):
    """Contents of the answered pushes `first` ... `last` of one worker."""

    first: Count
    last: Count
    steps: Count
    samples: Count
    seconds: Seconds  # of compute
    base: Count  # base version of the last
    rejected: Annotated[dict[Reason, Count], Meta(max_length=REASONS)]  # reason -> pushes
    # positions of the run's shared data in the accepted pushes, if the run has shared data
    accepted: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=SPANS)] = ()
    unused: Count = 0  # samples of the rejected pushes

    @property
    def pushes(self) -> int:
        return self.last - self.first + 1

    def void(self, reason: str) -> AnsweredWork:
        """Return this work with its accepted pushes rejected for `reason`."""
        rejected = dict(self.rejected)
        count_rejected(rejected, reason, self.pushes - sum(rejected.values()))
        return self._replace(rejected=rejected, accepted=(), unused=self.samples)

    def then(self, later: AnsweredWork) -> AnsweredWork:
        """Return this work and `later`, which follows it, as one."""
        rejected = dict(self.rejected)
        for reason, pushes in sorted(later.rejected.items()):
            count_rejected(rejected, reason, pushes)
        return AnsweredWork(
            self.first, later.last, self.steps + later.steps, self.samples + later.samples,
            self.seconds + later.seconds, later.base,
            rejected, _joint(self.accepted + later.accepted), self.unused + later.unused)


def _joint(spans: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Merge adjacent ranges of positions."""
    joint: list[tuple[int, int]] = []
    for start, stop in spans:
        if joint and joint[-1][1] == start:
            start = joint.pop()[0]
        joint.append((start, stop))
    return tuple(joint)


def count_rejected(rejected: dict[str, int], reason: str, pushes: int = 1) -> None:
    """Count pushes that were rejected for this reason, of at most `REASONS` different ones."""
    full = reason not in rejected and len(rejected) >= REASONS - 1
    counted = OTHERS if full else reason
    rejected[counted] = rejected.get(counted, 0) + pushes


@dataclass
class MemberState:
    """Totals of one worker over all its incarnations, also across restarts of the server.

    Pushes count when the server receives them, rejected pushes included.
    """

    steps: Sum = 0
    samples: Sum = 0
    seconds: Amount = 0.0  # of compute
    pushes: Sum = 0
    base: Sum = 0  # base version of its newest push
    rounds: Sum = 0  # its pushes, plus the rounds before it joined
    rejected: dict[str, Sum] = field(default_factory=dict)  # reason -> pushes
    sgd: bool = False  # its updates are sums of gradients times a rate


@dataclass
class Member(MemberState):
    """The totals of one worker, and whether it takes part."""

    active: bool = False
    finished: bool = False  # left in good order
    gone: str = ""  # reason of its last loss, if it did not finish

    def state(self) -> MemberState:
        """Return a copy of what a checkpoint keeps."""
        kept = {one.name: getattr(self, one.name) for one in fields(MemberState)}
        return MemberState(**kept | {"rejected": dict(self.rejected)})

    def joins(self, sgd: bool) -> None:
        """Note that it takes part."""
        self.active, self.finished, self.sgd = True, False, sgd

    def returns(self, left: bool) -> None:
        """Note that it has reattached; `left`: it had finished."""
        self.active, self.finished = not left, left

    def leaves(self, finished: bool, reason: str) -> None:
        """Note that it has finished, or was lost for this reason."""
        self.active, self.finished = False, finished
        self.gone = "" if finished else reason

    def is_done(self, finished: bool) -> None:
        """Note whether it has finished, although it does not take part now."""
        self.finished = finished

    def enter(self, rounds: int) -> None:
        """Begin in this round of the others."""
        self.rounds = rounds

    def count(self, steps: int, samples: int, seconds: float, base: int) -> None:
        """Count a push of this worker."""
        self.pushes += 1
        self.rounds += 1
        self.steps += steps
        self.samples += samples
        self.seconds += seconds
        self.base = base

    def count_all(self, work: AnsweredWork) -> None:
        """Count several pushes of this worker."""
        self.pushes += work.pushes
        self.rounds += work.pushes
        self.steps += work.steps
        self.samples += work.samples
        self.seconds += work.seconds
        self.base = work.base
        for reason, pushes in work.rejected.items():
            count_rejected(self.rejected, reason, pushes)
