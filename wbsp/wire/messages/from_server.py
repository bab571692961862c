"""Messages of a server to its workers, beside those of `wbsp.core.messages`: of joining, and of
the connection. `wbsp.wire.messages.codec` has their encoding."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from wbsp.core.messages import Message, ShardGroup, WorkPlace
from wbsp.limits import Count, Id, Line, Mac, Random, Seconds, Settings, Size
from wbsp.sync.base import WorkerRule
from wbsp.wire.messages.base import CHUNK


class Welcome(Message, frozen=True):
    """Answer to Hello: the run's settings, which a worker adopts where it was given none.

    The rule is all that workers learn of the synchronization model.
    """

    settings: Settings
    now: Seconds  # since the run's time zero
    rule: WorkerRule
    epoch: Count = 0  # number of this start of the run's server


class Joined(Message, frozen=True):
    """Answer to Join: the worker is a member, or is to send W_0 first."""

    seq: Count  # number of the worker's next push
    steps: Count  # of this worker in earlier incarnations
    send_initial: bool  # W_0 is expected of this worker; another Joined follows
    now: Seconds  # since the run's time zero
    epoch: Count  # number of this start of the run's server
    group: ShardGroup | None = None  # of shards, where the run has some
    memory: Random = 0  # number of the segment that is shared for what the worker sends; 0: none is
    run_steps: Count = 0  # of all workers in the run so far
    owner: Id = ""  # names this process, in what the server keeps of the worker
    ticket: Mac = b""  # proves that it is this process: see `wbsp.wire.proof`
    work: WorkPlace | None = None  # in the run's shared data, where it has some
    frozen: bool = False  # the run has other values of what is frozen: the worker asks for them


class FrozenPart(Message, frozen=True):
    """Answer to AskFrozen: as much as goes into a message, as little-endian float32."""

    offset: Size
    values: Annotated[bytes, Meta(min_length=4, max_length=4 * CHUNK)]


class Refused(Message, frozen=True):
    """Refusal of a worker, with the reason in one line; `over`: since the run has ended, so that
    the next one may welcome it."""

    reason: Line
    over: bool = False
    proof: Mac = b""  # of one without the run's secret: by the key of a first contact
    ends: bool = False  # the server has been ended: no other run follows


class Resend(Message, frozen=True):
    """Answer to Reattach: pushes from `seq` on are lost with an earlier server; send their sum."""

    seq: Count
    group: ShardGroup | None = None
    memory: Random = 0  # as in Joined


class Unknown(Message, frozen=True):
    """The server does not know this session (any more): say who you are."""


class Elect(Message, frozen=True):
    """Request of a server that cannot reach the other one: to belong to it from now on."""

    epoch: Count  # of this server, once enough workers have promised
    since: Count  # epoch of the state that it has; a worker of another one does not answer
    due: Count = 0  # that state has this worker's pushes below; who knows more to be safe waits


class Leading(Message, frozen=True):
    """This server serves, and its epoch is this one now; a promise to the other one is void."""

    epoch: Count
    ticket: Mac = b""  # as in Joined, of this epoch
    proof: Mac = b""  # in answer to Ask: by the run's secret, over the nonce of Ask


class NotServing(Message, frozen=True):
    """This process does not serve the run, or no longer: try the next address."""

    reason: Line
    released: Count = 0  # the promise to belong to this process with that epoch is void
    rank: Count = 0  # as in Follow, of a process in waiting for the same run that was asked by it


class Alive(Message, frozen=True):
    """Sign of life of the server."""

    # Received of the vector that the worker sends or awaits; to a standby: the beat it answers.
    chunks: Count = 0
    durable: Count = 0  # what was decided under a mark below is in a checkpoint
