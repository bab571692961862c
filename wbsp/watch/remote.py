"""A run that is watched remotely: the files that its server sends, in a folder of this process.

Readers of a run's folder then read this one. The files have the same bytes and times of writing.
But if a standby continues a run, its log continues in the same file: from the time at which the
standby took over, it is the log of a resumed server.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zmq

from wbsp import timeouts
from wbsp.environment import Credentials
from wbsp.runlog.files import cut_torn_line
from wbsp.watch.run import Origin
from wbsp.wire.addresses import all_here, endpoints, split_addresses, to_check
from wbsp.wire.line import Foreign, Line, Nobody, Refused
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.watch import FilesAt, Have, News, Piece, Read, Watch, is_log, order

_TROUBLE = OSError, zmq.ZMQError, m.WireError


@dataclass
class _Copy:
    """How much of a file has been copied."""

    file: str  # as in Piece
    size: int = 0  # bytes of it
    before: int = 0  # bytes of an earlier server's file of that name, in front of these


class Mirror:
    """Copies of the files of the run that is served at `address`, in `folder`.

    address: host:port, or several of these separated by commas: of a server and its standby
    token_file: as for `environment.Credentials`
    closed:  set when no more copies are wanted
    origin:  shows the user where the files come from, and what is wrong

    Raises ValueError for a malformed address, OSError for a token file that cannot be read.
    """

    def __init__(self, address: str, token_file: str | None, folder: Path,
                 closed: threading.Event):
        self._address, self._addresses = address, split_addresses(address)
        self.folder, self.origin = folder, Origin(address)
        self._credentials = Credentials(token_file, lambda: not all_here(address))
        self._context = zmq.Context()
        self._line: Line | None = None
        self._run, self._epoch = "", 0  # of the newest News
        self._places: list[str] = []  # folders whose files were sent, one after the other
        self._copies: dict[str, _Copy] = {}
        self._over = False
        self._closed = closed
        self._thread: threading.Thread | None = None

    def first(self) -> None:
        """Copy everything that exists. Raises ConnectionError, in one line; KeyboardInterrupt if
        it is closed meanwhile."""
        end = time.monotonic() + timeouts.WATCH_FIRST
        while not self._closed.is_set():
            try:
                if not self._step():
                    return
                continue
            except Refused:
                raise
            except _TROUBLE as error:
                self._leave()
                if time.monotonic() > end:
                    advice = (f"; {to_check(self._address)}" if isinstance(error, Nobody)
                              else "")
                    raise ConnectionError(f"{error}{advice}") from None
            self._closed.wait(0.2)
        raise KeyboardInterrupt

    def follow(self) -> None:
        """Copy new parts from now on, in a separate thread."""
        self._thread = threading.Thread(target=self._follow, name="wbsp-mirror", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeouts.WATCH_EXIT)
            if self._thread.is_alive():
                return  # its sockets must not be used by other threads
        self._leave()
        self._context.destroy(0)

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                if self._step():
                    continue
            except _TROUBLE as error:
                self._leave()
                if not self._over:
                    self.origin.trouble = f"{error}; showing older data"
            self._closed.wait(timeouts.WATCH_PERIOD)

    def _step(self) -> bool:
        """Copy new parts; return whether there are more. Raises _TROUBLE, in one line."""
        if self._line is None:
            self._line = self._connect()
        news = self._line.ask(Read([Have(name, copy.file, copy.size)
                                    for name, copy in self._copies.items()]), News)
        assert isinstance(news, News)
        self._check(news)
        for piece in news.pieces:
            self._take(piece)
        self.origin.place = f"{','.join(f'{h}:{p}' for h, p in self._addresses)}, {news.folder}"
        self.origin.trouble = ""
        self._over = news.server == "is over" and not news.more
        if news.server == "is gone" and not news.more:
            raise ConnectionError("the server has ended, but not its run")
        if self._over:
            self._leave()
            if not (self.folder / "summary.json").exists():
                self.origin.trouble = "the server has ended its run without a summary"
        return news.more

    def _check(self, news: News) -> None:
        """Raise ConnectionError if the server does not continue the run that was copied."""
        if self._run and news.run != self._run:
            self._over = False  # the user must see this even after the run's end
            raise ConnectionError(f"the server serves another run now ({news.folder}); restart "
                                  "this page to see that run")
        if news.epoch < self._epoch:
            raise ConnectionError("the server has an older state of this run")
        if self._places[-1:] != [news.folder]:
            self._move(back=news.folder in self._places)
            self._places.append(news.folder)
        self._run, self._epoch = news.run, news.epoch

    def _move(self, back: bool) -> None:
        """Change to another folder: that of a standby, whose log continues the run.

        If it is an earlier one (`back`), its log is copied again from the beginning.
        """
        for name, copy in self._copies.items():
            copy.file, copy.size, copy.before = "", 0, 0
            if is_log(name) and back:
                (self.folder / name).unlink(missing_ok=True)
            elif is_log(name) and (self.folder / name).exists():
                copy.before = cut_torn_line(self.folder / name)

    def _take(self, piece: Piece) -> None:
        """Add a piece to the copy of its file. Raises OSError, and WireError for a piece that does
        not continue the copy."""
        if order(piece.name) is None or not 0 <= piece.offset <= piece.size:
            raise m.WireError("the server sent a file that was not requested")
        path, copy = self.folder / piece.name, self._copies.setdefault(piece.name, _Copy(""))
        if piece.file != copy.file:
            if copy.file or not copy.before:  # another file than before: readers start again
                copy.before = 0
                if is_log(piece.name):
                    path.unlink(missing_ok=True)
            copy.file, copy.size = piece.file, 0
        if piece.offset != copy.size:
            copy.file = ""
            raise m.WireError("the server sent a piece that does not fit")
        target = path if is_log(piece.name) else path.with_name(f".{path.name}.part")
        with open(target, "r+b" if target.exists() else "xb") as file:
            file.truncate(copy.before + copy.size)
            file.seek(copy.before + copy.size)
            file.write(piece.data)
        os.utime(target, ns=(piece.time, piece.time))
        copy.size += len(piece.data)
        if not is_log(piece.name) and copy.size >= piece.size:
            os.replace(target, path)

    def _connect(self) -> Line:
        """Return a line to the file server. Raises _TROUBLE, in one line."""
        problems, nobody = [], True
        for host, port in self._addresses:
            try:
                places = endpoints(host, port)
            except OSError as error:
                problems.append(f"the host name {host} is not known ({error.strerror})")
                continue
            for place in places:
                line = Line(self._context, place, self._credentials.token, self._closed)
                try:
                    return Line(self._context, f"tcp://{line.host}:{self._port(line)}",
                                self._credentials.token, self._closed)
                except Foreign as error:
                    if self._credentials.other() is None:
                        raise
                    problems.append(str(error))  # the next attempt is with the other token
                except Refused:
                    raise
                except _TROUBLE as error:
                    problems.append(str(error))
                    nobody = nobody and isinstance(error, Nobody)
                finally:
                    line.close()
        raise (Nobody if nobody else ConnectionError)("; ".join(dict.fromkeys(problems)))

    def _port(self, line: Line) -> int:
        """Return the port of the file server that belongs to the server at `line`."""
        end, doubted = time.monotonic() + timeouts.FILES_START, False
        while time.monotonic() < end and not self._closed.is_set():
            try:
                answer = line.ask(Watch(m.PROTOCOL), m.FromServer)
            except TimeoutError:
                if not line.made:
                    raise
                # An older server does not know this question. All releases know a worker's Hello,
                # and refuse one with a protocol that never existed.
                answer = line.ask(m.Hello(-1, -1, {}), m.FromServer)
                doubted = True
                if isinstance(answer, m.Refused):
                    raise Refused("this server's release cannot be watched remotely: give the "
                                  "folder of its run") from None
            match answer:
                case FilesAt() if answer.port:
                    return answer.port
                case FilesAt(problem=""):
                    self._closed.wait(0.1)
                case FilesAt():
                    raise ConnectionError(answer.problem)
                case m.Refused() if doubted:  # the answer to Hello, after a late one to Watch
                    continue
                case m.Refused():
                    raise Refused(answer.reason)
                case m.NotServing():
                    raise ConnectionError(answer.reason)
                case _:
                    raise m.WireError("the server sent what was not requested")
        raise TimeoutError("the server does not name its file server")

    def _leave(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


@contextlib.contextmanager
def mirrored(address: str, token_file: str | None, closed: threading.Event
             ) -> Iterator[Mirror]:
    """Yield a mirror of the current files, in a folder that is deleted with it. Raises as `Mirror`.
    """
    with (tempfile.TemporaryDirectory(prefix="wbsp-watch-") as folder,
          contextlib.closing(
              Mirror(address, token_file, Path(folder), closed)) as mirror):
        mirror.first()
        yield mirror
