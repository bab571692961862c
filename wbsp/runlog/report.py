"""What a worker knows of its own time and traffic; sent to the server, printed at the end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_SUMS = "steps", "samples", "pushes", "push_seconds", "pulls", "pull_seconds"
PHASES = ("compute", "push", "pull", "wait", "data")


class PhaseTimer:
    """Books every second of a compute thread under exactly one of `KINDS`.

    compute: a step, an ordered sleep included; push: cutting, sending, waiting for the answer to
    one's own push; pull: fetching and adopting; wait: for other workers; data: for the input
    pipeline and between epochs. The five add up to the wall time since `start`.
    """

    def __init__(self, start: float, kind: str = "wait"):
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.kind, self.since = kind, start

    def switch(self, kind: str, now: float) -> float:
        """Book the time since the last switch, go on under `kind`; return the booked seconds."""
        spent = now - self.since
        self.seconds[self.kind] += spent
        self.kind, self.since = kind, now
        return spent

    def at(self, now: float) -> dict[str, float]:
        """The booked seconds, what is under way included."""
        return {**self.seconds, self.kind: self.seconds[self.kind] + now - self.since}


@dataclass
class Report:
    """Running totals of one worker: seconds, counts and bytes."""

    steps: int = 0
    samples: int = 0
    loss: float = float("nan")  # of the newest mini-batch
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    pushes: int = 0
    push_seconds: float = 0.0  # from handing over to the answer, summed; may overlap compute
    last_push_seconds: float = 0.0
    pulls: int = 0
    pull_seconds: float = 0.0
    last_pull_seconds: float = 0.0
    push_bytes: int = 0  # of one update
    control_bytes: int = 0  # of the messages around the newest update
    pull_bytes: int = 0  # of one model

    @property
    def wall(self) -> float:
        return sum(self.seconds.values())

    def share(self, kind: str) -> float:
        """Part of the wall time spent in `kind`, 0..1 (0 before anything was booked)."""
        return self.seconds[kind] / self.wall if self.wall else 0.0

    def __add__(self, later: Report) -> Report:
        """Totals of both, where `later` began anew: another life of the same worker."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        return replace(later, **sums, seconds={kind: self.seconds[kind] + seconds
                                               for kind, seconds in later.seconds.items()})

    def copy(self) -> Report:
        return replace(self, seconds=dict(self.seconds))
