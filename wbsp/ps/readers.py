"""Readers of a run: processes that evaluate its versions, and are no workers.

A version that is in the checkpoint is *pinned* for a reader: its file gets a second name, for as
long as the reader looks at it. So neither the event loop nor a worker ever waits for a reader, and
a reader that is slower than versions come gets the newest. What it reports is an event of the run.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from wbsp import timeouts
from wbsp.limits import one_line
from wbsp.ps.checkpoint.writer import BEST, CHECKPOINT, Checkpoints
from wbsp.ps.config import Reporter, RunInfo
from wbsp.ps.sessions.handlers import Handlers, Peer
from wbsp.ps.sessions.session import other_protocol
from wbsp.runlog.files import read_document, write_document
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Request
from wbsp.wire.sockets import ServerSocket

SCORE = "best.json"  # what is known of the best version
_MOST = 16  # readers
_LOOK = 2.0  # seconds between two looks whether readers are there still
_NAME = "version-{}.safetensors"

Take = Callable[[float, int, Mapping[str, float], bool], None]


@dataclass
class _Reader:
    """One that has asked for versions."""

    host: str
    version: int = m.NONE  # that it looks at
    t: float = 0.0  # seconds of the run at which it was given that
    told: bool = False  # that there will be no other


class Readers:
    """The readers of one server's run, whichever processes they are; used by the event loop.

    files_at: as of `RunFiles.at`
    take:     hears of what was found: when the version was given to a reader, its number, its
              metrics, and whether it is the best so far
    """

    def __init__(self, socket: ServerSocket, info: RunInfo, reporter: Reporter,
                 files_at: Callable[[], m.FilesAt]):
        self._socket = socket
        self._info = info
        self._say = reporter.say
        self._folder: pathlib.Path = reporter.folder
        self._clock = reporter.clock
        self._files_at = files_at
        self._readers: dict[bytes, _Reader] = {}
        self._evaluated: set[int] = set()
        self._checkpoints: Checkpoints | None = None
        self._take: Take = lambda *_: None
        self._look_at = 0.0
        self._over_since: float | None = None  # the run's final version is there
        self._best: float | None = None
        self._pool: Executor | None = None  # in which the best version is kept
        self._keeping: list[Future] = []
        self._problem = ""  # for which no version can be read

    def begin(self, checkpoints: Checkpoints, take: Take) -> None:
        """There are versions."""
        self._checkpoints = checkpoints
        self._take = take
        self._unpin_all()  # of a server that has died
        if goal := self._info.config.best:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                known = read_document(self._folder / SCORE)
                if known["metric"] == goal.metric and (self._folder / BEST).exists():
                    self._best = float(known["value"])

    @property
    def some(self) -> bool:
        """Whether anybody reads versions."""
        return bool(self._readers)

    def handlers(self) -> Handlers:
        """The messages of readers."""
        return Handlers({m.NextVersion: self.next, m.Evaluated: self.evaluated})

    def next(self, peer: Peer, question: m.NextVersion) -> None:
        """A reader asks for a version. It is challenged until it has proven that it knows the
        token, or without one is of the server's user."""
        if reason := other_protocol("who reads versions", question.protocol):
            self._answer(peer, m.Refused(reason))
            return
        if not self._proven(peer, question):
            return
        reader = self._readers.get(peer.identity)
        if reader is None:
            if len(self._readers) >= _MOST:
                self._answer(peer, m.Refused(f"{_MOST} processes read this run's versions, and "
                                             "no more may"))
                return
            reader = self._readers[peer.identity] = _Reader(peer.host)
            self._say(f"a process at {reader.host} evaluates versions")
        after = question.after if question.run == self._info.run else m.NONE
        self._answer(peer, self._at(reader, after))

    def evaluated(self, peer: Peer, found: m.Evaluated) -> None:
        """A reader has evaluated the version that it was given; proven as in `next`."""
        if not self._proven(peer, found):
            return
        reader = self._readers.get(peer.identity)
        version = found.version
        problem = ""
        if found.run != self._info.run:
            problem = "it is of another run"
        elif version in self._evaluated:
            problem = f"version {version} was evaluated before"
        elif reader is None or reader.version != version:
            problem = f"version {version} was not given to this process, or is no longer kept"
        else:
            self._evaluated.add(version)
            self._note(reader, {one_line(name): value for name, value in found.metrics.items()})
        self._answer(peer, m.Noted(problem))

    def poll(self) -> None:
        """Forget readers that are gone."""
        now = self._clock.now()
        if self._keeping and self._keeping[0].done() and (problem := self._keeping.pop(0).result()):
            self._say(problem)
        if now >= self._look_at:
            self._look_at = now + _LOOK
            alive = m.encode(m.Alive())
            for identity, reader in list(self._readers.items()):
                if not self._socket.reaches(identity, alive):
                    del self._readers[identity]
                    self._release(reader.version)
                    if not reader.told:
                        self._say(f"the process at {reader.host} that evaluates versions is gone")

    def awaited(self, final: int) -> bool:
        """After the run's end: whether a reader has yet to evaluate its final version, or to hear
        that this was the last. Nobody is waited for much longer than an evaluation may take."""
        now = self._clock.now()
        if self._over_since is None:
            self._over_since = now
        self.poll()
        late = now - self._over_since > timeouts.EVALUATOR_HANGS
        waiting = [reader for reader in self._readers.values() if not reader.told]
        if late and waiting:
            self._say(f"version {final} was not evaluated within {timeouts.EVALUATOR_HANGS:g} s of "
                      "the run's end; ending without it")
        return bool(waiting) and not late

    def close(self) -> None:
        """No version is kept for a reader any longer."""
        if self._pool is not None:
            self._pool.shutdown()
        self._unpin_all()

    def _proven(self, peer: Peer, request: Request) -> bool:
        """Whether the peer has proven itself; else it is challenged."""
        key = self._socket.contact
        if self._socket.challenges.proven(peer.identity, request, key) is not None:
            return True
        self._answer(peer, self._socket.challenges.challenge(peer.identity, request.nonce, key))
        return False

    def _at(self, reader: _Reader, after: int) -> m.VersionAt:
        """The newest version, if it is newer than `after`, pinned for this reader."""
        run = self._info.run
        saved = self._checkpoints and self._checkpoints.saved
        files = self._files_at()
        self._tell(files.problem)
        if not saved or not files.port:
            return m.VersionAt(run)
        version, final = saved
        if version == after:
            reader.told = final
            return m.VersionAt(run, last=final)
        name = _NAME.format(version)
        try:
            if not (self._folder / name).exists():
                (self._folder / name).hardlink_to(self._folder / CHECKPOINT)
        except OSError as error:
            self._tell(f"its file can have no second name ({error.strerror})")
            return m.VersionAt(run)
        before, reader.version, reader.t = reader.version, version, self._clock.run()
        if before != version:
            self._release(before)
        return m.VersionAt(run, version, name, files.port, final)

    def _note(self, reader: _Reader, metrics: dict[str, float]) -> None:
        goal = self._info.config.best
        value = None if goal is None else metrics.get(goal.metric)
        best = goal is not None and value is not None and (
            self._best is None or goal.better(value, self._best))
        if best:
            self._best = value
            beside = self._folder / f".{reader.version}-{BEST}"
            with contextlib.suppress(OSError):  # it is said when it cannot be kept
                beside.hardlink_to(self._folder / _NAME.format(reader.version))
            self._pool = self._pool or self._socket.on.scheduler.pool("wbsp-best")
            self._keeping.append(self._pool.submit(_keep, beside, {
                "version": reader.version, "metric": goal and goal.metric, "value": value,
                "metrics": metrics}))
        self._take(reader.t, reader.version, metrics, best)

    def _release(self, version: int) -> None:
        """A reader has done with this version."""
        if all(reader.version != version for reader in self._readers.values()):
            self._unlink(_NAME.format(version))

    def _unpin_all(self) -> None:
        for path in list(self._folder.glob(_NAME.format("*"))):
            self._unlink(path.name)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)

    def _tell(self, problem: str) -> None:
        """Say why no version can be read, where that is news."""
        if problem and problem != self._problem:
            self._say(f"no version can be read: {problem}")
        self._problem = problem

    def _answer(self, peer: Peer, message: m.Message) -> None:
        self._socket.reaches(peer.identity, m.encode(message))


def _keep(beside: pathlib.Path, score: dict[str, Any]) -> str | None:
    """Make of a version's second name the best version of its folder; why that cannot be, in one
    line. In a thread: the disk may be slow."""
    try:
        beside.replace(beside.with_name(BEST))
        write_document(beside.with_name(SCORE), score)
    except OSError as error:
        return (f"version {score['version']} is the best so far, and cannot be kept as {BEST}: "
                f"{error.strerror}")
    return None
