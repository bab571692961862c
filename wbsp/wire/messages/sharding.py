"""Messages about slices of the flat vector, between a server, its shards and its workers;
`wbsp.wire.messages.codec` has their encoding.

A shard hears all that the server says in order: that is the log which it follows. `Floats` and
`Slice` have a second frame, as a chunk of a vector has. A version comes from a shard as from a
server: as `Model`, with offsets that begin with the shard's range, and the size of all floats of
the version or of the words that make this range of another one.
"""

from __future__ import annotations

from wbsp.core.messages import NONE, Message, Model
from wbsp.limits import (
    Count,
    Id,
    Line,
    Mac,
    OrNone,
    Random,
    Size,
    State,
    States,
    Total,
    Worker,
)
from wbsp.wire.messages.replication import Challenge, Over

# From the server, in this order; then the log.


class Lead(Message, frozen=True):
    """Request to follow this server and no other."""

    protocol: int
    run: Id
    epoch: Count  # of the server; a shard follows the newest of a run
    workers: Count  # how many there are at most
    key: Mac = b""  # of the run's shards, hidden; to a shard alone that has proven itself
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`
    proof: Mac = b""


class Begin(Message, frozen=True):
    """A version, of which the floats follow: the range, then the outer step's vectors."""

    start: Size  # of the range
    stop: Size
    size: Size  # of the whole vector
    version: Count
    outer: State  # JSON: {"name", "options"} of the outer step
    state: States  # of the outer step: name -> floats


class Floats(Message, frozen=True):
    """Chunk of the floats of Begin, or of Collected."""

    number: Count  # of Collected; 0: of Begin
    offset: Total  # floats before this chunk, in this message's sequence


# The log.


class Admit(Message, frozen=True):
    """A worker's new attachment; what was there of an older one is void."""

    worker: Worker
    secret: Random  # see ShardGroup


class Dismiss(Message, frozen=True):
    """The end of an attachment."""

    worker: Worker
    secret: Random


class Apply(Message, frozen=True):
    """weight * update goes into the pending sum: of a worker's push `seq`, or of a sum of pushes up
    to that which it has sent `again`."""

    worker: Worker
    seq: Count
    again: bool
    weight: float


class Drop(Message, frozen=True):
    """The update of a worker's push `seq` is dropped."""

    worker: Worker
    seq: Count


class Commit(Message, frozen=True):
    """The pending sum makes this version."""

    version: Count


class Send(Message, frozen=True):
    """The newest version, which is this one, goes to a worker in answer to a fetch."""

    worker: Worker
    request: Count  # number of the fetch
    version: Count
    held: OrNone = NONE  # that the worker has the floats of, as in `messages.Fetch`


class Collect(Message, frozen=True):
    """The newest version and the outer step's state go to the server."""

    number: Count


class Beat(Message, frozen=True):
    """Sign of life of the server, and the answer to it."""

    number: Count


# From a shard to its server.


class Led(Message, frozen=True):
    """Answer to Lead: this process follows."""

    epoch: Count


class Denied(Message, frozen=True):
    """Answer to Lead: this process follows another server, or a newer one of the run."""

    reason: Line
    epoch: Count = 0  # of the later server of the run that the shard follows; 0: there is none


class Holds(Message, frozen=True):
    """A slice is here, whole; it is kept until the log says what becomes of it."""

    secret: Random  # see ShardGroup
    seq: Count  # see Slice
    again: bool
    # A number that no value is above, or below the negative of; infinite where one is not finite.
    most: float


class Arriving(Message, frozen=True):
    """More of a slice that is not whole has come from the worker."""

    secret: Random


class Collected(Message, frozen=True):
    """Answer to Collect, of which the floats follow: the range, then the outer step's vectors."""

    number: Count
    version: Count
    state: States  # of the outer step: name -> floats


class Misuse(Message, frozen=True):
    """Messages and connections that no correct peer makes, and that changed nothing."""

    count: Count
    reason: Line  # of the last


# Between a worker and a shard.


class Present(Message, frozen=True):
    """Introduction of a worker, over each new connection."""

    name: Random  # see `wbsp.wire.proof.attachment`
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`
    proof: Mac = b""


class Ready(Message, frozen=True):
    """Answer to Present: the server has told this shard of the worker. Unasked: send again what is
    not answered."""

    name: Random  # as in Present


class Slice(Message, frozen=True):
    """Chunk of a slice of an update, of which the server gets the head.

    name: as in Present
    seq:  of the push; or, of a sum that is sent `again`, of its last push
    """

    name: Random
    seq: Count
    again: bool
    offset: Size  # floats or words of this slice before this chunk
    size: Size  # of these, of the slice


ToShard = (Lead | Begin | Floats | Admit | Dismiss | Apply | Drop | Commit | Send | Collect | Beat
           | Over | Present | Slice)
FromShard = (Led | Denied | Challenge | Holds | Arriving | Collected | Floats | Misuse | Beat
             | Ready | Model)
