"""The state that a server resumes from, without the floats: in a checkpoint or snapshot, and in
run.json.

A user may have edited them, or another program may have written them, so they are checked once,
where they are read.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar

import msgspec

from wbsp.core.results import Best
from wbsp.core.site.work import SiteWorkState
from wbsp.core.state import EngineState, Newest
from wbsp.core.stats import ALWAYS, MemberState, Report
from wbsp.core.store import Whole
from wbsp.limits import Amount, Count, Finite, Line, Sum, Worker, text_of
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import Entries, LayerStates, Names, TensorSpec

FORMAT = 2  # of the state; 1: a table of workers for each total; 0: like 1, without the number

T = TypeVar("T")
Staleness = Annotated[dict[Annotated[str, msgspec.Meta(pattern="^(pushes|sum|max)$")], Sum],
                      msgspec.Meta(min_length=3)]
Voter = tuple[int, str]  # a worker, and its process, as `owner`; "": not a member yet


@dataclass
class Totals(Report):
    """Totals of a worker over all its incarnations; a report bounds those of one incarnation."""

    steps: Sum = 0
    samples: Sum = 0
    loss: float = float("nan")
    losses: Finite = 0.0
    measured: Sum = 0
    seconds: dict[str, Finite] = field(default_factory=lambda: dict.fromkeys(ALWAYS, 0.0))
    pushes: Sum = 0
    push_seconds: Finite = 0.0
    last_push_seconds: Finite = 0.0
    pulls: Sum = 0
    pull_seconds: Finite = 0.0
    last_pull_seconds: Finite = 0.0
    push_bytes: Sum = 0
    control_bytes: Sum = 0
    pull_bytes: Sum = 0
    behind: Sum | None = None
    signs: Sum = 0

    @classmethod
    def of(cls, earlier: Report | None, newest: Report) -> Totals:
        """Add the totals of earlier incarnations, if any, and of the newest."""
        return cls(**vars(earlier + newest if earlier else newest))


@dataclass
class IndexOwner:
    """The process that owns a worker's index; only it may reattach."""

    owner: str  # as in `messages.Joined`; a hash, which opens nothing
    earlier: Totals | None  # totals of the worker's earlier incarnations


@dataclass
class AboveState:
    """A site's state of its line to the server above, from which it resumes, without the vectors.

    `steps`, `samples` and `seconds` count the work in this site's versions that is in no cut.

    Attributes:
        run: id of the run above.
        next_seq: number of this site's next cut there.
        kept: work in the newest cut, whose answer is not known: steps, samples, seconds; None: it
            is known.
        final: this site's newest version is the last one of the run above.
        work: of the data that all workers of the run share; None: each has its own.
    """

    run: str = ""
    next_seq: Count = 0
    steps: Sum = 0
    samples: Sum = 0
    seconds: Amount = 0.0
    kept: tuple[Sum, Sum, Amount] | None = None
    final: bool = False
    work: SiteWorkState | None = None


@dataclass(kw_only=True)
class RunState(EngineState):
    """The state of a run without the tensors of a version.

    Attributes:
        elapsed: seconds of the run's time.
        trains_since: seconds of the run's time at which training began; None: it had not.
        stopped: why the run has ended; None: it has not, or that is not known.
        over: all workers that wanted the last version have it; only the last files are missing.
        reports: each worker's totals, over all its incarnations.
        places: worker -> its newest process that was a member.
        layers: state of layers that no version carries; None: not known.
        local: names of variables that each worker keeps for itself.
        entries: further entries of a file of the model, without its variables.
        best: the best version by evaluations; None: no named metric was evaluated.
        above: for a site, its line to the server above; None: this server is not a site's.
    """

    format: Count = FORMAT
    elapsed: Amount
    trains_since: Amount | None = None
    stopped: Line | None = None
    over: bool = False
    staleness: Staleness | None = None
    failures: dict[str, Sum] = field(default_factory=dict)
    reports: dict[Worker, Totals] = field(default_factory=dict)
    places: dict[Worker, IndexOwner] = field(default_factory=dict)
    layers: LayerStates | None = None
    local: Names = field(default_factory=list)
    entries: Entries = field(default_factory=list)
    best: Best | None = None
    above: AboveState | None = None

    @classmethod
    def from_json(cls, state: Any) -> RunState:
        """Convert and check JSON.

        Raises:
            ValueError: no server has written it; one line.
        """
        written = state.get("format", 0) if isinstance(state, dict) else 0
        if isinstance(written, int) and written > FORMAT:
            raise ValueError(f"its state has format {written}, of a later release; this release "
                             f"reads formats up to {FORMAT}: install the later one")
        if isinstance(state, dict) and written in (0, 1):
            state = _with_members(state)
        return _converted(state, cls, "its state")

    def to_json(self) -> dict[str, Any]:
        """Return the input of `from_json`, fit for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return plain

    def voters(self, workers: int) -> frozenset[Voter]:
        """Return the workers' processes at that time, in a run of `workers`."""
        return frozenset((worker, self.places[worker].owner if worker in self.places else "")
                         for worker in (range(workers) if self.awaited is None else self.awaited))


class Snapshot(NamedTuple):
    """A version with nothing pending, and its state.

    Attributes:
        t: seconds of the run.
        mark: it holds the decisions under this mark and lower ones.
        newest: as `Engine.newest`.
        whole: its tensors, once the shards have sent them.
        layout: of its vector.
        frozen: variables of the run that no step changes.
    """

    t: float
    mark: int
    newest: Newest
    state: RunState
    whole: Future[Whole]
    layout: list[TensorSpec]
    frozen: FrozenValues


def _with_members(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of format 1, which had one table for each total, in today's format."""
    names = {field.name for field in fields(MemberState)}
    members: dict[str, dict[str, Any]] = {}
    for name in names & state.keys():
        if not isinstance(state[name], dict):
            raise ValueError(f"its state is damaged: {name} is no table by workers")
        for worker, value in state[name].items():
            members.setdefault(worker, {})[name] = value
    return {key: value for key, value in state.items() if key not in names} | {"members": members}


class _Run(TypedDict, total=False):
    id: str
    secret: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    epoch: Count
    workers: Annotated[int, msgspec.Meta(ge=1)]
    wire: str
    ranges: str
    standby: str | None
    beside: str | None
    elected: int | None
    port: int
    ended: bool
    outer: dict[str, Any]
    series: str
    fit: Annotated[int, msgspec.Meta(ge=1)]
    living: list[Worker]
    gone: list[Worker]
    have: list[Worker]
    chosen: dict[Worker, str]
    nameless: list[str]
    past: str


_FOLLOWED = "id", "epoch", "workers"  # of a run that has a standby


def check_run(run: Any, of: str) -> dict[str, Any]:
    """Check the settings `run` from JSON; other fields than these stay unchecked.

    Raises:
        ValueError: no server has written them; one line that begins with `of`.
    """
    _converted(run, _Run, of)
    missing = [name for name in _FOLLOWED if name not in run]
    if run.get("standby") is not None and missing:
        raise ValueError(f"{of} names a standby, and lacks {', '.join(missing)}")
    checked: dict[str, Any] = run
    return checked


def _converted(value: Any, kind: type[T], of: str) -> T:
    try:
        return msgspec.convert(value, kind, str_keys=True, dec_hook=text_of)
    except msgspec.ValidationError as error:
        raise ValueError(f"{of} is damaged: {error}") from None
