"""All messages between workers and servers, and their encoding.

A message is one frame of MessagePack. A message with floats (Initial, Update, Kept, Model,
CopyChunk, Floats, Slice) has a second frame of raw little-endian float32 values: a chunk of the
model's flat vector. In an Update or a Model it may also be a chunk of the words of the run's codec,
or of the blocks (`wbsp.tensors.blocks`) of these, or of the vector; sizes and offsets then count
what is sent. An update that is shorter than its encoding, and a version with a base, are of this
kind: as float32 the version's blocks, else with `in_blocks` those of words. With shared memory, an
Update, Kept or Model names a place in it. With shards, an Update or Kept is only the head of what
goes to the shards. Nothing is ever unpickled: bytes that do not decode to exactly one of these
types raise `WireError`.
"""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec

from wbsp.core.messages import (
    NONE,
    Ack,
    AskWork,
    CutDecision,
    CutQuery,
    Directed,
    Fetch,
    Final,
    Granted,
    LearningRate,
    Measured,
    Message,
    Model,
    Reattached,
    ShardGroup,
    SharedData,
    Stop,
    StopRun,
    Withdrawn,
    Work,
    WorkHeld,
    WorkPlace,
)
from wbsp.limits import printable, text_of
from wbsp.wire.messages.base import (
    CHUNK,
    MAX_MESSAGE,
    MAX_MODEL,
    Impossible,
    WireError,
)
from wbsp.wire.messages.from_server import (
    Alive,
    Elect,
    Joined,
    Leading,
    NotServing,
    Refused,
    Resend,
    RunSettings,
    Unknown,
    Welcome,
)
from wbsp.wire.messages.from_worker import (
    Elected,
    Goodbye,
    Heartbeat,
    Hello,
    Initial,
    Join,
    Kept,
    Leaving,
    Reattach,
    Update,
)
from wbsp.wire.messages.reading import (
    Evaluated,
    NextVersion,
    Noted,
    ReadVersion,
    VersionPart,
)
from wbsp.wire.messages.replication import (
    AllHave,
    Ask,
    Challenge,
    Copy,
    CopyChunk,
    Follow,
    Following,
    Held,
    Over,
    Recorded,
    Vacant,
)
from wbsp.wire.messages.requests import (
    Answers,
    AskFrozen,
    AskPast,
    AskVersion,
    FrozenPart,
    Requests,
    VersionAt,
)
from wbsp.wire.messages.sharding import FromShard, Lead, ToShard

__all__ = [
    "PROTOCOL", "FromWorker", "FromServer", "encode", "decode", "check", "NONE", "Ack",
    "AskWork", "CutDecision", "CutQuery", "Directed", "Fetch", "Final", "Granted",
    "LearningRate", "Measured", "Message", "Model", "Reattached", "ShardGroup", "SharedData",
    "Stop", "StopRun", "Withdrawn", "Work", "WorkHeld", "WorkPlace", "CHUNK", "MAX_MESSAGE",
    "MAX_MODEL", "Impossible", "WireError", "Alive", "Elect", "FrozenPart", "Joined", "Leading",
    "NotServing", "Refused", "Resend", "RunSettings", "Unknown", "Welcome", "AskFrozen",
    "Elected", "Goodbye", "Heartbeat", "Hello", "Initial", "Join", "Kept", "Leaving",
    "Reattach", "Update", "AskPast", "AskVersion", "Evaluated", "NextVersion", "Noted",
    "ReadVersion", "VersionAt", "VersionPart", "AllHave", "Ask", "Challenge", "Copy",
    "CopyChunk", "Follow", "Following", "Held", "Over", "Recorded", "Vacant", "FromShard",
    "Lead", "ToShard",
]

PROTOCOL = 32  # raise it when a message, or a type that a message embeds, changes
FromWorker = (Hello | Join | Initial | Update | Fetch | CutQuery | Heartbeat | Leaving
              | AskWork | Measured | LearningRate | StopRun | Reattach | Kept | Goodbye | Elected
              | Follow | Held | Ask | Lead | NextVersion | Evaluated | ReadVersion | Requests)
FromServer = (Welcome | Joined | Refused | Ack | Granted | Directed | CutDecision | Model | Work
              | Withdrawn | Measured | LearningRate | Stop | Final | Alive | Resend | Reattached
              | Unknown | Elect | Leading | NotServing | Following | Recorded | Copy | CopyChunk
              | AllHave | Vacant | Over | Challenge | Noted | VersionPart | Answers)

_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(kind, dec_hook=text_of)
             for kind in (FromWorker, FromServer, FromShard, ToShard)}


def encode(message: Message) -> bytes:
    """Return the message's first frame."""
    return _encoder.encode(message)


def decode(kind: Any, data: bytes | memoryview) -> Message:
    """Return the message in the frame `data`; `kind`: such as FromWorker. Raises WireError."""
    try:
        message: Message = _decoders[kind].decode(data)
        return message
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a wbsp message: {printable(str(error))}") from None


def check(kind: Any, message: Any) -> None:
    """Raise ValueError, which names the field, for a message or a part of one that would not decode
    as `kind`: no receiver could read it, and its sender would repeat it."""
    try:
        decoder = _decoders.get(kind) or msgspec.msgpack.Decoder(kind, dec_hook=text_of)
        decoder.decode(_encoder.encode(message))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        name = type(message).__name__
        for field, hint in get_type_hints(type(message), include_extras=True).items():
            value = getattr(message, field)
            try:
                msgspec.msgpack.Decoder(hint, dec_hook=text_of).decode(_encoder.encode(value))
            except Exception:
                name, error = f"{field}={repr(value)[:60]}", error
                break
        raise ValueError(f"{name} cannot be sent: {repr(str(error))[1:-1][:200]}") from None
