"""Messages between a server and its standby; `wbsp.wire.messages.codec` has their encoding."""

from __future__ import annotations

from wbsp.core.messages import Message
from wbsp.limits import Count, Id, Line, Mac, Macs, Port, Random, Settings, SocketName, State, Total

# From a standby, or from a restarted server whose standby may serve.


class Follow(Message, frozen=True):
    """Introduction of a process that does not serve, and wants to replicate the server's state."""

    protocol: int
    settings: Settings  # that must equal the server's: name -> text
    port: Port  # on which it listens
    run: Id = ""  # of the run whose state it holds
    # Of that state: twice its epoch, plus one for a standby's, plus 2 ** 52 if it has a version. 0:
    # it holds no state.
    rank: Count = 0
    socket: SocketName = ""  # at which it takes shared memory; "": it takes none
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`
    proof: Mac = b""
    fit: Count = 0  # number of that run in its series; 0: it holds no state


class Held(Message, frozen=True):
    """Heartbeat of a standby: it holds this snapshot completely."""

    number: Count  # of the newest snapshot; 0: it holds none
    beat: Count  # number of this message
    answered: Count = 0  # the newest heartbeat that the server has answered; 0: none
    proof: Mac = b""  # that the sender is the process that has proven itself
    chunks: Count = 0  # of snapshots, that have arrived so far


class Ask(Message, frozen=True):
    """Question of a server that has lost its standby: which epoch does the other process serve?"""

    run: Id  # of the run
    nonce: Mac = b""  # for the proof of the answer
    fit: Count = 1  # number of the run in its series


class Challenge(Message, frozen=True):
    """Answer to a Follow, Reattach or Lead that is not proven: see `wbsp.wire.proof`."""

    claim: Mac  # nonce of that message
    nonce: Mac  # of the process that answers
    proofs: Macs  # that it knows the secret; one for each secret that may be meant


# To a standby. Alive answers each Held.


class Following(Message, frozen=True):
    """Answer to Follow: snapshots will follow.

    Attributes:
        run: the run's settings, as JSON.
        waits: for W_0, behind another run of its series: the standby may begin it in the server's
            place.
    """

    run: State
    waits: bool = False


class Recorded(Message, frozen=True):
    """The run's settings have changed, or it has begun. The fields are those of Following."""

    run: State
    waits: bool = False


class Copy(Message, frozen=True):
    """Head of a snapshot: everything a server needs to resume; chunks follow, if any."""

    number: Count
    size: Total  # floats of all chunks: the version, then the outer optimizer's vectors
    state: State  # JSON: {"state", "layout", "outer": name -> floats}
    segment: Random = 0  # that holds the version, which has no chunks then; 0: it has chunks


class CopyChunk(Message, frozen=True):
    """Chunk of a snapshot's floats."""

    number: Count  # of the snapshot
    offset: Total  # floats before this chunk


class AllHave(Message, frozen=True):
    """All workers have the run's last version, and this snapshot holds it: only the last files
    remain to be written."""

    number: Count  # of the snapshot


class Vacant(Message, frozen=True):
    """Answer to Follow: this process has no state of the run, and does not serve."""

    proof: Mac = b""  # by the key of a first contact, over the nonce of Follow


class Over(Message, frozen=True):
    """The run has ended; a standby, or a shard, need not wait any longer, unless another run
    follows."""

    reason: Line
    follows: bool = False
