"""What a server keeps beside the floats to go on from: its state in a checkpoint or copy, and the
settings in run.json.

Both may have been edited by a person, or come from another program: they are checked once, where
they are read. Fields that are not named here stay as they are.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec

from wbsp.runlog.report import Report

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]  # finite, too
Worker = Count


class _Place(TypedDict):
    owner: str
    earlier: Report | None


class _Staleness(TypedDict):
    pushes: Count
    sum: Count
    max: Count


class _First(TypedDict):
    version: Count
    elapsed: Amount
    next_seq: dict[Worker, Count]
    totals: tuple[Count, Amount]


class SavedState(_First, total=False):
    """State beside a version. What a later release than the first has added may be missing.

    answers: worker -> seq, accepted, reason, weight and mark of the answer to its newest push
    ended:   the version is the run's last
    over:    all workers that wanted it have it: nothing is left to do but the last files
    """

    mark: Count
    answers: dict[Worker, tuple[Count, bool, str | None, float, Count]]
    awaited: list[Worker] | None
    ended: bool
    over: bool
    steps: dict[Worker, Count]
    samples: dict[Worker, Amount]
    seconds: dict[Worker, Amount]
    pushes: dict[Worker, Count]
    base: dict[Worker, Count]
    rounds: dict[Worker, Count]
    rejected: dict[Worker, dict[str, Count]]
    staleness: _Staleness
    failures: dict[str, Count]
    reports: dict[Worker, Report]
    places: dict[Worker, _Place]


class _Run(TypedDict, total=False):
    id: str
    epoch: Count
    workers: Annotated[int, msgspec.Meta(ge=1)]
    wire: str
    ranges: str
    standby: str | None
    outer: dict[str, Any]


_FOLLOWED = "id", "epoch", "workers"  # of a run that has a standby


def check_state(state: Any) -> dict[str, Any]:
    """`state`, which was JSON. Raises ValueError, in one line, for one that no server made."""
    _converted(state, SavedState, "its state")
    return state


def check_run(run: Any, of: str) -> dict[str, Any]:
    """The settings `run`, which were JSON. Raises ValueError, in one line that begins with `of`,
    for those that no server wrote."""
    _converted(run, _Run, of)
    missing = [name for name in _FOLLOWED if name not in run]
    if run.get("standby") is not None and missing:
        raise ValueError(f"{of} names a standby, and lacks {', '.join(missing)}")
    return run


def _converted(value: Any, kind: Any, of: str) -> None:
    try:
        msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"{of} is damaged: {error}") from None
