"""The server's side of the process that hands out the files of its run: see
`wbsp.ps.file_server`."""

from __future__ import annotations

from pathlib import Path

from wbsp.process.child import ChildProcess
from wbsp.process.host import HOST, Host, Thread
from wbsp.ps.file_server import LINGER
from wbsp.wire.messages.watch import FilesAt

_COMMAND = "-m", "wbsp.ps.file_server"
_START = 30.0  # seconds that the process may take to come up
_AGAIN = 2.0  # seconds until the next one is started, where one has ended or did not come up
_END = 2.0  # seconds that the end of the process may take, beside what watchers are given


class RunFiles:
    """Where those who watch find the files of the run in `folder`; used by the event loop.

    about: the run's id, the server's epoch
    port:  to listen on; 0: any free one
    """

    def __init__(self, folder: Path, about: tuple[str, int], host: str, port: int,
                 token: bytes | None, on: Host = HOST):
        name = "/".join(folder.absolute().parts[-2:])
        self._on = on
        self._settings = {"folder": str(folder), "about": (about[0], name, about[1]),
                          "host": host, "port": port, "token": token and token.hex()}
        self._starting: Thread | None = None
        self._started = -_AGAIN
        self._process: ChildProcess | None = None
        self._at = FilesAt(0)

    def at(self) -> FilesAt:
        """Where the files are handed out. It is found out beside the event loop, which never waits
        for a process."""
        if self._starting is not None and self._starting.is_alive():
            return FilesAt(0)
        if self._process is not None and self._process.ended() is None:
            return self._at
        now, problem = self._on.clock.monotonic(), self._at.problem
        if now - self._started < _AGAIN:
            return FilesAt(0, problem)
        self._started, self._at = now, FilesAt(0)
        self._starting = self._on.scheduler.thread(self._start, "wbsp-files")
        self._starting.start()
        return FilesAt(0)

    def close(self) -> None:
        """The run is over: those who watch are given a moment for the last lines."""
        self._end(b".", LINGER + _END)

    def kill(self) -> None:
        """End it at once."""
        self._end(b"", 0.0)

    def _start(self) -> None:
        try:
            if self._process is not None:
                self._process.kill()
            self._process = process = ChildProcess(_COMMAND, self._settings)
            port, _, problem = (process.answer(_START) or "").partition(" ")
            if int(port or 0) == 0:
                raise OSError(problem.strip() or "the process did not start")
            self._at = FilesAt(int(port))
        except (OSError, ValueError) as error:
            if self._process is not None:
                self._process.kill()
                self._process = None
            self._at = FilesAt(0, f"the process that hands out the files: {error}")

    def _end(self, word: bytes, patience: float) -> None:
        if self._starting is not None:
            self._starting.join(_START + _END)
        if self._process is None:
            return
        if word:
            self._process.tell(word)
            self._process.ended(patience)
        self._process.kill()
        self._process = None
