"""Messages about slices of the flat vector, between a server, its shards and its workers;
`wbsp.wire.messages.codec` has their encoding.

A shard receives the server's messages in order: they are the log that it follows. `Floats` and
`Slice` have a second frame, like a chunk of a vector. A shard sends a version as a server does, as
`Model`: offsets begin with the shard's range, and the size counts all floats of the version, or the
words of this range's differences from another version.
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
    workers: Count  # at most
    key: Mac = b""  # of the run's shards, encrypted; only to a shard that has proven itself
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`
    proof: Mac = b""


class Begin(Message, frozen=True):
    """A version whose floats follow: the range, then the vectors of its state."""

    start: Size  # of the range
    stop: Size
    size: Size  # of the whole vector
    version: Count
    outer: State  # JSON: {"name", "options"} of the outer optimizer, "wire", "statistics": ranges
    state: States  # of the outer optimizer: name -> floats


class Floats(Message, frozen=True):
    """Chunk of the floats of Begin or Collected."""

    number: Count  # of Collected; 0: of Begin
    offset: Total  # floats before this chunk, in this message's sequence


# The log.


class Admit(Message, frozen=True):
    """A worker's new attachment; data of an older one is void."""

    worker: Worker
    secret: Random  # see ShardGroup


class Dismiss(Message, frozen=True):
    """The end of an attachment."""

    worker: Worker
    secret: Random


class Apply(Message, frozen=True):
    """Add weight * update to the pending sum.

    Attributes:
        seq: of the worker's push; with `again`, of the last push in a sum that it has sent again.
        steps: as in `Accepted`.
    """

    worker: Worker
    seq: Count
    again: bool
    weight: float
    steps: Count


class Drop(Message, frozen=True):
    """Drop the update of a worker's push `seq`."""

    worker: Worker
    seq: Count


class Commit(Message, frozen=True):
    """Make this version of the pending sum."""

    version: Count


class Send(Message, frozen=True):
    """Send the newest version, which is this one, to a worker, in answer to its fetch."""

    worker: Worker
    request: Count  # number of the fetch
    version: Count
    held: OrNone = NONE  # version whose floats the worker has, as in `messages.Fetch`


class Collect(Message, frozen=True):
    """Send the newest version and the outer optimizer's state to the server."""

    number: Count


class Beat(Message, frozen=True):
    """Heartbeat of the server, and the shard's answer to it."""

    number: Count


# From a shard to its server.


class Led(Message, frozen=True):
    """Answer to Lead: this process follows."""

    epoch: Count


class Denied(Message, frozen=True):
    """Answer to Lead: this process follows another server, or a newer one of the run."""

    reason: Line
    epoch: Count = 0  # of the newer server of the run that the shard follows; 0: no newer server


class Holds(Message, frozen=True):
    """A slice has arrived; the shard keeps it until the log decides on it."""

    secret: Random  # see ShardGroup
    seq: Count  # see Slice
    again: bool
    square: float  # squared norm of its floats; infinite if a value is not finite


class Made(Message, frozen=True):
    """Notice that the range of a version was made."""

    version: Count
    square: float  # squared norm of the range of the sum that it was made of


class Arriving(Message, frozen=True):
    """More of an incomplete slice has arrived from the worker."""

    secret: Random


class Collected(Message, frozen=True):
    """Answer to Collect, whose floats follow: the range, then the vectors of its state."""

    number: Count
    version: Count
    state: States  # as of Begin


class Misuse(Message, frozen=True):
    """Messages and connections that no correct peer makes, and that had no effect."""

    count: Count
    reason: Line  # of the last


# Between a worker and a shard.


class Present(Message, frozen=True):
    """Introduction of a worker, over each new connection."""

    name: Random  # see `wbsp.wire.proof.attachment`
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`
    proof: Mac = b""


class Ready(Message, frozen=True):
    """Answer to Present: the server has admitted the worker to this shard. Unrequested: send again
    what is not answered."""

    name: Random  # as in Present


class Slice(Message, frozen=True):
    """Chunk of a slice of an update; the server gets the update's head.

    Attributes:
        name: as in Present.
        seq: of the push; with `again`, of the last push of a sum.
    """

    name: Random
    seq: Count
    again: bool
    offset: Size  # floats or words of this slice before this chunk
    size: Size  # floats or words of the whole slice


ToShard = (Lead | Begin | Floats | Admit | Dismiss | Apply | Drop | Commit | Send | Collect | Beat
           | Over | Present | Slice)
FromShard = (Led | Denied | Challenge | Holds | Made | Arriving | Collected | Floats | Misuse | Beat
             | Ready | Model)
