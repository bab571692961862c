"""Messages about slices of the flat vector, between a server, its shards and its workers;
`wbsp.wire.messages` has their encoding.

A shard hears all that the server says in order: that is the log which it follows. `Floats` and
`Slice` have a second frame, as a chunk of a vector has.
"""

from __future__ import annotations

from typing import NamedTuple

from wbsp.wire.message import Message
from wbsp.wire.standby import Over


class Group(NamedTuple):
    """Whom a member sends its floats to, and who sends it versions, in the order of the ranges.

    secret:    names this member's attachment to a shard, which was told the same number
    addresses: host, or "" for the one at which the server was reached, and port
    """

    secret: int
    addresses: list[tuple[str, int]]


# From the server, in this order; then the log.


class Lead(Message, frozen=True):
    """Request to follow this server and no other."""

    protocol: int
    run: str  # id
    epoch: int  # of the server; a shard follows the newest of a run
    workers: int  # how many there are at most


class Begin(Message, frozen=True):
    """A version, of which the floats follow: the range, then the outer step's vectors."""

    start: int  # of the range
    stop: int
    size: int  # of the whole vector
    version: int
    outer: str  # JSON: {"name", "options"} of the outer step
    state: dict[str, int]  # of the outer step: name -> floats


class Floats(Message, frozen=True):
    """Chunk of the floats of Begin, or of Collected."""

    number: int  # of Collected; 0: of Begin
    offset: int  # floats before this chunk, in this message's sequence


# The log.


class Admit(Message, frozen=True):
    """A worker's new attachment; what was there of an older one is void."""

    worker: int
    secret: int  # see Group


class Dismiss(Message, frozen=True):
    """The end of an attachment."""

    worker: int
    secret: int


class Apply(Message, frozen=True):
    """weight * update goes into the pending sum: of a worker's push `seq`, or of a sum of pushes up
    to that which it has sent `again`."""

    worker: int
    seq: int
    again: bool
    weight: float


class Drop(Message, frozen=True):
    """The update of a worker's push `seq` is dropped."""

    worker: int
    seq: int


class Commit(Message, frozen=True):
    """The pending sum makes this version."""

    version: int


class Send(Message, frozen=True):
    """The newest version, which is this one, goes to a worker in answer to a fetch."""

    worker: int
    request: int  # number of the fetch
    version: int
    held: int = -1  # that the worker has the floats of, as in `messages.Fetch`


class Collect(Message, frozen=True):
    """The newest version and the outer step's state go to the server."""

    number: int


class Beat(Message, frozen=True):
    """Sign of life of the server, and the answer to it."""

    number: int


# From a shard to its server.


class Led(Message, frozen=True):
    """Answer to Lead: this process follows."""

    epoch: int


class Denied(Message, frozen=True):
    """Answer to Lead: this process follows another server, or a newer one of the run."""

    reason: str


class Holds(Message, frozen=True):
    """A slice is here, whole; it is kept until the log says what becomes of it."""

    secret: int  # see Group
    seq: int  # see Slice
    again: bool
    finite: bool  # all its values are


class Arriving(Message, frozen=True):
    """More of a slice that is not whole has come from the worker."""

    secret: int


class Collected(Message, frozen=True):
    """Answer to Collect, of which the floats follow: the range, then the outer step's vectors."""

    number: int
    version: int
    state: dict[str, int]  # of the outer step: name -> floats


class Misuse(Message, frozen=True):
    """Messages and connections that no correct peer makes, and that changed nothing."""

    count: int
    reason: str  # of the last


# Between a worker and a shard.


class Present(Message, frozen=True):
    """Introduction of a worker, over each new connection."""

    secret: int  # see Group


class Ready(Message, frozen=True):
    """Answer to Present: the server has told this shard of the worker. Unasked: send again what is
    not answered."""

    secret: int


class Slice(Message, frozen=True):
    """Chunk of a slice of an update, of which the server gets the head.

    seq: of the push; or, of a sum that is sent `again`, of its last push
    """

    secret: int
    seq: int
    again: bool
    offset: int  # floats or words of this slice before this chunk


class Version(Message, frozen=True):
    """Chunk of a shard's range of a version; as `messages.Model`."""

    request: int  # number of the fetch
    version: int
    offset: int  # float at which the range begins, and floats or words of it before this chunk
    size: int  # of all floats of the version, or of the words that make this range of another one
    base: int = -1


ToShard = (Lead | Begin | Floats | Admit | Dismiss | Apply | Drop | Commit | Send | Collect | Beat
           | Over | Present | Slice)
FromShard = (Led | Denied | Holds | Arriving | Collected | Floats | Misuse | Beat | Ready
             | Version)
