"""Messages between the server's engine and the workers' agents: one class a message.

The engine returns these messages and the agent takes them, in virtual time without a wire. Between
a real server and its workers they travel in the frames of `wbsp.wire.messages`; the fields that
only a real server knows have defaults, and the server fills them in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec

from wbsp.core.permutation import NAME
from wbsp.limits import (
    SPANS,
    Addresses,
    Bytes,
    Count,
    Id,
    Line,
    Mac,
    Offset,
    OrNone,
    Position,
    Random,
    Real,
    Reason,
    Seconds,
    Size,
    Worker,
)
from wbsp.sync import base
from wbsp.sync.base import Push

if TYPE_CHECKING:
    from wbsp.sync.base import Direct
else:
    class Direct(base.Direct):
        """A model's instruction, as a peer may send it."""

        __slots__ = ()

        worker: Worker
        batch: Count | None
        start: Count | None
        why: Reason | None

NONE = -1  # in place of a version
EXAMPLES, EPOCHS = 1 << 40, 8000  # of shared data, at most


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages. A message is sent as its type's name and its fields' values.

    The types bound each number, text, list and dict: see `wbsp.limits`.
    """


class Place(NamedTuple):
    """Range of floats in shared memory, as a peer gives it: segment number, and bytes in it."""

    segment: Random
    offset: Bytes
    nbytes: Bytes


Span = tuple[Position, Position]  # the first position, and the one after the last


def spans_of(push: Push) -> list[Span]:
    """Return the positions that a site's push names."""
    return [(Position(start), Position(stop)) for start, stop in push.spans or ()]


class SharedData(NamedTuple):
    """The data that all workers of a run share: see `wbsp.core.work_ledger`."""

    n: Annotated[int, msgspec.Meta(ge=1, le=EXAMPLES)]  # examples
    batch: Annotated[int, msgspec.Meta(ge=1, le=EXAMPLES)]  # examples of a step
    epochs: Annotated[int, msgspec.Meta(ge=1, le=EPOCHS)]  # passes of all workers together
    seed: Count = 0  # of the permutation
    order: Id = NAME  # of the permutation
    # "wait": an epoch begins only when the previous one is complete and its version is validated
    validate: Literal["newest", "wait"] = "newest"


class Range(NamedTuple):
    """Positions `start` ... `stop` - 1 of one epoch, which begin at `at` in a worker's sequence."""

    at: Offset
    start: Position
    stop: Position

    @property
    def end(self) -> Offset:
        """Offset in the sequence at which the next range begins."""
        return Offset(self.at + self.stop - self.start)

    def position(self, at: Offset) -> Position:
        """Return the position at an offset, which may be in front of this range, or behind it."""
        return Position(self.start + at - self.at)


Spans = Annotated[list[Span], msgspec.Meta(max_length=SPANS)]


class WorkPlace(NamedTuple):
    """Start of a worker's process in the run's shared data."""

    data: SharedData  # of the run
    at: Offset  # in the worker's sequence
    epoch: Count  # complete ones of the run
    own: Spans = []  # of a resumed site: what it still holds of its claim


class WorkHeld(NamedTuple):
    """The part of the run's shared data that a reconnecting worker holds.

    A site pushes the positions of its sequence in any order, so it lists them: `own` are the
    positions that it was given and that are in no push before number `pushes`; `sent` are the
    positions in its newest push, whose answer it does not know. A worker leaves `own` and `sent`
    empty; a site leaves `held` empty.
    """

    data: SharedData  # of the run
    answered: Offset  # end of its answered pushes in its sequence; of a site: end of its sequence
    held: Annotated[list[Range], msgspec.Meta(max_length=SPANS)]  # after that
    site: bool = False
    own: Spans = []
    sent: Spans = []
    pushes: Count = 0  # number of its next push


class ShardGroup(NamedTuple):
    """The shards that receive a member's floats and send it versions, in the order of the ranges.

    Attributes:
        secret: number shared by this member and its shards, with which each proves itself to the
            other: see `wbsp.wire.proof.attachment`.
        addresses: host and port of each shard; host "": the one at which the server was reached.
    """

    secret: Random
    addresses: Addresses


# To a worker.


class Model(Message, frozen=True):
    """Answer to a Fetch, or to an Update that carries one: the newest version at that time.

    On the wire it is a chunk of the version: of its floats, or of the words of the differences that
    make it from another version, one difference after the other.
    """

    request: Count  # number of the fetch
    version: Count
    offset: Size = 0  # floats or words before this chunk
    size: Size = 0  # of all floats or words
    base: OrNone = NONE  # version that the differences are added to; NONE: whole floats
    place: Place | None = None  # as in Update
    in_blocks: bool = False  # a difference has only its blocks that are not zero


class Ack(Message, frozen=True):
    """Answer to a push: whether it was accepted, and what the worker may do next."""

    seq: Count
    accepted: bool
    reason: Reason | None = None  # of the rejection
    granted: Count | None = None  # version that the worker may fetch
    hold: bool = False  # wait for a grant before the next step
    weight: float = 0.0  # with which the update was accepted; 0 if it was not
    mark: Count = 0  # under which it was decided: see `Ledger`
    steps: Count = 0  # of all workers in the run so far, those of this push included; 0: not known
    durable: Count = 0  # decisions under a lower mark are in a checkpoint
    model: Model | None = None  # the granted version, whole, where memory is shared
    examples: Count = 0  # as Joined.run_examples, those of this push included; 0: not known


class Reattached(Message, frozen=True):
    """Answer to Reattach: continue, and repeat messages that were not answered."""

    epoch: Count  # number of this start of the run's server
    joined: bool  # the worker has joined the model again; False: it had never left
    safe: Count  # pushes below this number are durable
    mark: Count  # of the resent sum
    ack: Ack | None  # answer to the worker's newest push, which may have been lost
    group: ShardGroup | None = None
    memory: Random = 0  # as in Joined
    ticket: Mac = b""  # as in Joined, of this epoch
    since: Count = 0  # epoch with which this server, and its ledger, began; 0: this one
    void: bool = False  # the resent sum is rejected: other workers had done a part of its work
    own: Spans = []  # of a site: what it still holds of the shared data
    epochs: Count = 0  # ... and the complete ones of the run


class Granted(Message, frozen=True):
    """Permission to fetch a version, or a newer one."""

    version: Count
    request: Count = 0  # number of the fetch that the worker's newest push left; 0: it left none
    follows: bool = False  # the answer to that fetch follows; the worker need not request it


class Directed(Message, frozen=True):
    """Instruction of the synchronization model to one worker."""

    direct: Direct


class CutDecision(Message, frozen=True):
    """Answer to CutQuery `number`: cut, or continue."""

    number: Count
    cut: bool


class Work(Message, frozen=True):
    """Answer to AskWork: a range of the run's work.

    start == stop: no work is free now; another Work follows as soon as some is.
    """

    at: Offset  # end of the worker's sequence so far
    start: Position
    stop: Position
    epoch: Count  # complete ones of the run


class Withdrawn(Message, frozen=True):
    """To a site: the server has taken back all that the site holds of its sequence up to `at`.

    It waits for a version, and others need the work now.
    """

    at: Offset


class Measured(Message, frozen=True):
    """Results of an epoch's version, measured by a worker; the server forwards them to all."""

    epoch: Count  # complete ones then
    values: Annotated[dict[Id, Real], msgspec.Meta(max_length=64)]


class LearningRate(Message, frozen=True):
    """New learning rate of all workers, set by one worker's callback after an epoch's results.

    The server forwards it to all. The first of an epoch counts.
    """

    epoch: Count
    rate: Real


class Stop(Message, frozen=True):
    """Order to end the training: finish the step, push the rest, leave."""

    reason: Line
    ends: bool = False  # the server process ends with this run
    early: bool = False  # some of the data that workers share is not trained


class LetGo(Message, frozen=True):
    """The end of a sick worker's membership; a real server sends it as a refusal."""

    reason: Line


class Final(Message, frozen=True):
    """Permission to fetch the run's last version, for a worker that has left in good order."""

    version: Count


ToWorker = (Ack | Reattached | Granted | Directed | CutDecision | Model | Work | Withdrawn
            | Measured | LearningRate | Stop | LetGo | Final)


class Outgoing(NamedTuple):
    """A message to a worker.

    The floats of a Model are those of the store's newest version until the next event.
    """

    worker: int
    message: ToWorker


# From a worker.


class Fetch(Message, frozen=True):
    """Request for the newest version."""

    request: Count  # number of this fetch, which the Model names
    held: OrNone = NONE  # version of this server whose floats the worker has
    returned: Count = 0  # the worker has read the shared memory of all fetches below this number


class CutQuery(Message, frozen=True):
    """Question of a worker at a step's end: cut?"""

    number: Count  # of this query, which the CutDecision names
    steps: Count  # uncut
    seconds: Seconds  # of the newest step


class AskWork(Message, frozen=True):
    """Request of a worker for more of the run's work. Repeating it changes nothing."""

    have: Offset  # end of its sequence, as the worker knows it
    pushes: Count  # number of its next push: it has made those below
    least: Count = 0  # of a site: examples that keep its workers busy; 0: this is a worker
    ahead: Count = 0  # examples that it needs until an answer to its next request arrives


class StopRun(Message, frozen=True):
    """Request of a worker to end the run for all."""

    reason: Line
