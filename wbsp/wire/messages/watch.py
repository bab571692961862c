"""Messages between a server and remote watchers. `wbsp.wire.messages.codec` has their encoding.

A server names the run's file server. Each of its answers brings new parts of the files. A watcher
does not name files: it sends how much it has of each, and the file server goes through those files
of the folder that `order` knows.
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
    """Question to a server: where is the file server of its run?"""

    protocol: int


class FilesAt(Message, frozen=True):
    """Answer to Watch."""

    # Of the host at which the server was reached; 0: none yet, ask again.
    port: Annotated[int, Meta(ge=0, le=65535)]
    problem: Line = ""  # why there cannot be one, in one line


class Have(NamedTuple):
    """How much of a file the watcher has."""

    name: FileName
    file: Id  # as in Piece
    size: Bytes  # bytes


class Read(Message, frozen=True):
    """Request for new parts of the files."""

    have: Annotated[list[Have], Meta(max_length=_FILES)]


class Piece(NamedTuple):
    """Bytes of one file from `offset` on, not always up to its end.

    file: differs from that of another file with this name, earlier or later; for a document, which
          is replaced as a whole, also from that of its other contents
    size: bytes of the file
    time: at which the file was written, ns since 1970
    """

    name: FileName
    file: Id
    offset: Bytes
    size: Bytes
    time: Random
    data: Annotated[bytes, Meta(max_length=MAX_MESSAGE)]


class News(Message, frozen=True):
    """Answer to Read: new parts of files, in the order in which the files depend on each other."""

    run: Id  # of the run
    folder: Line  # name of its folder, which differs for a standby
    epoch: Count  # of the server
    server: Line  # "lives", "is over" (the run has ended), or "is gone"
    more: bool  # new parts than this answer holds
    pieces: Annotated[list[Piece], Meta(max_length=_FILES)]


def order(name: str) -> int | None:
    """Return the position of a file of that name in the order of transfer; None: it is not sent.
    """
    return next((place for place, known in enumerate(_ORDER)
                 if re.fullmatch(known, name, re.ASCII)), None)


def is_log(name: str) -> bool:
    """Return whether the file grows by lines; other files are documents."""
    return name.endswith(".jsonl")
