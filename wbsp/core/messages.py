"""What a server tells its workers, and what a worker's agent asks: one class a message.

The engine returns these messages and the agent takes them, in virtual time as they are. Between a
real server and its workers they travel in the frames of `wbsp.wire.messages`; the fields that only
a real server knows have defaults, and the server fills them in.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from wbsp.limits import Addresses, Bytes, Count, Line, Mac, OrNone, Random, Reason, Seconds, Size
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


class Granted(Message, frozen=True):
    """Permission to fetch a version, or a newer one."""

    version: Count


class Directed(Message, frozen=True):
    """Instruction of the synchronization model to one worker."""

    direct: Direct


class CutDecision(Message, frozen=True):
    """Answer to CutQuery `number`: cut, or go on."""

    number: Count
    cut: bool


class Stop(Message, frozen=True):
    """Order to end the training: finish the step, push what is left, leave."""

    reason: Line


class Final(Message, frozen=True):
    """Permission to fetch the run's last version, for a worker that has left in good order."""

    version: Count


ToWorker = Ack | Reattached | Granted | Directed | CutDecision | Model | Stop | Final


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
