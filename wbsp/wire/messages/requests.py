"""What a worker requests of its server, and the answers, beside those of `wbsp.core.messages`.
`wbsp.wire.messages.codec` has their encoding.

A request and its answer stand together, and are listed at the end. The handlers are those of
`wbsp.ps.sessions.requests`, of admission and of the readers. A request that a user's loop makes is
a method of `wbsp.worker.front`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from wbsp.core.messages import NONE, Message
from wbsp.limits import Count, FileName, Id, OrNone, Size
from wbsp.wire.messages.base import CHUNK


class AskFrozen(Message, frozen=True):
    """Request of a member for the run's frozen values, from this float on."""

    offset: Size


class FrozenPart(Message, frozen=True):
    """Answer to AskFrozen: the floats that fit into a message, as little-endian float32."""

    offset: Size
    values: Annotated[bytes, Meta(min_length=4, max_length=4 * CHUNK)]


class AskVersion(Message, frozen=True):
    """Question of a worker at an epoch's end: should it validate this epoch's version, or an older
    one? Without `validates`: which version was validated last, or is the newest?"""

    epoch: OrNone = NONE  # of the run; NONE: announces such questions
    validates: bool = False


class AskPast(Message, frozen=True):
    """Request of a worker, in place of Join: where is the final version of its fit's run, which has
    ended? The settings in its Welcome name that run, as `passes`."""


class VersionAt(Message, frozen=True):
    """Answer to NextVersion, AskVersion and AskPast, and a reader's farewell.

    Without a version: the asking process gets none, or none yet, or, with `last`, no other one of
    this run.
    """

    run: Id
    version: OrNone = NONE
    name: FileName = ""  # of its file, behind a random word: the proof that it may be read
    last: bool = False  # it is the run's final version
    epoch: OrNone = NONE  # whose version it is: the first one with all of the epoch
    fit: Count = 1  # number of the run in its series
    ends: bool = False  # the server ends, and no other run follows


Requests = AskFrozen | AskVersion | AskPast
Answers = FrozenPart | VersionAt
