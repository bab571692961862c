"""The contract between a synchronization model and everything around it.

A model decides and never acts. It receives events (a worker joined, left, pushed or asked; its
alarm time came) and answers each with actions. In this folder there are no sockets, threads,
tensors or clocks: the time is an argument, in seconds, so that the same object serves the
real parameter server, the virtual-time cluster and a property test that runs in microseconds.

Words: a *push* is an update in transit to the server; to *accept* it is to fold weight * update
into the pending sum; to *commit* is to make the next version W + pending; a *grant* permits one
worker to fetch the newest version. A worker is *active* from its `join` to its `leave`.

What the caller guarantees:

- One thread calls, one event at a time, and `now` never decreases.
- `join` is called for all workers of the first moment together, in ascending order, and then for
  each worker that joins later or again. It is not called after the stop of a run.
- `push` is called once for each update of an active worker, also after the stop. A repeated message
  never reaches the model.
- `leave` is called for a worker that is lost, and for a worker that finishes before the stop. A
  worker that finishes after the stop stays active, so that the last pushes of the others keep
  their weights.
- `query` is called only under the rule push="on_query", once for a question, not after the stop.
- `tick` is called when `now` >= `alarm`: perhaps late, never early. The caller reads `alarm` after
  every event.
- `committed` is called once for each version, in order, after the event that made it: with shards
  perhaps some events later, and of the last versions of a run perhaps never. It has no answer.
- A resumed run has a new model: its versions and sequence numbers begin above 0. For workers whose
  processes survived, `rejoin` is called in place of `join`, also after the stop: their first push
  may be computed from an older version than was granted. See docs/explanation/fault-tolerance.md.

What a model guarantees (a violation raises `ContractError` where the answer is received; a server
ends its run then, as it does when a method of the model raises anything):

- The answer to a push holds exactly one Accept or Reject, of that push; no other answer holds any.
- Accept stands before Commit, so that nothing is pending when the event has ended: checkpoints are
  made at such moments.
- `active` holds a worker after its `join` or `rejoin`, and no longer after its `leave`: methods
  that override these call the base's. `alarm` is seconds or None.
- The answer to a query holds exactly one Direct to that worker with `cut` True or False.
- Grant and Direct name workers that have joined. One to a worker that has left is ignored: a faulty
  worker, which pushes where it should wait, may cause it. A Grant may repeat the version that the
  worker has: see `WorkerRule.adopt`.

What a model guarantees and no caller can check at once:

- Every waiting worker receives a Grant eventually, whichever worker leaves meanwhile; without it
  the run stalls. A worker waits from its join on, and after a push if the rule has wait="model" or
  the answer to the push holds Direct(worker, hold=True).
- `tick` sets `alarm` to a later time, or to None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args


class ContractError(RuntimeError):
    """A synchronization model broke the contract.

    The message names the model, the event and the action.
    """


class Push(NamedTuple):
    """Metadata of one update; the tensor itself never reaches a model.

    Attributes:
        worker: index of the worker.
        seq: 0, 1, 2 ... of each worker, over the whole run.
        base_version: the version from which its first step was computed.
        steps: mini-batches in it.
        samples: examples in it.
        seconds: of computing in it; waiting excluded.
        loss: mean training loss of its steps, where known.
        cpu: share of the machine's processors in use, 0..1, where measured.
        memory: share of the machine's memory in use, 0..1, where measured.
        to: with shared data: the position in the worker's sequence at the end of this push.
        dropped: with shared data: examples up to this position, since the worker's last push, are
            in no push, because they were dropped with a model that was not finite.
        spans: of a site, with shared data: the positions in this push, each as its first and the
            one behind its last, in ascending order; `to` is None then.
        norm2: squared norm of the update, as it was sent, to 5 digits; None: the caller knows no
            tensors. It is the same on one server and on shards.
        batch: with shared data, under `WorkerRule.sizes`: examples of a step that the user chose;
            None: its worker trains no other number.
        least: with `batch`: the fewest examples of a step that its worker may train.
    """

    worker: int
    seq: int
    base_version: int
    steps: int
    samples: int
    seconds: float
    loss: float | None = None
    cpu: float | None = None
    memory: float | None = None
    to: int | None = None
    dropped: int | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    norm2: float | None = None
    batch: int | None = None
    least: int = 1


class Accept(NamedTuple):
    """Fold `weight * update` into the pending sum.

    Attributes:
        push: the push of the update.
        weight: of the update, 0 or more.
    """

    push: Push
    weight: float


class Reject(NamedTuple):
    """Drop the update.

    Attributes:
        push: the push of the update.
        reason: is counted and logged.
    """

    push: Push
    reason: str


class Commit(NamedTuple):
    """Make the next version: W + pending."""


class Grant(NamedTuple):
    """Permit one worker to fetch the newest version.

    Attributes:
        worker: index of the worker.
    """

    worker: int


class Direct(NamedTuple):
    """An instruction to one worker beyond its rule. A field left at None changes nothing.

    Attributes:
        worker: index of the worker.
        hold: after this push, wait for a grant before the next step.
        cut: True: push at the next step's end (or now, if the worker asked); False: the answer
            "continue" to a worker that asked. With push="when_idle": False: push nothing until
            directed with True.
        batch: examples of its next step and of those after it.
        start: with `batch`: where in the shared stream the next step's examples begin; the
            positions that one worker is given increase. Without effect where the run's workers
            share data: the work ledger chooses from these.
        why: with `batch`: the reason, in a few words for the user.
    """

    worker: int
    hold: bool | None = None
    cut: bool | None = None
    batch: int | None = None
    start: int | None = None
    why: str | None = None


_PUSH = Literal["every_step", "when_idle", "on_adopt", "directed", "on_query"]
_WAIT = Literal["model", "ack", "never"]
_ADOPT = Literal["replace", "rebase", "return"]
Action = Accept | Reject | Commit | Grant | Direct

# Reasons of rejections that are not the model's: values that are NaN or infinite, and values of
# which a version would be.
NOT_FINITE, TOO_LARGE = "not finite", "too large"
UNFIT = frozenset({NOT_FINITE, TOO_LARGE})


@dataclass(frozen=True)
class WorkerRule:
    """The rule that every worker of a model follows. Workers know nothing else of the model.

    Attributes:
        push: at which step's end the progress is cut and pushed: at every one (or every
            `every`-th), whenever the network is idle, when a version has arrived, when the server
            directs it, or when the server's answer to a query at each step's end directs it.
        wait: what the compute thread waits for after a cut: the next granted model, the server's
            acknowledgement (and the model only if it is directed to), or nothing.
        adopt: how a granted version W becomes the live model x: `replace` x = W, or `rebase`
            x = W + uncut progress; `return` is `replace`, but the grant of the version that the
            worker has takes x back to it and fetches nothing. With push="when_idle", `replace`
            loses the progress that is not cut: no push will hold those steps.
        every: steps in a push; with push="when_idle": the least steps.
        micro_batches: steps into which a mini-batch is split; each trains batch / micro_batches
            examples.
        shared: all workers share one stream of examples; the server assigns the examples.
        batch: examples of a worker's first step, where the server directs the sizes of batches;
            None: each worker has a size of its own.
        sizes: where workers share data, the model directs the sizes of batches, below the user's:
            a worker whose loop sets its learning rate by them says so in its pushes.

    Raises:
        ValueError: a value is unknown, or two fields contradict each other.
    """

    push: _PUSH
    wait: _WAIT
    adopt: _ADOPT
    every: int = 1
    micro_batches: int = 1
    shared: bool = False
    batch: int | None = None
    sizes: bool = False

    def __post_init__(self) -> None:
        for name, known in (("push", _PUSH), ("wait", _WAIT), ("adopt", _ADOPT)):
            if (value := getattr(self, name)) not in get_args(known):
                raise ValueError(f"a WorkerRule has {name}={value!r}, which is not one of "
                                 f"{', '.join(get_args(known))}")
        if self.push == "every_step" and self.wait == "never":
            raise ValueError("push='every_step' needs wait='model' or 'ack': a worker that never "
                             "waits may meet a busy sender; use push='when_idle'")
        if self.adopt == "return" and self.wait == "never":
            raise ValueError("adopt='return' needs wait='model' or 'ack': only a worker that waits "
                             "can be granted the version that it has")

    @property
    def loses_steps(self) -> bool:
        """True if adopting a version discards progress that is not cut."""
        return self.push == "when_idle" and self.adopt == "replace"


@dataclass(frozen=True)
class Option:
    """One named setting of a model.

    Attributes:
        default: its type is the type of the option.
        help: one line: meaning, and unit if it has one.
        low: least value, or None.
        high: greatest value, or None.
        choices: the permitted texts, or None.
    """

    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None

    def parse(self, model: str, name: str, value: Any) -> Any:
        """Return `value` (text from a flag, or a Python value) as this option's type.

        Raises:
            ValueError: the value has another type, or is out of range; one line.
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


class _Optioned(Protocol):
    name: ClassVar[str]
    OPTIONS: ClassVar[dict[str, Option]]


def set_options(owner: _Optioned, options: Mapping[str, Any]) -> None:
    """Set each of `owner.OPTIONS` as an attribute: the given text or Python value, or its default.

    Raises:
        ValueError: an option is unknown, or a value is bad; one line.
    """
    unknown = sorted(set(options) - set(owner.OPTIONS))
    if unknown:
        known = ", ".join(owner.OPTIONS) or "none"
        raise ValueError(f"{owner.name}: unknown option {unknown[0]!r}; known: {known}")
    for key, option in owner.OPTIONS.items():
        setattr(owner, key, option.parse(owner.name, key, options.get(key, option.default)))


class About(NamedTuple):
    """A model's row in the table of all models."""

    bound: str  # bound on the staleness of updates, or on the drift between workers
    waits: str  # which workers wait, and for what
    traffic: str  # whole models on the wire
    source: str
    certainty: str  # what of it is published, what reconstructed


class SyncModel:
    """Base of all synchronization models: checks the options, keeps the active workers.

    A subclass sets `name`, `rule` (in the class, or in __init__ where options decide it) and
    OPTIONS, and answers events by the contract at the head of this module. A model of this package
    sets `about`, too.

    Attributes:
        name: the model in logs, figures and names of files: letters, digits, "_" and "-".
        OPTIONS: each is an attribute of the instance. The option `batch`, where it is a number, is
            the size of batches: its default is the batch size that a launcher was given.
        outer, wire: the outer step, and the format on the wire, of a run that names none; see
            docs/reference/outer.md and docs/how-to/less-traffic.md.
        active: the workers that take part; N is their number.
        alarm: the time (seconds) from which `tick` is due, or None.
        version: the newest that this object knows of: see `lag`.
    """

    name: ClassVar[str]
    about: ClassVar[About]
    rule: WorkerRule
    OPTIONS: ClassVar[dict[str, Option]] = {}
    outer: ClassVar[str] = "identity"
    wire: ClassVar[str] = "float32"
    alarm: float | None = None
    version: int = 0

    def __init__(self, **options: object):
        set_options(self, options)
        self.active: set[int] = set()

    @classmethod
    def outer_options(cls, workers: int) -> Mapping[str, Any]:
        """Options of `outer` in a run with this number of workers, where it names no others."""
        return {}

    def weight_of(self, push: Push) -> float:
        """Return the weight of an accepted update: 1 / N unless a model overrides it."""
        return 1 / len(self.active)

    def lag(self, push: Push) -> int:
        """Return how many versions are newer than the one that this push was computed from.

        For models that make each version by `next_version`. The first version of a resumed run is
        unknown to the model, so that the highest base version of a push stands for it.
        """
        self.version = max(self.version, push.base_version)
        return self.version - push.base_version

    def next_version(self) -> Commit:
        """Return a Commit, and count it for `lag`."""
        self.version += 1
        return Commit()

    def join(self, worker: int, now: float) -> list[Action]:
        """Handle a worker that has joined; it needs a grant before its first step."""
        self.active.add(worker)
        return [Grant(worker)]

    def rejoin(self, worker: int, ahead: int, now: float) -> list[Action]:
        """Handle a worker that continues after its server was restarted or had dropped it.

        Where workers wait for each version, a worker in mid-step needs no grant for that step: the
        caller withholds its first grant unless a push of the worker precedes it.

        `rejoin` is also called for a worker that has left ahead of the others; its `leave` follows
        at once.

        Args:
            worker: index of the worker.
            ahead: rounds for which this worker has pushed already and another active worker has
                not; 0 where workers do not wait for versions. An earlier model accepted the pushes
                of these rounds; this one grants their versions.
            now: seconds.
        """
        return self.join(worker, now)

    def leave(self, worker: int, now: float) -> list[Action]:
        """Handle a worker that has finished or was lost; its accepted updates stay accepted."""
        self.active.discard(worker)
        return []

    def push(self, push: Push, now: float) -> list[Action]:
        """Handle an update; the answer holds exactly one Accept or Reject of it."""
        raise NotImplementedError

    def query(self, worker: int, steps: int, seconds: float, now: float) -> list[Action]:
        """Answer a worker with push="on_query" at the end of a step.

        Args:
            worker: index of the worker.
            steps: its steps that are not cut yet.
            seconds: of its newest step.
            now: seconds.

        Returns:
            Actions, exactly one of them a Direct to the worker with `cut` True or False.
        """
        raise NotImplementedError

    def tick(self, now: float) -> list[Action]:
        """Handle the time `alarm`."""
        return []

    def committed(self, version: int, norm2: float | None, now: float) -> None:
        """Receive the norm of the sum of which a version was made.

        Args:
            version: its number.
            norm2: squared norm of the sum of weight * update, before the outer step, to 5 digits;
                None: the caller knows no tensors.
            now: seconds.
        """
