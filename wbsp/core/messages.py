"""What a server tells its workers, and what a worker's agent asks: one class a message.

The engine returns these messages and the agent takes them, in virtual time as they are. Between a
real server and its workers they travel in the frames of `wbsp.wire.messages`; the fields that only
a real server knows have defaults, and the server fills them in.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

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
    OrNone,
    Random,
    Real,
    Reason,
    Seconds,
    Size,
)
from wbsp.sync.base import Direct

NONE = -1  # in place of a version


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages. A message is sent as its type's name and its fields' values.

    Each number, text, list and dict has its bounds in its type: see `wbsp.limits`.
    """


class Place(NamedTuple):
    """Where floats lie in shared memory: number of a segment, and bytes in it; as a peer says."""

    segment: Random
    offset: Bytes
    nbytes: Bytes


Span = tuple[Count, Count]  # positions of the run's work: the first, and the one behind the last


class SharedData(NamedTuple):
    """The data that all workers of a run train together, as each of them must know it: see
    `wbsp.core.work_ledger`."""

    n: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]  # examples
    batch: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]  # examples of a step
    epochs: Annotated[int, msgspec.Meta(ge=1, le=8000)]  # passes of all workers together
    seed: Count = 0  # of the permutation
    order: Id = NAME  # of the permutation
    # "wait": no epoch begins before the one before it is complete, and workers wait for what its
    # version is found to be worth
    validate: Literal["newest", "wait"] = "newest"


class Range(NamedTuple):
    """Positions `start` ... `stop` - 1, of one epoch; a worker's sequence has them from `at` on."""

    at: Count
    start: Count
    stop: Count

    @property
    def end(self) -> int:
        """Where in the sequence the next range begins."""
        return self.at + self.stop - self.start


class WorkPlace(NamedTuple):
    """Where a worker's process begins in the run's shared data."""

    data: SharedData  # of the run
    at: Count  # in the worker's sequence
    epoch: Count  # complete ones of the run


class WorkHeld(NamedTuple):
    """What a worker that attaches again has of the run's shared data."""

    data: SharedData  # of the run
    answered: Count  # how far in its sequence its pushes were
    held: Annotated[list[Range], msgspec.Meta(max_length=SPANS)]  # behind that


class ShardGroup(NamedTuple):
    """Whom a member sends its floats to, and who sends it versions, in the order of the ranges.

    secret:    of this member and its shards, which were told the same number; by it each proves
               itself to the other: see `wbsp.wire.proof.attachment`
    addresses: host, or "" for the one at which the server was reached, and port
    """

    secret: Random
    addresses: Addresses


# To a worker.


class Model(Message, frozen=True):
    """Answer to a Fetch, or to an Update that stands for one: a version, the newest one when this
    was decided. On the wire, a chunk of it: of its floats, or of the words of one difference after
    the other that make it of another version."""

    request: Count  # number of the fetch
    version: Count
    offset: Size = 0  # floats or words before this chunk
    size: Size = 0  # of all floats or words
    base: OrNone = NONE  # version that the differences are added to; NONE: the floats come whole
    place: Place | None = None  # as in Update


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
    durable: Count = 0  # what was decided under a mark below is in a checkpoint
    model: Model | None = None  # that is granted, all of it, where memory is shared


class Reattached(Message, frozen=True):
    """Answer to Reattach: go on, and repeat what was not answered."""

    epoch: Count  # number of this start of the run's server
    joined: bool  # the worker has joined the model anew; False: it had never left
    safe: Count  # pushes below this number are durable
    mark: Count  # of the sum that was sent again
    ack: Ack | None  # answer to the worker's newest push, which may have been lost
    group: ShardGroup | None = None
    memory: Random = 0  # as in Joined
    ticket: Mac = b""  # as in Joined, of this epoch
    since: Count = 0  # epoch with which this server, and its ledger, began; 0: this one
    void: bool = False  # what was sent again is not in the model: others had done some of its work


class Granted(Message, frozen=True):
    """Permission to fetch a version, or a newer one."""

    version: Count
    request: Count = 0  # number of the fetch that the worker's newest push left; 0: it left none
    follows: bool = False  # the answer to that fetch comes behind this: the worker need not ask


class Directed(Message, frozen=True):
    """Instruction of the synchronization model to one worker."""

    direct: Direct


class CutDecision(Message, frozen=True):
    """Answer to CutQuery `number`: cut, or go on."""

    number: Count
    cut: bool


class Work(Message, frozen=True):
    """Answer to AskWork, and perhaps another one later: a range of the run's work.

    start == stop: there is none now; another Work follows as soon as there is some.
    """

    at: Count  # in the worker's sequence: where it has come to its end
    start: Count
    stop: Count
    epoch: Count  # complete ones of the run


class Measured(Message, frozen=True):
    """What an epoch's version was found to be worth: by a worker, which the server tells all."""

    epoch: Count  # complete ones then
    values: Annotated[dict[Id, Real], msgspec.Meta(max_length=64)]


class LearningRate(Message, frozen=True):
    """The learning rate of all workers from here on, as a callback of one has made it by an epoch's
    results; the server tells all. The first word of an epoch counts."""

    epoch: Count
    rate: Real


class Stop(Message, frozen=True):
    """Order to end the training: finish the step, push what is left, leave."""

    reason: Line
    ends: bool = False  # the server does, with this run
    early: bool = False  # some of the data that workers share is not trained


class Final(Message, frozen=True):
    """Permission to fetch the run's last version, for a worker that has left in good order."""

    version: Count


ToWorker = (Ack | Reattached | Granted | Directed | CutDecision | Model | Work | Measured
            | LearningRate | Stop | Final)


class Outgoing(NamedTuple):
    """A message on its way to a worker. The floats of a Model are those of the store's newest
    version until the next event."""

    worker: int
    message: ToWorker


# From a worker.


class Fetch(Message, frozen=True):
    """Request for the newest version."""

    request: Count  # number of this fetch, which the Model names
    held: OrNone = NONE  # version of this server that the worker has the floats of
    returned: Count = 0  # shared memory that answered fetches below this number is read no more


class CutQuery(Message, frozen=True):
    """Question of a worker at a step's end: shall it cut?"""

    number: Count  # of this query, which the CutDecision names
    steps: Count  # uncut
    seconds: Seconds  # of the newest step


class AskWork(Message, frozen=True):
    """Request of a worker for more of the run's work. It is asked again where no answer comes: that
    changes nothing."""

    have: Count  # where in its sequence that comes to its end, as the worker knows it
    pushes: Count  # number of its next push: it has made those below


class StopRun(Message, frozen=True):
    """A worker ends the run for all."""

    reason: Line
