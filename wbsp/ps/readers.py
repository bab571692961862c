"""Who evaluates versions of a run: readers, which are no workers, and a worker at an epoch's end.

A version that somebody looks at is *pinned*: it is a file of its own, a second name of the
checkpoint's or an epoch's, for as long as it is looked at. So neither the event loop nor a worker
ever waits for a reader, and a reader that is slower than versions come gets the newest. What is
found is an event of the run.

Where nobody else reads the versions of epochs, one worker validates each: one of the fastest, since
the others wait for none. Who has asked first is given the version, and keeps it until it has said
what it found, or has left. Where all wait for an epoch's results, their questions stay open until
these are there, or cannot come.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.limits import one_line
from wbsp.ps.checkpoint.epoch_versions import NAME, EpochVersion, EpochVersions
from wbsp.ps.checkpoint.state import Best, RunState
from wbsp.ps.checkpoint.writer import BEST, CHECKPOINT, Checkpoints
from wbsp.ps.config import Reporter, RunInfo
from wbsp.ps.sessions.handlers import Handlers, Peer
from wbsp.ps.sessions.session import WorkerSession, other_protocol
from wbsp.runlog.files import read_document, write_document
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Request
from wbsp.wire.sockets import ServerSocket

SCORE = "best.json"  # what is known of the best version
PAST = "fit-{}.safetensors"  # of a file with the final version of an earlier run of the series
_MOST = 16  # readers
_LOOK = 2.0  # seconds between two looks whether readers are there still
_FAST = 0.8  # of the examples that the worker with the most has trained: who may validate

Take = Callable[[float, int, Mapping[str, float], bool], None]


@dataclass
class _Reader:
    """One that has asked for versions."""

    host: str
    version: int = m.NONE  # that it looks at
    of_epoch: EpochVersion | None = None  # that is this one
    t: float = 0.0  # seconds of the run at which it was given that
    told: bool = False  # that there will be no other
    epochs: bool = False  # it reads versions of epochs alone


@dataclass
class _Question:
    """Of a worker at an epoch's end, which came `at` that time (the server's own)."""

    ask: m.AskVersion
    at: float

    def lasts(self, seconds: float, now: float) -> bool:
        """Whether it has been open for so long."""
        return now - self.at >= seconds


class Readers:
    """Those of one server's run, whichever processes they are; used by the event loop.

    files_at: as of `RunFiles.at`
    take:     hears of what was found: when the version was given to a reader, its number, its
              metrics, and whether it is the best so far
    tell:     hears what was found of an epoch's version, for the workers
    best:     what is known of the best version so far
    """

    def __init__(self, socket: ServerSocket, info: RunInfo, reporter: Reporter,
                 files_at: Callable[[], m.FilesAt], answer: Callable[[int, m.Message], None]):
        """`answer`: sends a worker a message."""
        self._socket = socket
        self._info = info
        self._say = reporter.say
        self._folder: pathlib.Path = reporter.folder
        self._clock = reporter.clock
        self._files_at = files_at
        self._answer_worker = answer
        self._readers: dict[bytes, _Reader] = {}
        self._questions: dict[int, _Question] = {}  # worker -> its newest, not answered
        self._validates: dict[int, EpochVersion] = {}  # worker -> what it was given to validate
        self._validated: EpochVersion | None = None  # by anybody, last
        self._evaluated: set[int] = set()
        self._engine: Engine | None = None
        self._checkpoints: Checkpoints | None = None
        self._epochs: EpochVersions | None = None
        self._take: Take = lambda *_: None
        self._tell_all: Callable[[m.Measured], None] = lambda _: None
        self._look_at = 0.0
        self._over_since: float | None = None  # the run's final version is there
        self.best: Best | None = None
        self._pool: Executor | None = None  # in which the best version is kept
        self._keeping: list[Future] = []
        self._problem = ""  # for which no version can be read

    def begin(self, engine: Engine, checkpoints: Checkpoints, epochs: EpochVersions, take: Take,
              tell: Callable[[m.Measured], None], best: Best | None) -> None:
        """There are versions. `best`: as of a checkpoint that the run goes on from."""
        self._engine = engine
        self._checkpoints = checkpoints
        self._epochs = epochs
        self._take = take
        self._tell_all = tell
        self._tidy()  # of a server that has died
        epochs.wanted = engine.measured is not None
        if (goal := self._info.config.best) is None:
            return
        self.best = best if best is not None and best.metric == goal.metric else None
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            known = read_document(self._folder / SCORE)
            if known["metric"] == goal.metric and (self._folder / BEST).exists():
                newest = Best(goal.metric, float(known["value"]), int(known["version"]))
                if self.best is None or newest.version != self.best.version:
                    self.best = newest
                return
        if self.best is not None:
            self._say(f"the best version so far, {self.best.version:,} ({goal.metric} "
                      f"{self.best.value:.4g}), is not in this folder but in that of the server "
                      "before: a better one is kept here")

    def epoch_is_trained(self, now: float, state: Callable[[float], RunState]) -> None:
        """All of an epoch is in the newest version, or will be in the next one; `now` is of the
        run."""
        if self._engine is not None and self._epochs is not None and self._epochs.wanted:
            keep = self._epochs.keep
            self._engine.at_rest(lambda t: keep(t, state(t)), now)

    def worker_found(self, epoch: int, values: Mapping[str, float]) -> None:
        """A worker has said what it found of an epoch's version: `val_` and the metric's name."""
        for one in self._validates.values():
            if one.epoch == epoch:
                self._found(one.t, one.version, {name.removeprefix("val_"): value
                                                 for name, value in values.items()}, one)
                break
        self._validates = {worker: one for worker, one in self._validates.items()
                           if one.epoch != epoch}
        self._tidy()

    @property
    def some(self) -> bool:
        """Whether anybody evaluates versions."""
        return bool(self._readers) or (self._epochs is not None and self._epochs.wanted)

    @property
    def number(self) -> int:
        """How many read versions."""
        return len(self._readers)

    def handlers(self) -> Handlers:
        """The messages of readers."""
        return Handlers({m.NextVersion: self.next, m.Evaluated: self.evaluated},
                        {m.AskVersion: self.asked, m.AskPast: self.asked_past})

    def asked(self, session: WorkerSession, ask: m.AskVersion) -> None:
        """A worker asks for an epoch's version, or says that it will."""
        if not session.joined or session.plane is None:
            return
        if self._epochs is not None:
            self._epochs.wanted = True
        self._files_at()  # it takes its time to be there
        open_ = self._questions.get(session.worker)
        if open_ is None or open_.ask != ask:
            self._questions[session.worker] = _Question(ask, self._clock.now())
        self._answer_workers()

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
        reader.epochs = question.epochs
        if question.epochs and self._epochs is not None:
            self._epochs.wanted = True
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
            metrics = {one_line(name): value for name, value in found.metrics.items()}
            self._found(reader.t, version, metrics, reader.of_epoch)
            if reader.of_epoch is not None:
                self._tell_all(m.Measured(reader.of_epoch.epoch, {
                    f"val_{name}"[:64]: value for name, value in metrics.items()}))
        self._answer(peer, m.Noted(problem))

    def asked_past(self, session: WorkerSession, ask: m.AskPast) -> None:
        """A worker's fit was a run that has ended: it wants the final version of that. Raises
        WireError for one whose was not."""
        folder = self._info.series.folders.get(session.passes)
        if folder is None:
            raise m.WireError(f"worker {session.worker} asked for the final version of no run")
        name = PAST.format(session.passes)
        problem = ""
        try:
            if not (self._folder / name).exists():
                (self._folder / name).hardlink_to(folder / CHECKPOINT)
        except OSError as error:
            problem = f"{folder.name} has none that can be read ({error.strerror})"
        files = self._files_at()
        if problem := problem or files.problem:
            self._answer_worker(session.worker, m.Refused(
                f"worker {session.worker} begins with fit {session.passes}, which has ended, and "
                f"cannot be given its final version: {problem}"))
        else:
            self._answer_worker(session.worker, m.VersionAt(
                self._info.run, name=name, port=files.port, last=True, fit=session.passes))

    def poll(self) -> None:
        """Forget readers that are gone, and answer workers."""
        now = self._clock.now()
        self._answer_workers()
        if self._keeping and self._keeping[0].done() and (problem := self._keeping.pop(0).result()):
            self._say(problem)
        if now >= self._look_at:
            self._look_at = now + _LOOK
            alive = m.encode(m.Alive())
            for identity, reader in list(self._readers.items()):
                if not self._socket.reaches(identity, alive):
                    del self._readers[identity]
                    self._tidy()
                    if not reader.told:
                        self._say(f"lost the evaluator at {reader.host}")

    def awaited(self, final: int) -> bool:
        """After the run's end: whether a reader has yet to evaluate its final version, or to hear
        that this was the last. Nobody is waited for much longer than an evaluation may take; who
        has read the versions of the run before, and was not here, is given a moment."""
        now = self._clock.now()
        if self._over_since is None:
            self._over_since = now
        self.poll()
        if (len(self._readers) < self._info.series.readers
                and now - self._over_since < timeouts.OTHERS_BACK):
            return True
        late = now - self._over_since > timeouts.EVALUATOR_HANGS
        waiting = [reader for reader in self._readers.values() if not reader.told]
        if late and waiting:
            self._say(f"version {final} was not evaluated within {timeouts.EVALUATOR_HANGS:g} s of "
                      "the run's end; ending without it")
        return bool(waiting) and not late

    def dismiss(self) -> None:
        """The server ends, and no other run follows: who reads waits for none."""
        for identity in self._readers:
            self._socket.reaches(identity, m.encode(
                m.VersionAt(self._info.run, last=True, ends=True)))

    def close(self) -> None:
        """No version is kept for a reader any longer."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._epochs is not None:
            self._epochs.close()
            self._epochs.newest = None
        self._readers.clear()
        self._validates.clear()
        self._validated = None
        self._tidy()
        for path in list(self._folder.glob(PAST.format("*"))):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _proven(self, peer: Peer, request: Request) -> bool:
        """Whether the peer has proven itself; else it is challenged."""
        key = self._socket.contact
        if self._socket.challenges.proven(peer.identity, request, key) is not None:
            return True
        self._answer(peer, self._socket.challenges.challenge(peer.identity, request.nonce, key))
        return False

    def _at(self, reader: _Reader, after: int) -> m.VersionAt:
        """The newest version, if it is newer than `after`, pinned for this reader."""
        nothing = m.VersionAt(self._info.run, fit=self._info.series.fit)
        saved = self._checkpoints and self._checkpoints.saved
        files = self._files_at()
        self._tell(files.problem)
        if not saved or not files.port:
            return nothing
        version, final = saved
        newest = None if self._epochs is None else self._epochs.newest
        if reader.epochs and not final:
            if newest is None or newest.version == after or not self._there(newest):
                return nothing
            version = newest.version
        if version == after:
            reader.told = final
            return structs.replace(nothing, last=final)
        name = NAME.format(version)
        try:
            if not (self._folder / name).exists():
                (self._folder / name).hardlink_to(self._folder / CHECKPOINT)
        except OSError as error:
            self._tell(f"its file can have no second name ({error.strerror})")
            return nothing
        if reader.version != version:
            reader.version, reader.t = version, self._clock.run()
            reader.of_epoch = newest if newest and newest.version == version else None
            self._tidy()
        return structs.replace(nothing, version=version, name=name, port=files.port, last=final,
                               epoch=reader.of_epoch.epoch if reader.of_epoch else m.NONE)

    def _there(self, one: EpochVersion) -> bool:
        """As of `EpochVersions`."""
        assert self._epochs is not None
        there = self._epochs.there(one)
        self._tell(one.problem)
        return there

    # Workers that validate, or save what was validated.

    def _answer_workers(self) -> None:
        for worker, question in list(self._questions.items()):
            answer = self._for_worker(worker, question)
            if answer is not None:
                del self._questions[worker]
                self._answer_worker(worker, answer)

    def closing(self, worker: int) -> bool:
        """Whether a worker of a run that has ended validates its last epoch, or waits for that."""
        work = None if self._engine is None else self._engine.work
        if work is None or not work.ledger.over:
            return False
        last, question = work.data.epochs - 1, self._questions.get(worker)
        validates = self._validates.get(worker)
        return ((validates is not None and validates.epoch == last)
                or (question is not None and question.ask.epoch == last))

    def _for_worker(self, worker: int, question: _Question) -> m.VersionAt | None:
        """What a worker is given; None: that is yet to be seen."""
        ask, now = question.ask, self._clock.now()
        nothing = m.VersionAt(self._info.run, fit=self._info.series.fit)
        if self._epochs is None or self._engine is None or ask.epoch == m.NONE:
            return nothing
        one, work = self._epochs.newest, self._engine.work
        if ask.validates and work is not None and work.data.validate == "wait":
            if one is None or not self._comes(one, question):
                return nothing
            if self._is_validated(one, worker) or any(r.epochs for r in self._readers.values()):
                return None
            if not (self._may_validate(worker) or question.lasts(timeouts.EPOCH_WHOLE, now)):
                return None
        elif ask.validates:
            waits = ((one is None or one.epoch < ask.epoch) and self._engine.stop_reason is None
                     and not question.lasts(timeouts.EPOCH_WHOLE, now))
            if not self._may_validate(worker):
                return nothing
            if waits:
                return None
            if one is None or self._is_validated(one, worker):
                return nothing
        else:
            one = self._validated or one
        if one is None or one.problem:
            return nothing
        files = self._files_at()
        if not self._there(one) or not files.port:
            self._tell(files.problem)
            return nothing if files.problem or one.problem else None
        if ask.validates:
            self._validates[worker] = one
            self._tidy()
        return structs.replace(nothing, version=one.version, name=one.name, port=files.port,
                               epoch=one.epoch)

    def _comes(self, one: EpochVersion, question: _Question) -> bool:
        """Whether a worker that waits for an epoch's results will hear of them, and has not yet.

        one: the newest version of an epoch; a server that goes on with a run has none
        """
        engine, epoch = self._engine, question.ask.epoch
        assert engine is not None and engine.work is not None
        measured = -1 if engine.measured is None else engine.measured.epoch
        ends = engine.stop_reason is not None and not engine.work.ledger.over
        hangs = (any(reader.epochs for reader in self._readers.values())
                 and question.lasts(timeouts.EVALUATOR_HANGS, self._clock.now()))
        return measured < epoch <= one.epoch and not (one.problem or ends or hangs)

    def _may_validate(self, worker: int) -> bool:
        """Whether this worker is one of the fastest, and nobody else evaluates epochs."""
        assert self._engine is not None
        members = self._engine.members
        most = max((members[other].samples for other in self._engine.active), default=0)
        return (worker in members and members[worker].samples >= _FAST * most
                and not any(reader.epochs for reader in self._readers.values()))

    def _is_validated(self, one: EpochVersion, worker: int) -> bool:
        """Whether this version, or a later one, was validated, or is so by another worker."""
        assert self._engine is not None
        measured = self._engine.measured
        return (measured is not None and measured.epoch >= one.epoch) or any(
            other != worker and other in self._engine.active and theirs.epoch >= one.epoch
            for other, theirs in self._validates.items())

    # What was found.

    def _found(self, t: float, version: int, metrics: dict[str, float],
               of_epoch: EpochVersion | None) -> None:
        """Of a version whose file is there; `of_epoch`: it is an epoch's."""
        self._evaluated.add(version)
        self._validated = of_epoch or self._validated
        goal = self._info.config.best
        value = None if goal is None else metrics.get(goal.metric)
        best = False
        if goal is not None and value is not None:
            best = self.best is None or goal.better(value, self.best.value)
            if best:
                self.best = Best(goal.metric, value, version)
                self._keep(self.best, metrics)
            elif self.best is not None:
                self.best.worse += 1
        self._take(t, version, metrics, best)

    def _keep(self, best: Best, metrics: dict[str, float]) -> None:
        beside = self._folder / f".{best.version}-{BEST}"
        with contextlib.suppress(OSError):  # it is said when it cannot be kept
            beside.hardlink_to(self._folder / NAME.format(best.version))
        self._pool = self._pool or self._socket.on.scheduler.pool("wbsp-best")
        self._keeping.append(self._pool.submit(_keep, beside, {
            "version": best.version, "metric": best.metric, "value": best.value,
            "metrics": metrics}))

    def _tidy(self) -> None:
        """Remove files that nobody looks at any longer."""
        needed = {reader.version for reader in self._readers.values()}
        newest = None if self._epochs is None else self._epochs.newest
        needed.update(one.version for one in (newest, self._validated, *self._validates.values())
                      if one is not None)
        names = {NAME.format(version) for version in needed}
        for path in list(self._folder.glob(NAME.format("*"))):
            if path.name not in names:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

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
