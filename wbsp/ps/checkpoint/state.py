"""What a server keeps beside the floats to go on from: its state in a checkpoint or copy, and the
settings in run.json.

Both may have been edited by a person, or come from another program: they are checked once, where
they are read. Fields that are not named here stay as they are.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec

from wbsp.core.stats import Report
from wbsp.limits import Count, Worker
from wbsp.tensors.layout import LayerStates

# Sums have no bound above: what a state may hold is no less than what its server may have added up.
Sum = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1.7e308)]  # finite, too


class _Totals(TypedDict, total=False):
    """As `Report`, which bounds what a worker says."""

    steps: Sum
    samples: Sum
    loss: float
    seconds: dict[str, Amount]
    pushes: Sum
    push_seconds: Amount
    last_push_seconds: Amount
    pulls: Sum
    pull_seconds: Amount
    last_pull_seconds: Amount
    push_bytes: Sum
    control_bytes: Sum
    pull_bytes: Sum


class _Place(TypedDict):
    owner: str
    earlier: _Totals | None


class _Staleness(TypedDict):
    pushes: Sum
    sum: Sum
    max: Sum


class _First(TypedDict):
    version: Count
    elapsed: Amount
    next_seq: dict[Worker, Count]
    totals: tuple[Sum, Sum]


class SavedState(_First, total=False):
    """State beside a version. What a later release than the first has added may be missing.

    answers: worker -> seq, accepted, reason, weight and mark of the answer to its newest push
    ended:   the version is the run's last
    owed:    workers that had finished then, and did not have that one yet
    over:    all workers that wanted it have it: nothing is left to do but the last files
    """

    mark: Count
    answers: dict[Worker, tuple[Count, bool, str | None, float, Count]]
    awaited: list[Worker] | None
    ended: bool
    owed: list[Worker]
    over: bool
    steps: dict[Worker, Sum]
    samples: dict[Worker, Sum]
    seconds: dict[Worker, Amount]
    pushes: dict[Worker, Sum]
    base: dict[Worker, Sum]
    rounds: dict[Worker, Sum]
    rejected: dict[Worker, dict[str, Sum]]
    staleness: _Staleness
    failures: dict[str, Sum]
    reports: dict[Worker, _Totals]
    places: dict[Worker, _Place]
    layers: LayerStates | None


class _Run(TypedDict, total=False):
    id: str
    secret: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    epoch: Count
    workers: Annotated[int, msgspec.Meta(ge=1)]
    wire: str
    ranges: str
    standby: str | None
    port: int
    ended: bool
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


def report_of(totals: dict[str, Any]) -> Report:
    """From a state that was checked."""
    return Report(**{name: totals[name] for name in _Totals.__annotations__ if name in totals})


def _converted(value: Any, kind: Any, of: str) -> None:
    try:
        msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"{of} is damaged: {error}") from None
