"""Messages of who watches a run from afar; `wbsp.wire.messages` has their encoding.

A server says where the files of its run are handed out; there, each answer brings what is new in
them, a piece at a time. Nobody who asks names a file: who hands out goes through those of the
folder that `order` knows, and is told what of them the other end has.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from wbsp.wire.message import Message

_ORDER = r"run\.json", r"events\.jsonl", r"events_wk\d{1,6}\.jsonl", r"summary\.json"


class Watch(Message, frozen=True):
    """Question at a server: where are the files of its run handed out?"""

    protocol: int


class FilesAt(Message, frozen=True):
    """Answer to Watch."""

    port: int  # of the host at which the server was reached; 0: none yet, ask again
    problem: str = ""  # why it cannot be, in one line


class Have(NamedTuple):
    """How much of a file is there at the other end."""

    name: str
    file: str  # as in Piece
    size: int  # bytes


class Read(Message, frozen=True):
    """Request for what is new in the files."""

    have: list[Have]


class Piece(NamedTuple):
    """The bytes of one file from `offset` on, and perhaps not all of these.

    file: tells a file from another one that has its name before or after it; of a document, which
          is replaced as a whole, also from its other contents
    size: bytes of the file
    time: at which it was written, ns since 1970
    """

    name: str
    file: str
    offset: int
    size: int
    time: int
    data: bytes


class News(Message, frozen=True):
    """Answer to Read: what is new, in the order in which the files depend on one another."""

    run: str  # id of the run
    folder: str  # name of its folder: a standby has another one
    epoch: int  # of the server
    server: str  # "lives", "is over" (the run has ended), or "is gone"
    more: bool  # than this answer holds
    pieces: list[Piece]


def order(name: str) -> int | None:
    """The place of a file of that name among those that are handed out; None: it is none of them.
    """
    return next((place for place, known in enumerate(_ORDER)
                 if re.fullmatch(known, name, re.ASCII)), None)


def is_log(name: str) -> bool:
    """True for a file that grows by lines; the others are documents."""
    return name.endswith(".jsonl")
