"""Messages of a worker to its server, in addition to those of `wbsp.core.messages`.
`wbsp.wire.messages.codec` has their encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from wbsp.core.messages import NONE, Message, Place, SharedData, Span, WorkHeld
from wbsp.core.stats import AnsweredWork, Report
from wbsp.limits import (
    SPANS,
    Count,
    Id,
    Line,
    Mac,
    OrNone,
    Seconds,
    Settings,
    Size,
    SocketName,
    Worker,
)
from wbsp.sync import base
from wbsp.tensors.layout import Entries, LayerStates, Layout, Names

if TYPE_CHECKING:
    from wbsp.sync.base import Push
else:
    class Push(base.Push):
        """A push as a peer sends it: `check_push` knows what its worker can have."""

        __slots__ = ()

        worker: Worker
        seq: Count
        base_version: Count
        steps: Count
        samples: Count
        to: Count | None
        dropped: Count | None
        spans: Annotated[tuple[Span, ...], Meta(max_length=SPANS)] | None
        batch: Count | None
        least: Count


class Hello(Message, frozen=True):
    """Introduction of a worker, the first message of its session."""

    protocol: int
    worker: Worker | None  # None: the server chooses its index
    expected: Settings  # settings that were given to this worker: name -> text
    run: Id = ""  # id of the run that this process knows; "": none yet
    epoch: Count = 0  # highest of that run that this process knows; a server below is outdated
    own: Mac = b""  # random number of this process: needed to continue the session
    given: bool = False  # an earlier server chose the index: if another process has it, choose anew
    series: Id = ""  # of the last run of this process
    fit: Count = 0  # of this process in that series, from 1 on; 0: unknown
    leaves: bool = False  # this process ends, and waits until the server knows
    replaces: bool = False  # the process before it, which may still be connected: a site's server
    left: bool = False  # this process has left the run of number `fit` before its end
    anew: bool = False  # its series has ended for it: it may begin another one with fit 1
    # Of a process that was in an earlier run of this series: see `wbsp.wire.proof`; the key is that
    # of Welcome. Fields about an earlier run count only with it.
    nonce: Mac = b""
    proof: Mac = b""


class Join(Message, frozen=True):
    """Request to become a member, once the worker's model is built."""

    layout: Layout  # of the flat vector
    socket: SocketName = ""  # at which this worker takes shared memory; "": it takes none
    # What its layers have and versions do not carry; None: unknown, the model is not of Keras.
    layers: LayerStates | None = None
    data: SharedData | None = None  # that all workers train together; None: it has its own
    first_epoch: Count = 0  # epochs of `data` before the first one of its loop
    frozen: Layout = []  # variables that steps do not change and versions do not carry
    digest: Id = ""  # of their values
    sgd: bool = False  # its updates are sums of gradients times a rate: see `sums_gradients`
    local: Names = []  # of variables that each worker keeps for itself
    entries: Entries = []  # further entries of a file of its model, without the variables
    work: WorkHeld | None = None  # of a resumed site: what it holds of the shared data


class Initial(Message, frozen=True):
    """Chunk of W_0 followed by the frozen values, of the worker that the server has asked."""

    offset: Size  # floats before this chunk
    size: Size  # floats of both


class Update(Message, frozen=True):
    """Chunk of a pushed update; each repeats the metadata, so that chunks are independent."""

    push: Push
    offset: Size  # words before this chunk
    size: Size  # words of the whole update
    fetch: Count = 0  # number of the Fetch that this push includes, if its Ack grants; 0: none
    held: OrNone = NONE  # as in Fetch
    returned: Count = 0  # as in Fetch
    place: Place | None = None  # of the floats, in shared memory


class Heartbeat(Message, frozen=True):
    """Heartbeat of a worker, with its totals so far."""

    report: Report | None
    chunks: Count = 0  # of models that the worker has received so far


class Leaving(Message, frozen=True):
    """Announcement that a worker ends its training, with the reason for the server's log."""

    reason: Line
    finished: bool  # with everything pushed: the worker may fetch the final version
    report: Report | None


class Reattach(Message, frozen=True):
    """Introduction of a member over a new connection, perhaps to a restarted server.

    The worker sends nothing else until the server answers.
    """

    protocol: int
    worker: Worker
    run: Id  # of the run
    epoch: Count  # highest that the worker knows: of its last server
    layout: Layout  # of the flat vector
    first: Count  # number of this process's first push
    answered: Count  # number after that of the newest push that was answered
    kept: Count  # pushes below this number are durable, as far as the worker knows
    version: Count  # newest that the worker has received; 0 also without one
    left: bool  # it has finished, and waits for the final version
    waits: bool  # for a version, and has nothing of its own to push first
    now: Seconds  # since the run's time zero, by the worker's clock
    socket: SocketName = ""  # as in Join
    owner: Id = ""  # as in Joined
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`; the key is the ticket
    proof: Mac = b""
    ledger: Count = 0  # epoch of the newest answer by which a server admitted this worker
    work: WorkHeld | None = None  # of the run's shared data, if it has some


class Kept(Message, frozen=True):
    """Chunk of the sum of weight * update over pushes that an earlier server had answered."""

    work: AnsweredWork
    offset: Size  # floats before this chunk
    size: Size  # floats of the whole vector
    place: Place | None = None  # as in Update


class Goodbye(Message, frozen=True):
    """End of a session: the worker has the final version, or needs none.

    Attributes:
        again: its process continues, and introduces itself for another run at once.
    """

    again: bool = False


class Elected(Message, frozen=True):
    """Answer to Elect: the worker's vote. It votes for no other server of that state's epoch."""

    epoch: Count  # as in Elect, of the server that it votes for, or has voted for
