"""One worker as the server's wire sees it, and what a correct one may send."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from wbsp.layout import TensorSpec
from wbsp.ps import effects
from wbsp.ps.decision import Directed, Granted
from wbsp.ps.store import is_finite
from wbsp.runlog.report import PHASES, Report
from wbsp.sync.base import Push
from wbsp.wire import messages as m
from wbsp.wire.chunks import Reassembler

_MAX_COUNT = 1 << 40  # steps or samples in one push; sums of them stay 64-bit integers
_MAX_SECONDS = 1e9  # thirty years; what models make of it stays finite


class UpdateReassembler(Reassembler):
    """Reassembler of updates, which looks at each chunk while it is in the processor's caches."""

    finite = True  # all values of the newest update, so far

    def add(self, offset: int, size: int, data: memoryview) -> np.ndarray | None:
        vector = super().add(offset, size, data)
        self.finite = (self.finite or offset == 0) and is_finite(np.frombuffer(data, "<f4"))
        return vector


@dataclass
class WorkerSession:
    """A session: one life of one worker."""

    identity: bytes
    worker: int
    heard: float
    probed: float = 0.0
    gone_since: float | None = None  # its connection is broken
    layout: list[TensorSpec] | None = None  # of its model; None until it asks to join
    joined: bool = False  # asked to, and has not left
    updates: UpdateReassembler | None = None  # set for good when it is admitted
    answer: m.Joined | None = None  # to its wish to join
    chunks: int = 0  # of what it sends, or of the W_0 that it waits for, that have come in
    told: float = 0.0  # when it was last told that number
    chunks_there: int = 0  # of models, that have come in there
    progress: float = 0.0  # when one of these numbers last changed
    deaf: bool = False  # too much waits for it: it reads nothing
    earlier: Report | None = None  # totals of its worker's former lives
    # the newest message of each kind that it was sent unasked, and may have missed
    retained: dict[type[m.Message], m.Message] = field(default_factory=dict)

    def said_something(self, now: float) -> None:
        """It is alive, and connected."""
        self.heard, self.gone_since = now, None

    def alive(self) -> m.Alive:
        """What it is told to know that the server lives."""
        return m.Alive(self.chunks)

    def chunk_came(self, now: float) -> None:
        """Of a vector that is not complete yet."""
        self.chunks, self.progress = self.chunks + 1, now

    def fetched(self, chunks: int, now: float) -> None:
        """It says that so many chunks of models have come in."""
        if chunks != self.chunks_there:
            self.chunks_there, self.progress = chunks, now

    def remember(self, message: m.Message) -> None:
        """Keep what must be repeated when the connection breaks."""
        if isinstance(message, m.Granted | m.Directed | m.Stop | m.Final):
            self.retained[type(message)] = message

    def pushed(self) -> None:
        """It has heard what it was directed to do before this push."""
        self.retained.pop(m.Directed, None)

    def check_push(self, push: Push, newest: int) -> None:
        """Raise WireError for metadata that this worker cannot have; `newest` is a version."""
        if not (push.worker == self.worker and push.seq >= 0
                and 1 <= push.steps <= _MAX_COUNT and 0 <= push.samples <= _MAX_COUNT
                and 0 <= push.base_version <= newest and 0 <= push.seconds <= _MAX_SECONDS
                and all(use is None or 0 <= use <= 1 for use in (push.cpu, push.memory))):
            raise m.WireError(f"worker {self.worker} pushed with impossible metadata {push}")

    def check_query(self, ask: m.CutQuery) -> None:
        """Raise WireError for a question that this worker cannot have."""
        if not (ask.number >= 0 and 1 <= ask.steps <= _MAX_COUNT
                and 0 <= ask.seconds <= _MAX_SECONDS):
            raise m.WireError(f"worker {self.worker} asked with impossible metadata {ask}")


def check_report(report: Report, worker: int) -> None:
    """Raise WireError for totals that cannot be printed."""
    if set(report.seconds) != set(PHASES) or not all(map(math.isfinite, report.seconds.values())):
        raise m.WireError(f"worker {worker} sent an impossible report")


def one_line(text: str) -> str:
    """What a peer wrote, fit for a line of a log."""
    return "".join(c if c.isprintable() else "?" for c in text[:400])


def to_message(effect: effects.Effect) -> m.Message:
    """What a worker is told of an effect of the engine."""
    match effect:
        case effects.Ack():
            return m.Ack(*effect[1:])
        case Granted():
            return m.Granted(effect.version)
        case Directed():
            return m.Directed(effect.direct)
        case effects.CutDecision():
            return m.CutDecision(effect.number, effect.cut)
        case effects.Stop():
            return m.Stop(effect.reason)
        case effects.Final():
            return m.Final(effect.version)
