"""The process that sends the files of a run to remote watchers, and its server's handle
(`RunFiles`).

A server starts it by `python -m wbsp.ps.file_server` at the first request. Connections of watchers,
reading files and memory for them burden this process, not the server's event loop. It reads files
of one folder, and writes nothing.

It ends with the server, however that ends, because it reads from a pipe that the server holds open;
but not before watchers have the last lines, if they request them soon.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from wbsp import timeouts
from wbsp.process.child import ChildProcess, answer_server, settings_from_server
from wbsp.process.host import HOST, Host, Thread
from wbsp.runlog.files import decode_document
from wbsp.runlog.folder import SECRET, SETTINGS
from wbsp.wire.loop import Loop
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.watch import FilesAt, Have, News, Piece, Read, is_log, order
from wbsp.wire.sockets import ServerSocket

# Bytes of files in an answer, of which libzmq holds one for a connection: any process may ask.
MOST, _ROOM = 1 << 16, 1
_MOST_ASKED = 1 << 18  # bytes of a request: some thousand files
_MOST_FILES = 3000  # that are sent
_LARGEST = 1 << 22  # bytes of the settings that are read
_PAUSE = 0.01  # seconds between two answers, so that no watcher uses the whole bandwidth
_MOST_WAITING = 100  # watchers with a waiting request
_LOOK = 0.02  # seconds between two checks of the connections, while some exist
_NICE = 10  # training has priority
_COMMAND = "-m", "wbsp.ps.file_server"


class Folder:
    """The files of a run's folder that are sent."""

    def __init__(self, path: str):
        """Open the folder.

        Raises:
            OSError: it cannot be opened.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._shown = "", 0  # the settings that were sent last, and their size without secret

    def news(self, have: Iterable[Have]) -> tuple[list[Piece], bool]:
        """Return at most MOST new bytes, and whether more may follow.

        Files that cannot be read are skipped.
        """
        known = {one.name: one for one in have}
        found = [(place, name) for name in os.listdir(self._fd)
                 if (place := order(name)) is not None]
        pieces: list[Piece] = []
        left = MOST
        for _, name in sorted(found)[:_MOST_FILES]:
            if left <= 0:
                return pieces, True
            with contextlib.suppress(OSError):
                if piece := self._piece(name, known.get(name), left):
                    pieces.append(piece)
                    left -= len(piece.data)
        return pieces, left <= 0

    def _piece(self, name: str, have: Have | None, most: int) -> Piece | None:
        """Return the new part of a file; None: nothing is new, or it is no regular file."""
        status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        file = _file(name, status)
        size = status.st_size
        if name == SETTINGS and self._shown[0] == file:
            size = self._shown[1]
        if not stat.S_ISREG(status.st_mode) or have == Have(name, file, size):
            return None
        # it may be another file by now, even a pipe without a writer
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                     dir_fd=self._fd)
        try:
            status = os.fstat(fd)
            file = _file(name, status)
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                return None
            content = None if name != SETTINGS else _without_secret(os.pread(fd, _LARGEST, 0))
            if content is not None:
                size = len(content)
                self._shown = file, size
            known = have is not None and have.file == file and 0 <= have.size <= size
            offset = have.size if known and have else 0
            data = os.pread(fd, most, offset) if content is None else content[offset:offset + most]
        finally:
            os.close(fd)
        if is_log(name) and offset + len(data) >= size:
            data = data[:data.rfind(b"\n") + 1]  # the rest is being written, or torn
        if known and not data:
            return None
        return Piece(name, file, offset, size, status.st_mtime_ns, data)

    def close(self) -> None:
        os.close(self._fd)


def _without_secret(content: bytes) -> bytes:
    """Return a run's settings without the secret.

    Raises:
        OSError: the content is not settings.
    """
    try:
        settings = decode_document(content, SETTINGS)
    except ValueError as error:
        raise OSError(str(error)) from None
    if SECRET not in settings:
        return content
    del settings[SECRET]
    return json.dumps(settings, indent=2).encode() + b"\n"


def _file(name: str, status: os.stat_result) -> str:
    """Return the file's identity for `Piece`."""
    return f"{status.st_ino}" if is_log(name) else f"{status.st_ino} {status.st_mtime_ns}"


class FileServer:
    """The loop of the process: one answer at a time.

    Requests are read as fast as they arrive, because the number of unread ones has no bound: the
    unread requests of a connection outlive it, and a new connection may add more.

    Args:
        about: the run's id, the name of its folder, the server's epoch.
        lifeline: a file that ends with the server's process; the server may write there before that
            its run is over.
    """

    def __init__(self, socket: ServerSocket, folder: Folder, about: tuple[str, str, int],
                 lifeline: int):
        self._socket = socket
        self._folder = folder
        self._about = about
        self._lifeline = lifeline
        self._clock = socket.on.clock
        self._server = "lives"  # as in News
        self._asked: dict[bytes, bytes] = {}  # a watcher's newest request, oldest watcher first
        self._next = 0.0  # time of the next answer, at the earliest
        self._watchers: dict[bytes, float] = {}  # of watchers that lack files: newest request

    def run(self) -> None:
        """Answer until the server has ended and no watcher waits."""
        loop = Loop(self._socket, self._socket.watch, _LOOK)
        loop.register(self._lifeline)
        end = self._clock.monotonic() + timeouts.FILES_IDLE
        while self._clock.monotonic() < end and (
                self._server == "lives" or self._asked or self._recent()):
            pause = 1.0
            if self._asked:
                pause = min(pause, max(0.0, self._next - self._clock.monotonic()))
            ready = loop.wait(pause)
            if self._lifeline in ready:
                loop.poller.unregister(self._lifeline)
                self._server = "is over" if os.read(self._lifeline, 1) else "is gone"
                end = self._clock.monotonic() + timeouts.FILES_LINGER
            if self._socket.socket in ready:
                self._read()
            if self._asked and self._clock.monotonic() >= self._next:
                with contextlib.suppress(m.WireError, OSError):  # the folder was removed
                    self._answer()
                    if self._server == "lives":
                        end = self._clock.monotonic() + timeouts.FILES_IDLE
        self._socket.close(1.0)
        self._folder.close()

    def _read(self) -> None:
        """Read the waiting requests, for a limited time because of the answers."""
        for identity, *frames in self._socket.messages():
            if frames:
                self._socket.received(frames[0], False, frames[1:])
            if len(frames) == 1:
                self._asked[identity.bytes] = frames[0].bytes
            if len(self._asked) > _MOST_WAITING:
                del self._asked[next(iter(self._asked))]  # a live watcher repeats its request

    def _answer(self) -> None:
        """Answer the request that has waited longest.

        Raises:
            WireError: the request is invalid.
            OSError: a file cannot be read.
        """
        identity = next(iter(self._asked))
        request = m.decode(Read, self._asked.pop(identity))
        assert isinstance(request, Read)
        pieces, more = self._folder.news(request.have)
        self._recent()
        self._watchers[identity] = self._clock.monotonic()
        if self._server != "lives" and not more:
            del self._watchers[identity]
        run, folder, epoch = self._about
        # a watcher that does not read loses its answers
        if self._socket.reaches(identity, m.encode(News(run, folder, epoch, self._server, more,
                                                        pieces))):
            self._next = self._clock.monotonic() + _PAUSE

    def _recent(self) -> bool:
        """Return whether a watcher does not know of the end yet; forget the others."""
        since = self._clock.monotonic() - timeouts.WATCHER_GONE
        self._watchers = {who: at for who, at in self._watchers.items() if at > since}
        return bool(self._watchers)


def main() -> int:
    """Read settings, a line of JSON; print the port, or 0 and the reason of a failure; serve."""
    settings = settings_from_server()
    if settings is None:
        return 1
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    try:
        folder = Folder(settings["folder"])
        socket = ServerSocket(settings["host"], settings["port"],
                              settings["token"] and bytes.fromhex(settings["token"]), 0,
                              _MOST_ASKED, "--watch_port", room=_ROOM)
    except (OSError, ValueError) as error:
        answer_server(f"0 {error}")
        return 1
    if not answer_server(f"{socket.port}"):
        return 1
    FileServer(socket, folder, tuple(settings["about"]), 0).run()
    return 0


class RunFiles:
    """The server's handle of the process for the run in `folder`; used by the event loop.

    Args:
        about: the run's id, the server's epoch.
        port: to listen on; 0: any free one.
    """

    def __init__(self, folder: Path, about: tuple[str, int], host: str, port: int,
                 token: bytes | None, on: Host = HOST):
        name = "/".join(folder.absolute().parts[-2:])
        self._on = on
        self._settings = {"folder": str(folder), "about": (about[0], name, about[1]),
                          "host": host, "port": port, "token": token and token.hex()}
        self._starting: Thread | None = None
        self._started = -timeouts.FILES_AGAIN
        self._process: ChildProcess | None = None
        self._at = FilesAt(0)

    def at(self) -> FilesAt:
        """Return the address of the process, which is started beside the event loop."""
        if self._starting is not None and self._starting.is_alive():
            return FilesAt(0)
        if self._process is not None and self._process.ended() is None:
            return self._at
        now = self._on.clock.monotonic()
        problem = self._at.problem
        if now - self._started < timeouts.FILES_AGAIN:
            return FilesAt(0, problem)
        self._started = now
        self._at = FilesAt(0)
        self._starting = self._on.scheduler.thread(self._start, "wbsp-files")
        self._starting.start()
        return FilesAt(0)

    def close(self) -> None:
        """End the process soon: the run is over, and watchers may read the last lines."""
        self._end(b".", timeouts.FILES_LINGER + timeouts.FILES_EXIT)

    def kill(self) -> None:
        """End it at once."""
        self._end(b"", 0.0)

    def _start(self) -> None:
        try:
            if self._process is not None:
                self._process.kill()
            self._process = ChildProcess(_COMMAND, self._settings)
            self._at = FilesAt(self._process.port(timeouts.FILES_START))
        except OSError as error:
            self._process = None
            self._at = FilesAt(0, f"the process that sends the files {error}")

    def _end(self, word: bytes, patience: float) -> None:
        if self._starting is not None:
            self._starting.join(timeouts.FILES_START + timeouts.FILES_EXIT)
        if self._process is None:
            return
        if word:
            self._process.tell(word)
            self._process.ended(patience)
        self._process.kill()
        self._process = None


if __name__ == "__main__":
    sys.exit(main())
