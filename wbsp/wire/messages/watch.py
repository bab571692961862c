"""Messages between a server and remote watchers; `wbsp.wire.messages.codec` has their encoding.

A server says where the files of its run are handed out; there, each answer brings what is new in
them, a piece at a time. Nobody who asks names a file: who hands out goes through those of the
folder that `order` knows, and receives what of them the other end has.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta

from wbsp.core.messages import Message
from wbsp.limits import Bytes, Count, FileName, Id, Line, Random
from wbsp.wire.messages.base import MAX_MESSAGE

_FILES = 4096  # in a message
_ORDER = r"run\.json", r"events\.jsonl", r"events_wk\d{1,6}\.jsonl", r"summary\.json"


class Watch(Message, frozen=True):
    """Question at a server: where are the files of its run handed out?"""

    protocol: int


class FilesAt(Message, frozen=True):
    """Answer to Watch."""

    # Of the host at which the server was reached; 0: none yet, ask again.
    port: Annotated[int, Meta(ge=0, le=65535)]
    problem: Line = ""  # why it cannot be, in one line


class Have(NamedTuple):
    """How much of a file is there at the other end."""

    name: FileName
    file: Id  # as in Piece
    size: Bytes  # bytes


class Read(Message, frozen=True):
    """Request for what is new in the files."""

    have: Annotated[list[Have], Meta(max_length=_FILES)]


class Piece(NamedTuple):
    """The bytes of one file from `offset` on, and perhaps not all of these.

    file: tells a file from another one that has its name before or after it; of a document, which
          is replaced as a whole, also from its other contents
    size: bytes of the file
    time: at which it was written, ns since 1970
    """

    name: FileName
    file: Id
    offset: Bytes
    size: Bytes
    time: Random
    data: Annotated[bytes, Meta(max_length=MAX_MESSAGE)]


class News(Message, frozen=True):
    """Answer to Read: what is new, in the order in which the files depend on one another."""

    run: Id  # of the run
    folder: Line  # name of its folder: a standby has another one
    epoch: Count  # of the server
    server: Line  # "lives", "is over" (the run has ended), or "is gone"
    more: bool  # than this answer holds
    pieces: Annotated[list[Piece], Meta(max_length=_FILES)]


def order(name: str) -> int | None:
    """The place of a file of that name among those that are handed out; None: it is none of them.
    """
    return next((place for place, known in enumerate(_ORDER)
                 if re.fullmatch(known, name, re.ASCII)), None)


def is_log(name: str) -> bool:
    """True for a file that grows by lines; the others are documents."""
    return name.endswith(".jsonl")
