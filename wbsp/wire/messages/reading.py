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
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`
    proof: Mac = b""


class VersionAt(Message, frozen=True):
    """Answer to NextVersion; without a version: there is no newer one yet, or `last`, no other."""

    run: Id
    version: OrNone = NONE
    name: FileName = ""  # of its file
    port: Annotated[int, Meta(ge=0, le=65535)] = 0  # of the host at which the server was reached
    last: bool = False  # it is the run's final version


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
