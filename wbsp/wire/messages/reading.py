"""Messages between a server and readers, which evaluate its run's versions and are no workers;
`wbsp.wire.messages.codec` has their encoding.

A reader asks a server which version it is to look at. That one's file is handed out, part by part,
where watchers get the run's files: see `wbsp.wire.messages.watch`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from wbsp.core.messages import NONE, Message
from wbsp.limits import Bytes, Count, FileName, Id, Line, Mac, OrNone, Real
from wbsp.wire.messages.base import MAX_MESSAGE

METRICS = 64  # of a version, at most
MetricName = Annotated[str, Meta(min_length=1, max_length=100)]
Metrics = Annotated[dict[MetricName, Real], Meta(max_length=METRICS)]


class NextVersion(Message, frozen=True):
    """Question of a reader: which version is it to look at?"""

    protocol: int
    run: Id = ""  # whose versions it has had; "": no run's
    after: OrNone = NONE  # the newest that it has had
    epochs: bool = False  # it wants the versions of epochs alone
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`
    proof: Mac = b""


class AskVersion(Message, frozen=True):
    """Question of a worker at an epoch's end: is it to validate the version of that, or of one
    before? Else: which one was validated last, or is the newest?"""

    epoch: OrNone = NONE  # of the run; NONE: there will be such questions
    validates: bool = False


class AskPast(Message, frozen=True):
    """Request of a worker, in the place of Join: where is the final version of the run that its fit
    was, and that has ended? The settings in its Welcome say which one that is, as `passes`."""


class VersionAt(Message, frozen=True):
    """Answer to NextVersion, AskVersion and AskPast, and a reader's farewell. Without a version:
    there is none for who asks, or none yet, or `last`, no other one of this run."""

    run: Id
    version: OrNone = NONE
    name: FileName = ""  # of its file
    port: Annotated[int, Meta(ge=0, le=65535)] = 0  # of the host at which the server was reached
    last: bool = False  # it is the run's final version
    epoch: OrNone = NONE  # of which it is the version: the first with all of it
    fit: Count = 1  # number of the run in its series
    ends: bool = False  # the server does, and no other run follows


class Evaluated(Message, frozen=True):
    """What a reader has found of a version that it was given."""

    run: Id
    version: Count
    metrics: Metrics
    nonce: Mac = b""  # as in NextVersion
    proof: Mac = b""


class Noted(Message, frozen=True):
    """Answer to Evaluated."""

    problem: Line = ""  # why it does not count, in one line; "": it does


class ReadVersion(Message, frozen=True):
    """Request for a part of a version's file."""

    name: FileName
    offset: Bytes


class VersionPart(Message, frozen=True):
    """Answer to ReadVersion; a file of no bytes is not there (any more)."""

    size: Bytes  # of the file
    offset: Bytes
    data: Annotated[bytes, Meta(max_length=MAX_MESSAGE)]
