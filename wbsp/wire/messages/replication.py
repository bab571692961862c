"""Messages between a server and its standby; `wbsp.wire.messages.codec` has their encoding."""

from __future__ import annotations

from wbsp.core.messages import Message
from wbsp.limits import Count, Id, Line, Mac, Macs, Port, Random, Settings, SocketName, State, Total

# From a standby, or from a server that was restarted and whose standby may serve.


class Follow(Message, frozen=True):
    """Introduction of a process that does not serve, and wants to hold what the server holds."""

    protocol: int
    settings: Settings  # that must equal the server's: name -> text
    port: Port  # on which it listens
    run: Id = ""  # of the run of which it holds a state
    # Of that state: twice its epoch, and one more for a standby's; 0: it holds none.
    rank: Count = 0
    socket: SocketName = ""  # at which it takes shared memory; "": it takes none
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`
    proof: Mac = b""


class Held(Message, frozen=True):
    """Sign of life of a standby: it holds this copy, whole."""

    number: Count  # of the newest; 0: of none
    beat: Count  # number of this message
    answered: Count = 0  # the newest beat that the server has answered; 0: none
    proof: Mac = b""  # that this is said by who has proven who it is
    chunks: Count = 0  # of copies that have come so far


class Ask(Message, frozen=True):
    """Question of a server that has lost its standby: which epoch is served there?"""

    run: Id  # of the run
    nonce: Mac = b""  # for the proof of the answer


class Challenge(Message, frozen=True):
    """Answer to a Follow, Reattach or Lead that is not proven: see `wbsp.wire.proof`."""

    claim: Mac  # nonce of that message
    nonce: Mac  # of who answers
    proofs: Macs  # that it knows the secret; one of each secret that may be meant


# To a standby. Alive answers each Held.


class Following(Message, frozen=True):
    """Answer to Follow: copies will come. `run` is the text of the run's settings, JSON."""

    run: State


class Copy(Message, frozen=True):
    """Head of a version and of all that a server needs to go on from it; chunks follow, if any."""

    number: Count
    size: Total  # floats of all chunks: the version, then the outer step's vectors
    state: State  # JSON: {"state", "layout", "outer": name -> floats}
    segment: Random = 0  # in which the version lies, which does not come in chunks then; 0: it does


class CopyChunk(Message, frozen=True):
    """Chunk of a copy's floats."""

    number: Count  # of the copy
    offset: Total  # floats before this chunk


class AllHave(Message, frozen=True):
    """All workers have the run's last version, which this copy holds: only the last files are left
    to be made."""

    number: Count  # of the copy


class Vacant(Message, frozen=True):
    """Answer to Follow: this process holds nothing of the run, and does not serve."""

    proof: Mac = b""  # by the key of a first contact, over the nonce of Follow


class Over(Message, frozen=True):
    """The run has ended in good order; a standby, or a shard, has nothing to wait for, unless
    another run follows."""

    reason: Line
    follows: bool = False
