"""Messages between a server and readers, which evaluate its run's versions.
`wbsp.wire.messages.codec` has their encoding.

A reader is no worker. It asks a server for the next version to evaluate, and reads that version's
file, part by part.
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
