"""Schema of all messages between workers and servers, and their encoding.

A message is one frame of MessagePack. Those with floats have a second one of raw little-endian
float32 values: a chunk of the flat vector or, in an Update and a Model, of the run's format, in
whose words sizes and offsets count then. Where memory is shared, a message names a place in it;
with shards, Update and Kept are heads, without floats, of what goes there. Nothing is unpickled:
bytes that do not decode to exactly one of these types raise `WireError`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wbsp.layout import TensorSpec
from wbsp.member import AnsweredWork
from wbsp.runlog.report import Report
from wbsp.sync.base import Direct, Push, WorkerRule
from wbsp.wire.files import FilesAt, News, Read, Watch
from wbsp.wire.message import CHUNK, MAX_MESSAGE, MAX_MODEL, PROTOCOL, Message, WireError
from wbsp.wire.segments import Place
from wbsp.wire.shards import FromShard, Group, ToShard
from wbsp.wire.standby import Ask, Copy, CopyChunk, Follow, Following, Held, Over, Vacant

NONE = -1  # in place of a version
__all__ = ["CHUNK", "MAX_MESSAGE", "MAX_MODEL", "PROTOCOL", "WireError"]

# From a worker.


class Hello(Message, frozen=True):
    """Introduction of a worker, the first message of its session."""

    protocol: int
    worker: int
    expected: dict[str, str]  # settings that were given to this worker: name -> text


class Join(Message, frozen=True):
    """Request to become a member, once the worker's model is built."""

    layout: list[TensorSpec]  # of the flat vector
    socket: str = ""  # at which this worker takes shared memory; "": it takes none


class Initial(Message, frozen=True):
    """Chunk of W_0, from the worker that the server has asked for it."""

    offset: int  # floats before this chunk
    size: int  # floats of the whole vector


class Update(Message, frozen=True):
    """Chunk of a pushed update; each repeats the metadata, so that none depends on another."""

    push: Push
    offset: int  # words before this chunk
    size: int  # words of all that is sent
    fetch: int = 0  # number of the Fetch that this push stands for, if its Ack grants; 0: of none
    held: int = NONE  # as in Fetch
    returned: int = 0  # as in Fetch
    place: Place | None = None  # of the floats, in shared memory


class Fetch(Message, frozen=True):
    """Request for the newest version."""

    request: int  # number of this fetch, which the Model names
    held: int = NONE  # version of this server that the worker has the floats of
    returned: int = 0  # shared memory that answered fetches below this number is read no more


class CutQuery(Message, frozen=True):
    """Question of a worker at a step's end: shall it cut?"""

    number: int  # of this query, which the CutDecision names
    steps: int  # uncut
    seconds: float  # of the newest step


class Heartbeat(Message, frozen=True):
    """Sign of life of a worker, with its totals so far."""

    report: Report | None
    chunks: int = 0  # of models that the worker has received so far


class Leaving(Message, frozen=True):
    """Announcement that a worker ends its training, with the reason for the server's log."""

    reason: str
    finished: bool  # in good order, everything pushed: the worker may fetch the final version
    report: Report | None


class Reattach(Message, frozen=True):
    """Introduction of a member over a new connection, perhaps to a server that was restarted; the
    worker sends nothing else until Reattached answers."""

    protocol: int
    worker: int
    run: str  # id of the run
    epoch: int  # of the server that the worker belonged to
    layout: list[TensorSpec]  # of the flat vector
    first: int  # number of this process's first push
    answered: int  # number behind that of the newest push that was answered
    kept: int  # the pushes below this number were durable, as far as the worker was told
    version: int  # newest that the worker has received; 0 also where there is none
    left: bool  # it has finished, and waits for the final version
    waits: bool  # for a version, with nothing of its own to push first
    now: float  # seconds since the run's time zero, as the worker knows it
    socket: str = ""  # as in Join


class Kept(Message, frozen=True):
    """Chunk of the sum of weight * update over pushes that an earlier server had answered."""

    work: AnsweredWork
    offset: int  # floats before this chunk
    size: int  # floats of the whole vector
    place: Place | None = None  # as in Update


class Goodbye(Message, frozen=True):
    """End of a session: the worker has the final version, or needs none."""


class Elected(Message, frozen=True):
    """Answer to Elect: this worker belongs to no other server that follows on the same epoch."""

    epoch: int  # of Elect


# From the server.


class Welcome(Message, frozen=True):
    """Answer to Hello: the run's settings, which a worker adopts where it was given none.

    The rule is all that workers learn of the synchronization model.
    """

    settings: dict[str, str]
    now: float  # seconds since the run's time zero
    rule: WorkerRule


class Joined(Message, frozen=True):
    """Answer to Join: the worker is a member, or is to send W_0 first."""

    seq: int  # number of the worker's next push
    steps: int  # of this worker in earlier incarnations
    send_initial: bool  # W_0 is expected of this worker; another Joined follows
    now: float  # seconds since the run's time zero
    epoch: int  # number of this start of the run's server
    group: Group | None = None  # of shards, where the run has some
    memory: int = 0  # number of the segment that is shared for what the worker sends; 0: none is
    run_steps: int = 0  # of all workers in the run so far


class Refused(Message, frozen=True):
    """Refusal of a worker, with the reason in one line."""

    reason: str


class Model(Message, frozen=True):
    """Chunk of a version, in answer to a Fetch or to an Update that stands for one: of its floats,
    or of the words of one difference after the other that make it of another version."""

    request: int  # number of the fetch
    version: int
    offset: int  # floats or words before this chunk
    size: int  # of all floats or words
    base: int = NONE  # version that the differences are added to; NONE: the floats come whole
    place: Place | None = None  # as in Update


class Ack(Message, frozen=True):
    """Answer to a push: whether it was accepted, and what the worker may do next."""

    seq: int
    accepted: bool
    reason: str | None  # of the rejection
    granted: int | None  # version that the worker may fetch
    hold: bool  # wait for a grant before the next step
    weight: float  # with which the update was accepted; 0 if it was not
    mark: int  # of the push: number of checkpoints that were begun before its decision
    steps: int  # of all workers in the run so far, those of this push included; 0: not known
    durable: int  # what was decided under a mark below is in a checkpoint
    model: Model | None = None  # that is granted, all of it, where memory is shared


class Resend(Message, frozen=True):
    """Answer to Reattach: pushes from `seq` on are lost with an earlier server; send their sum."""

    seq: int
    group: Group | None = None
    memory: int = 0  # as in Joined


class Reattached(Message, frozen=True):
    """Answer to Reattach: go on, and repeat what was not answered."""

    epoch: int  # number of this start of the run's server
    joined: bool  # the worker has joined the model anew; False: it had never left
    safe: int  # pushes below this number are durable
    mark: int  # of the sum that was sent again
    ack: Ack | None  # answer to the worker's newest push, which may have been lost
    group: Group | None = None
    memory: int = 0  # as in Joined


class Unknown(Message, frozen=True):
    """The server does not know this session (any more): say who you are."""


class Granted(Message, frozen=True):
    """Permission to fetch a version, or a newer one."""

    version: int


class Directed(Message, frozen=True):
    """Instruction of the synchronization model to one worker."""

    direct: Direct


class CutDecision(Message, frozen=True):
    """Answer to CutQuery `number`: cut, or go on."""

    number: int
    cut: bool


class Stop(Message, frozen=True):
    """Order to end the training, with the reason in one line."""

    reason: str


class Final(Message, frozen=True):
    """Permission to fetch the run's last version, for a worker that has left."""

    version: int


class Elect(Message, frozen=True):
    """Request of a server that cannot reach the other one: to belong to it from now on."""

    epoch: int  # of this server, once enough workers have promised
    since: int  # epoch of the state that it has; a worker of another one does not answer


class Leading(Message, frozen=True):
    """This server serves, and its epoch is this one now."""

    epoch: int


class NotServing(Message, frozen=True):
    """This process does not serve the run, or no longer: try the next address."""

    reason: str
    released: int = 0  # the promise to belong to this process with that epoch is void


class Alive(Message, frozen=True):
    """Sign of life of the server."""

    # Received of the vector that the worker sends or awaits; to a standby: the beat it answers.
    chunks: int = 0
    durable: int = 0  # what was decided under a mark below is in a checkpoint


FromWorker = (Hello | Join | Initial | Update | Fetch | CutQuery | Heartbeat | Leaving
              | Reattach | Kept | Goodbye | Elected | Follow | Held | Ask | Watch)
FromServer = (Welcome | Joined | Refused | Ack | Granted | Directed | CutDecision | Model | Stop
              | Final | Alive | Resend | Reattached | Unknown | Elect | Leading | NotServing
              | Following | Copy | CopyChunk | Vacant | Over | FilesAt)

_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(kind)
             for kind in (FromWorker, FromServer, FromShard, ToShard, Read, News)}


def encode(message: Message) -> bytes:
    """The message's first frame."""
    return _encoder.encode(message)


def decode(kind: Any, data: bytes | memoryview) -> Message:
    """The message in `data`, a frame; `kind` is FromWorker or the like. Raises WireError."""
    try:
        return _decoders[kind].decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = repr(str(error))[1:-1]  # may quote the peer: keep it on one line
        raise WireError(f"not a wbsp message: {reason}") from None
