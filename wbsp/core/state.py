"""The state from which an engine resumes, without the tensors of its newest version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from wbsp.core.stats import MemberState
from wbsp.core.work.strikes import Doubt
from wbsp.core.work_ledger import WorkState
from wbsp.limits import Count, Finite, Metrics, Sum, Worker


@dataclass(kw_only=True)
class EngineState:
    """The state of an `Engine` at a version, with nothing pending.

    Fields that a later release than the first one has added have a default, because they may be
    missing in an older file.

    Attributes:
        version: number of the version.
        next_seq: worker -> the number that its next push must have.
        totals: steps and samples of all workers.
        members: each worker's totals, over all its incarnations.
        work: of the data that all workers share; None: each has its own.
        doubts: workers whose newest pushes were not finite.
        rate: epoch and value of the learning rate that a worker has set for all.
        measured: the newest result of an epoch's validation, and its epoch.
        found: known results of each epoch.
        mark: as in `Ledger`.
        answers: worker -> seq, accepted, reason, weight and mark of the answer to its newest push.
        awaited: workers that had joined and not left for good; None: training had not begun.
        ended: the version is the run's last.
        owed: workers that had finished and did not have that version yet; None: not known.
    """

    version: Count
    next_seq: dict[Worker, Count]
    totals: tuple[Sum, Sum]
    members: dict[Worker, MemberState] = field(default_factory=dict)
    work: WorkState | None = None
    doubts: dict[Worker, Doubt] = field(default_factory=dict)
    rate: tuple[Count, Finite] | None = None
    measured: tuple[Count, Metrics] | None = None
    found: dict[Count, Metrics] = field(default_factory=dict)
    mark: Count = 0
    answers: dict[Worker, tuple[Count, bool, str | None, float, Count]] = field(
        default_factory=dict)
    awaited: list[Worker] | None = None
    ended: bool = False
    owed: list[Worker] | None = None


class Newest(NamedTuple):
    """What a checkpoint would hold at some time; a later one is not smaller.

    Attributes:
        version: the newest.
        ended: all workers have finished. It must be saved, too: a server that resumed without it
            might readmit a worker, and end with another version.
        last: no version follows. The workers of a site finish before the run above ends, whose last
            version is the site's.
    """

    version: int
    ended: bool
    last: bool
