"""A run that is watched from afar: what its server hands out of the files, in a folder of ours.

Whatever reads a run's folder then reads this one. The files are the same bytes, and have the same
times of writing; but where a standby goes on with a run, its log goes on in the same file: from
the moment at which the standby took over, it is the log of a server that was resumed.
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
from typing import Any

import zmq
import zmq.utils.monitor

from wbsp.runlog.files import cut_torn_line
from wbsp.watch.run import Origin
from wbsp.wire import messages as m
from wbsp.wire.files import FilesAt, Have, News, Piece, Read, Watch, is_log, order
from wbsp.wire.sockets import HANDSHAKE_FAILED, endpoints, split_addresses, worker_socket

PATIENCE = 10.0  # seconds for the first answer
_EVERY = 1.0  # seconds between two requests, once all is here
_ANSWER = 5.0  # seconds for an answer
_START = 30.0  # seconds for the process that hands out the files to come up
_LOOK = 0.2  # seconds between two looks whether anybody waits still
_HANDSHAKES = 3  # failures without a reason after which the server counts as refusing
_STOP = 10.0  # seconds that the end of what is under way may take

_TROUBLE = OSError, zmq.ZMQError, m.WireError


class Refused(ConnectionError):
    """Another attempt would come to the same."""


class _Line:
    """A connection for one question at a time. Raises ConnectionError in one line."""

    def __init__(self, context: zmq.Context, place: str, token: bytes | None,
                 closed: threading.Event):
        """`place`: as `endpoint` makes it; `closed`: nobody waits for an answer any more."""
        self._place = place.removeprefix("tcp://")
        self.host = self._place.rpartition(":")[0]
        self._socket = worker_socket(context, [self.host], os.urandom(16), token)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            | HANDSHAKE_FAILED)
        self._closed = closed
        self._failures = 0  # of handshakes
        self.made = False
        self._socket.connect(place)

    def ask(self, question: m.Message, answers: Any) -> m.Message:
        """The answer, one of these kinds; raises WireError for anything else."""
        self._socket.send(m.encode(question), zmq.NOBLOCK)
        end, poller = time.monotonic() + _ANSWER, zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        while time.monotonic() < end and not self._closed.is_set():
            found = dict(poller.poll(int(1000 * _LOOK)))
            if self._socket in found:
                return m.decode(answers, self._socket.recv_multipart()[0])
            if self._monitor in found:
                self._take(zmq.utils.monitor.recv_monitor_message(self._monitor)["event"])
        raise TimeoutError(f"{self._place} does not answer" if self.made else
                           f"nobody answers at {self._place}")

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)

    def _take(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.made = True
        elif event & HANDSHAKE_FAILED:
            self._failures += 1
            if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL or self._failures >= _HANDSHAKES:
                raise Refused(f"{self._place} refused the connection: either its token is another "
                              "one (--token_file must name the server's secret, or be absent "
                              "where that has none), or it is no wbsp server")
        elif self.made:
            raise ConnectionError(f"the connection to {self._place} broke")
        elif event == zmq.EVENT_CONNECT_RETRIED and not self._failures:
            raise ConnectionError(f"nobody answers at {self._place}")


@dataclass
class _Copy:
    """How much of a file is here."""

    file: str  # as in Piece
    size: int = 0  # bytes of it
    before: int = 0  # bytes of an earlier server's file of that name, in front of these


class Mirror:
    """Copies of the files of the run that is served at `address`, in `folder`.

    address: host:port, or several of these with commas between: of a server and its standby
    origin:  tells people where the files come from, and what is wrong
    Raises ValueError for a bad address.
    """

    def __init__(self, address: str, token: bytes | None, folder: Path):
        self._addresses = split_addresses(address)
        self.folder, self.origin = folder, Origin(address)
        self._token, self._context = token, zmq.Context()
        self._line: _Line | None = None
        self._run, self._epoch, self._place = "", 0, ""  # of the newest News
        self._copies: dict[str, _Copy] = {}
        self._over = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def first(self) -> None:
        """Copy all that is there. Raises ConnectionError, in one line."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                while self._step():
                    pass
                return
            except Refused:
                raise
            except _TROUBLE as error:
                self._leave()
                if time.monotonic() > end:
                    raise ConnectionError(str(error)) from None
            time.sleep(0.2)

    def follow(self) -> None:
        """Copy what is new from here on, in a thread of its own."""
        self._thread = threading.Thread(target=self._follow, name="wbsp-mirror", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_STOP)
            if self._thread.is_alive():
                return  # its sockets are not for other threads
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
                    self.origin.trouble = f"{error}; what is seen here is from before"
            self._closed.wait(_EVERY)

    def _step(self) -> bool:
        """Take what is new; True if there is more. Raises _TROUBLE, in one line."""
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
        """Raise ConnectionError for a server that does not go on with the run that is here."""
        if self._run and news.run != self._run:
            self._over = False  # this is told, whatever became of the run
            raise ConnectionError(f"the server serves another run now ({news.folder}); start this "
                                  "page again to see that one")
        if news.epoch < self._epoch:
            raise ConnectionError("the server has an older state of this run")
        if self._place not in ("", news.folder):  # a standby's: what it wrote goes on here
            for name, copy in self._copies.items():
                copy.file, copy.size = "", 0
                copy.before = cut_torn_line(self.folder / name) if is_log(name) else 0
        self._run, self._epoch, self._place = news.run, news.epoch, news.folder

    def _take(self, piece: Piece) -> None:
        """Add a piece to the copy of its file. Raises OSError, and WireError for one that does not
        go on where the copy ends."""
        if order(piece.name) is None or not 0 <= piece.offset <= piece.size:
            raise m.WireError("the server sent a file that nobody asked for")
        path, copy = self.folder / piece.name, self._copies.setdefault(piece.name, _Copy(""))
        if piece.file != copy.file:
            if copy.file or not copy.before:  # another one than before: readers begin anew
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

    def _connect(self) -> _Line:
        """A line to where the files are handed out. Raises _TROUBLE, in one line."""
        problems = []
        for host, port in self._addresses:
            try:
                places = endpoints(host, port)
            except OSError as error:
                problems.append(f"the host name {host} is not known ({error.strerror})")
                continue
            for place in places:
                line = _Line(self._context, place, self._token, self._closed)
                try:
                    return _Line(self._context, f"tcp://{line.host}:{self._port(line)}",
                                 self._token, self._closed)
                except Refused:
                    raise
                except _TROUBLE as error:
                    problems.append(str(error))
                finally:
                    line.close()
        raise ConnectionError("; ".join(dict.fromkeys(problems)))

    def _port(self, line: _Line) -> int:
        """Where the server at the other end of `line` has the files handed out."""
        end, doubted = time.monotonic() + _START, False
        while time.monotonic() < end and not self._closed.is_set():
            try:
                answer = line.ask(Watch(m.PROTOCOL), m.FromServer)
            except TimeoutError:
                if not line.made:
                    raise
                # An older server does not know the question. What every one knows is a worker's
                # first word; and none takes one of a protocol that never was.
                answer = line.ask(m.Hello(-1, -1, {}), m.FromServer)
                doubted = True
                if isinstance(answer, m.Refused):
                    raise Refused("the server is of a release that cannot be watched from afar: "
                                  "give the folder of its run") from None
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
                    raise m.WireError("the server sent what nobody asked for")
        raise TimeoutError("the server does not say where its files are handed out")

    def _leave(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


@contextlib.contextmanager
def mirrored(address: str, token: bytes | None) -> Iterator[Mirror]:
    """A mirror of what is there now, in a folder that goes with it. Raises ConnectionError and
    ValueError, in one line."""
    with (tempfile.TemporaryDirectory(prefix="wbsp-watch-") as folder,
          contextlib.closing(Mirror(address, token, Path(folder))) as mirror):
        mirror.first()
        yield mirror

