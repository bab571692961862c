"""Messages between a server and readers, which evaluate its run's versions.
`wbsp.wire.messages.codec` has their encoding.

A reader is no worker. It asks a server for the next version to evaluate, which VersionAt of
`wbsp.wire.messages.requests` answers, and reads that version's file, part by part.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from wbsp.core.messages import NONE, Message
from wbsp.limits import Bytes, Count, FileName, Id, Line, Mac, OrNone, Real, Text
from wbsp.wire.messages.base import MAX_MESSAGE

METRICS = 64  # of a version, at most
MetricName = Text[str, 100, 1]
Metrics = Annotated[dict[MetricName, Real], Meta(max_length=METRICS)]


class NextVersion(Message, frozen=True):
    """Question of a reader: which version should it evaluate?"""

    protocol: int
    run: Id = ""  # of the versions that it had; "": it had none
    after: OrNone = NONE  # the newest version that it had
    epochs: bool = False  # it evaluates only the versions of epochs
    key: Mac = b""  # of the process that the server itself has started to evaluate
    nonce: Mac = b""  # this and the next: see `wbsp.wire.proof`
    proof: Mac = b""


class Evaluated(Message, frozen=True):
    """A reader's results for a version that it was given."""

    run: Id
    version: Count
    metrics: Metrics
    nonce: Mac = b""  # as in NextVersion
    proof: Mac = b""


class Noted(Message, frozen=True):
    """Answer to Evaluated."""

    problem: Line = ""  # why the results do not count, in one line; "": they count


class ReadVersion(Message, frozen=True):
    """Request of any process for a part of a version's file."""

    name: FileName  # as in VersionAt
    offset: Bytes


class VersionPart(Message, frozen=True):
    """Answer to ReadVersion; a file of no bytes does not exist, or no longer."""

    size: Bytes  # of the file
    offset: Bytes
    data: Annotated[bytes, Meta(max_length=MAX_MESSAGE)]
