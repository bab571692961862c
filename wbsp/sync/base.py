"""The contract between a synchronization model and everything around it.

A model decides; it never acts. It is told what happened (a worker joined, left, pushed; time
passed) and answers with actions. In this folder there are no sockets, threads, tensors or clocks:
the time comes in as an argument, in seconds, so that the same object serves the real parameter
server, the virtual-time cluster and a property test that runs in microseconds.

Words: a *push* is an update on its way to the server; to *accept* it is to fold weight * update
into the pending sum; to *commit* is to make the next version W + pending; a *grant* permits one
worker to fetch the newest version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple


class ContractError(RuntimeError):
    """A model's answer is not one that `SyncModel` allows; the run cannot go on with it."""


class Push(NamedTuple):
    """What is known of one update; the tensor itself never reaches a model."""

    worker: int
    seq: int  # 0, 1, 2 ... per worker over the whole run
    base_version: int  # the version its first step was computed from
    steps: int  # mini-batches in it
    samples: int
    seconds: float  # of compute in it; waiting excluded
    loss: float | None = None  # mean training loss of its steps, where known
    cpu: float | None = None  # share of the machine's processors in use, 0..1, where measured
    memory: float | None = None  # share of the machine's memory in use, 0..1, where measured


class Accept(NamedTuple):
    """Fold `weight * update` into the pending sum."""

    push: Push
    weight: float


class Reject(NamedTuple):
    """Drop the update; the reason is counted and logged."""

    push: Push
    reason: str


class Commit(NamedTuple):
    """Make the next version: W + pending.

    An event's Accept comes before its Commit, so that nothing is pending when the event has ended:
    checkpoints are made at such moments.
    """


class Grant(NamedTuple):
    """Permit one worker to fetch the newest version."""

    worker: int


class Direct(NamedTuple):
    """Tell one worker something beyond its rule. A field left at None says nothing."""

    worker: int
    hold: bool | None = None  # after this push, wait for a grant before the next step
    cut: bool | None = None  # True: hand over the progress at the next step's end (or now, if the
    #                          worker asked); False: the answer "go on" to a worker that asked
    batch: int | None = None  # examples of its next step and those after it
    start: int | None = None  # with `batch`: where in the shared stream the next step's examples
    #                           begin; positions given to one worker increase


Action = Accept | Reject | Commit | Grant | Direct


@dataclass(frozen=True)
class WorkerRule:
    """What every worker of a model does on its own.

    push:  at which step's end the progress is cut and pushed: at every one (or every `every`-th),
           whenever the network is idle, when a version has come in, when the server directs it,
           or, after asking the server at each step's end, when that says so
    wait:  what the compute thread waits for after a cut: the next granted model, the server's
           acknowledgement (and the model only if that says so), or nothing
    adopt: how a fetched version W becomes the live model x: `replace` x = W, or `rebase`
           x = W + uncut progress
    every: with push="every_step": steps in a push
    micro_batches: steps into which a mini-batch is split; each trains batch / micro_batches
           examples
    shared: examples come from one stream that all workers share; the server says who trains which
    """

    push: Literal["every_step", "when_idle", "on_adopt", "directed", "on_query"]
    wait: Literal["model", "ack", "never"]
    adopt: Literal["replace", "rebase"]
    every: int = 1
    micro_batches: int = 1
    shared: bool = False

    def __post_init__(self):
        if self.push == "every_step" and self.wait == "never":
            raise ValueError("push='every_step' needs wait='model' or 'ack': a worker that never "
                             "waits may meet a busy sender; use push='when_idle'")


@dataclass(frozen=True)
class Option:
    """One named setting of a model: its type, default, limits, and a line of help."""

    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None

    def parse(self, model: str, name: str, value: Any) -> Any:
        """Return `value` (text from a flag, or a Python value) as this option's type.

        Raises ValueError, in one line, when it is of another type or out of range.
        """
        kind = type(self.default)
        try:
            if kind is bool and isinstance(value, str):
                value = {"true": True, "1": True, "yes": True,
                         "false": False, "0": False, "no": False}[value.lower()]
            result = kind(value)
            if kind is int and not isinstance(value, str) and result != value:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{model}: option {name}={value!r} is not of type {kind.__name__}; "
                             f"{self.help}") from None
        if self.low is not None and not result >= self.low:
            raise ValueError(f"{model}: option {name}={value} is below {self.low:g}; {self.help}")
        if self.high is not None and not result <= self.high:
            raise ValueError(f"{model}: option {name}={value} is above {self.high:g}; {self.help}")
        if self.choices and result not in self.choices:
            raise ValueError(f"{model}: option {name}={value!r} is not one of "
                             f"{', '.join(self.choices)}")
        return result


class About(NamedTuple):
    """A model at a glance; the table of all models is made of these."""

    bound: str  # what it promises about stale updates, or how far workers drift apart
    waits: str  # who waits, and for what
    traffic: str  # whole models on the wire
    source: str
    certainty: str  # what of it is published, what reconstructed


class SyncModel:
    """Base of all synchronization models: checks the options, keeps who is active.

    A subclass sets `name`, `about`, `rule` and `OPTIONS`, and answers events. It may be driven from
    one thread only. `alarm` is the time (seconds) at which it wants `tick` to be called, or None.
    """

    name: ClassVar[str]
    about: ClassVar[About]
    rule: WorkerRule
    OPTIONS: ClassVar[dict[str, Option]] = {}
    alarm: float | None = None

    def __init__(self, **options: Any):
        unknown = sorted(set(options) - set(self.OPTIONS))
        if unknown:
            known = ", ".join(self.OPTIONS) or "none"
            raise ValueError(f"{self.name}: unknown option {unknown[0]!r}; known: {known}")
        for key, option in self.OPTIONS.items():
            setattr(self, key, option.parse(self.name, key, options.get(key, option.default)))
        self.active: set[int] = set()

    def join(self, worker: int, now: float) -> list[Action]:
        """A worker entered the run; it needs a grant before its first step."""
        self.active.add(worker)
        return [Grant(worker)]

    def leave(self, worker: int, now: float) -> list[Action]:
        """A worker finished or died; what it had pushed stays accepted."""
        self.active.discard(worker)
        return []

    def push(self, push: Push, now: float) -> list[Action]:
        """An update arrived; exactly one Accept or Reject of it is among the answer."""
        raise NotImplementedError

    def query(self, worker: int, steps: int, seconds: float, now: float) -> list[Action]:
        """A worker with push="on_query" ended a step of `seconds`, and holds `steps` uncut ones.

        Exactly one Direct to it with `cut` True or False is among the answer.
        """
        raise NotImplementedError

    def tick(self, now: float) -> list[Action]:
        """The time `alarm` has come."""
        return []


class Round:
    """Who has yet to push since the last commit: the barrier of BSP and the trigger of WBSP.

    A round is complete when every active worker has pushed at least once in it. Each call costs
    O(1) amortized over the pushes of a round.
    """

    def __init__(self, active: set[int]):
        self._active = active
        self._missing: set[int] = set()
        self._pushed = False

    def join(self, worker: int) -> None:
        self._missing.add(worker)

    def leave(self, worker: int) -> None:
        self._missing.discard(worker)

    def push(self, worker: int) -> None:
        self._missing.discard(worker)
        self._pushed = True

    @property
    def complete(self) -> bool:
        return self._pushed and not self._missing

    def restart(self) -> None:
        self._missing = set(self._active)
        self._pushed = False
