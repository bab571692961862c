"""The files of versions, sent part by part to the processes that received their names.

A process requests a version's file by a name with a random word in it. Only a process that has
received the word can read the file; the words of other versions do not reveal it. A thread reads
the disk. A part is sent when no worker's message has arrived since the last part, or after a
moment, so pushes take precedence.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from concurrent.futures import Executor, Future
from pathlib import Path

from wbsp.process.disk import disk_of
from wbsp.ps.sessions.handlers import Peer
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.reading import ReadVersion, VersionPart
from wbsp.wire.sockets import ServerSocket

_PART = 1 << 18  # bytes of a version in an answer
_PAUSE = 0.0025  # seconds between two answers, so that no reader uses the whole bandwidth
_MOST_PAUSE = 0.02  # between two answers while messages arrive
_LOOK = 0.001  # seconds between two checks whether a part is read
_MOST_WAITING = 100  # processes with a waiting request
_NONE = VersionPart(0, 0, b"")
_VERSION = re.compile(r"([0-9a-f]{32})-((?:version|above|fit)-\d{1,16}\.safetensors)", re.ASCII)


class Versions:
    """The versions in the folder of a run; used by the event loop."""

    def __init__(self, socket: ServerSocket, folder: Path):
        self._socket = socket
        self._folder = folder
        self._clock = socket.on.clock
        self._key = b""  # of the words; drawn with the first one
        # Identity of a process -> file and offset of its newest request; the oldest first.
        self._asked: dict[bytes, tuple[Path, int]] = {}
        self._reading: tuple[bytes, Future[VersionPart]] | None = None
        self._pool: Executor | None = None
        self._sent = 0.0  # time of the newest answer
        self._busy = False  # a worker's message has arrived since then

    def word_for(self, name: str) -> str:
        """Return the name by which a process may read this file: a random word before its name."""
        self._key = self._key or self._socket.on.scheduler.random(32)
        return f"{hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()[:32]}-{name}"

    def asked(self, peer: Peer, ask: ReadVersion) -> None:
        """Handle a request for a part of a file; the answer to a wrong word has none."""
        found = _VERSION.fullmatch(ask.name)
        if found is None or not hmac.compare_digest(ask.name, self.word_for(found[2])):
            self._socket.reaches(peer.identity, m.encode(_NONE))
            return
        self._asked.pop(peer.identity, None)
        self._asked[peer.identity] = self._folder / found[2], ask.offset
        if len(self._asked) > _MOST_WAITING:
            del self._asked[next(iter(self._asked))]

    def arrived(self) -> None:
        """Note that a worker's message has arrived."""
        self._busy = True

    def delay(self) -> float:
        """Return the seconds until a part may be sent, or is read."""
        if self._reading is not None:
            return _LOOK
        return max(0.0, self._due - self._clock.monotonic()) if self._asked else 1.0

    def serve(self) -> None:
        """Send the part that is read, or read the next one."""
        if self._reading is not None:
            identity, part = self._reading
            if not part.done():
                return
            self._reading = None
            self._socket.reaches(identity, m.encode(part.result()))
            self._sent, self._busy = self._clock.monotonic(), False
        elif self._asked and self._clock.monotonic() >= self._due:
            identity = next(iter(self._asked))
            self._pool = self._pool or self._socket.on.scheduler.pool("wbsp-versions")
            self._reading = identity, self._pool.submit(read_part, *self._asked.pop(identity))

    def close(self) -> None:
        """Send no more parts."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def _due(self) -> float:
        return self._sent + (_MOST_PAUSE if self._busy else _PAUSE)


def read_part(path: Path, offset: int) -> VersionPart:
    """Read a part of a file; nothing, if it is gone."""
    try:
        with disk_of(path).regular(path) as file:
            size = file.seek(0, 2)
            file.seek(offset)
            return VersionPart(size, offset, file.read(_PART))
    except (OSError, ValueError):
        return _NONE
