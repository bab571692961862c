"""The typed schema of everything that crosses the wire, and its encoding.

A message is one frame of MessagePack; those that carry floats are followed by one frame of raw
little-endian float32 values, a chunk of the model's flat vector. Nothing is ever unpickled. What
does not decode to exactly one of these types is a `WireError`, before anything is allocated.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wbsp.layout import TensorSpec
from wbsp.runlog.report import Report
from wbsp.sync.base import Direct, Push, WorkerRule

PROTOCOL = 3  # raised when two versions can no longer talk to each other
CHUNK = 1 << 18  # floats in one message (1 MiB): paces, interleaves, bounds what a peer can ask
MAX_MESSAGE = 4 * CHUNK + (1 << 20)  # bytes; libzmq drops a peer that sends more
MAX_MODEL = 1 << 33  # floats (32 GiB)


class WireError(ValueError):
    """A peer sent what no correct peer sends; nothing of it was applied."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages; the type travels as its name."""


# From a worker.


class Hello(Message):
    """First words. `claims` are the settings this worker was explicitly given."""

    protocol: int
    worker: int
    expected: dict[str, str]


class Join(Message):
    """The model is built: its variables, in the order of the flat vector."""

    layout: list[TensorSpec]


class Initial(Message):
    """A chunk of W_0, from the first worker to join, when asked for."""

    offset: int
    size: int


class Update(Message):
    """A chunk of a push. Every chunk repeats what is known of it, so that none depends on luck."""

    push: Push
    offset: int
    size: int
    fetch: int = 0  # if the answer grants, this is a Fetch of that number, too; 0: it is not


class Fetch(Message):
    """Send me the newest version; `request` tells its answer from the answer to an earlier one."""

    request: int


class CutQuery(Message):
    """Shall I cut? I hold `steps` uncut ones, the newest of which took `seconds`."""

    number: int
    steps: int
    seconds: float


class Heartbeat(Message):
    """I live; and my totals so far."""

    report: Report | None
    chunks: int = 0  # of models that have come in so far


class Leaving(Message):
    """I go. `finished`: in good order, everything pushed; it may fetch the final version."""

    reason: str
    finished: bool
    report: Report | None


class Resync(Message):
    """My connection was broken: tell me once more what you told me unasked."""


class Goodbye(Message):
    """I have the final version, or want nothing more."""


# From the server.


class Welcome(Message):
    """The run's settings, which a worker takes over where it was not told its own."""

    settings: dict[str, str]
    now: float  # seconds since the run's time zero
    rule: WorkerRule


class Joined(Message):
    """You are a member. `seq` numbers your next push; `steps` you did before, in earlier lives."""

    rule: WorkerRule
    seq: int
    steps: int
    send_initial: bool
    now: float


class Refused(Message):
    """You may not take part; the reason, in one line."""

    reason: str


class Ack(Message):
    """What became of a push."""

    seq: int
    accepted: bool
    reason: str | None
    granted: int | None
    hold: bool


class Granted(Message):
    version: int


class Directed(Message):
    direct: Direct


class CutDecision(Message):
    """Answer to Ask `number`: cut, or go on."""

    number: int
    cut: bool


class Model(Message):
    """A chunk of a version."""

    request: int
    version: int
    offset: int
    size: int


class Stop(Message):
    reason: str


class Final(Message):
    version: int


class Alive(Message):
    """Answer to a heartbeat."""

    chunks: int = 0  # of what this worker sends or waits for that have come in so far


FromWorker = (Hello | Join | Initial | Update | Fetch | CutQuery | Heartbeat | Leaving | Resync
              | Goodbye)
FromServer = (Welcome | Joined | Refused | Ack | Granted | Directed | CutDecision | Model | Stop
              | Final | Alive)

_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in (FromWorker, FromServer)}


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(kind: Any, data: bytes) -> Message:
    """Return the message in `data`; `kind` is FromWorker or FromServer. Raises WireError."""
    try:
        return _decoders[kind].decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = repr(str(error))[1:-1]  # it may quote the peer: keep it on one line
        raise WireError(f"not a wbsp message: {reason}") from None
