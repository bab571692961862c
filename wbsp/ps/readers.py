"""Evaluation of a run's versions by readers, separate processes, and by workers at epochs' ends.

A version that a process reads is *pinned*: it has its own file, a hard link to the checkpoint's or
an epoch's, for as long as it is read. So neither the event loop nor a worker ever waits for a
reader, and a reader that is slower than the versions receives the newest. The results are events of
the run.

If no reader reads the versions of epochs, a worker validates each: one of the fastest, because no
worker waits for that one. The first such worker to request a version is given it, and keeps it
until it has reported its results, or has left. Where all workers wait for an epoch's results, their
requests stay open until the results are known, or cannot be had.
"""

from __future__ import annotations

import contextlib
import hmac
import pathlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.goal import plain, validation
from wbsp.core.results import Best, Results
from wbsp.core.shared_work import SharedWork
from wbsp.ps.checkpoint.epoch_versions import NAME, EpochVersion, EpochVersions
from wbsp.ps.checkpoint.writer import BEST, CHECKPOINT, Checkpoints
from wbsp.ps.config import Above, Reporter, RunInfo
from wbsp.ps.sessions.handlers import Handlers, Peer
from wbsp.ps.sessions.peer_log import PeerLog
from wbsp.ps.sessions.session import WorkerSession, other_protocol
from wbsp.ps.sessions.versions import Versions
from wbsp.ps.sessions.versions_above import ABOVE, Closing, VersionsAbove, is_fast
from wbsp.runlog.awaited import Awaited
from wbsp.runlog.files import read_document, write_document
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Request
from wbsp.wire.sockets import ServerSocket

SCORE = "best.json"  # metrics of the best version
PAST = "fit-{}.safetensors"  # of a file with the final version of an earlier run of the series
_MOST = 16  # readers
_WAITED = 0.05  # of an epoch: the longest wait of a fast worker for what the others still train
_CAUSE = "processes that evaluate versions"  # of lines
_LOOK = 2.0  # seconds between two checks of the readers' connections


@dataclass(frozen=True)
class OfRun:
    """What `Readers` needs of one run.

    Attributes:
        take: called with the results: time of the version, its number, its metrics, whether it is
            the best so far, and whether the server's own evaluator has reported them.
        tell: called with the results of an epoch's version, for the workers.
        best: as in the checkpoint that the run resumes from.
        above: for a site, the server above, which decides which worker validates; None: no site.
    """

    engine: Engine
    checkpoints: Checkpoints
    epochs: EpochVersions
    results: Results
    take: Callable[[float, int, Mapping[str, float], bool, bool], None]
    tell: Callable[[m.Measured], None]
    best: Best | None
    above: Above | None


@dataclass
class _Reader:
    """A reader that has requested versions."""

    host: str
    version: int = m.NONE  # the version that it reads
    of_epoch: EpochVersion | None = None  # the same version, if it is an epoch's
    t: float = 0.0  # seconds of the run at which it received that version
    told: bool = False  # it has received the answer that no other version follows
    epochs: bool = False  # it reads only versions of epochs
    own: bool = False  # the server has started it
    reported: int = m.NONE  # version of its newest report
    last: bool = False  # its version is the run's final one

    def asks(self, epochs: bool) -> None:
        """Note its request; `epochs`: as the attribute."""
        self.epochs = epochs

    def reports(self, version: int) -> None:
        """Note that it has reported on a version."""
        self.reported = version

    def has_newest(self, final: bool) -> None:
        """Record an answer: no newer version exists, or none follows."""
        self.told = final

    def is_given(self, version: int, t: float, of_epoch: EpochVersion | None) -> None:
        """Note the version that it is given in place of the one before; as the attributes."""
        self.version, self.t, self.of_epoch = version, t, of_epoch

    def reads(self, last: bool) -> None:
        """Note whether its version is the run's final one."""
        self.last = last


@dataclass
class _Question:
    """A worker's request at an epoch's end, received `at` that time (the server's own)."""

    ask: m.AskVersion
    at: float

    def lasts(self, seconds: float, now: float) -> bool:
        """Return whether it has been open for `seconds`."""
        return now - self.at >= seconds


@dataclass(frozen=True)
class _Validation:
    """A version that a worker validates, given `at` that time (the server's own)."""

    one: EpochVersion
    at: float


class Readers:
    """The readers of one server's run; used by the event loop.

    Attributes:
        versions: sends the versions.
    """

    def __init__(self, socket: ServerSocket, info: RunInfo, reporter: Reporter,
                 answer: Callable[[int, m.Message], None],
                 idle: Callable[[int, float], float], log: PeerLog, key: bytes):
        """Start.

        Args:
            answer: sends a worker a message.
            idle: returns the seconds since a worker's newest sign of work, from a time on.
            log: of what peers cause.
            key: of the server's own evaluator; b"": it has none.
        """
        self._socket = socket
        self._info = info
        self._say = reporter.say
        self._folder: pathlib.Path = reporter.folder
        self._clock = reporter.clock
        self.versions = Versions(socket, reporter.folder)
        self._answer_worker = answer
        self._idle = idle
        self._log = log
        self._key = key
        self._own = False  # its evaluator has come
        self._readers: dict[bytes, _Reader] = {}
        self._questions: dict[int, _Question] = {}  # worker -> its newest, not answered
        self._validates: dict[int, _Validation] = {}  # worker -> the version that it validates
        self._validated: EpochVersion | None = None  # the newest validated one
        self._run: OfRun | None = None  # once it has begun
        self._above: VersionsAbove | None = None  # of a site's run
        self._look_at = 0.0
        self._over_since: float | None = None  # time of the run's final version
        self._pool: Executor | None = None  # copies the best version
        self._keeping: list[Future[str | None]] = []
        self._problem = ""  # why no version can be read
        self._awaited = Awaited(reporter.say)

    def begin(self, run: OfRun) -> None:
        """Start to offer the versions of a run, and to note their results."""
        self._run, results = run, run.results
        self._tidy()  # after a server that was killed
        kept = None
        with contextlib.suppress(OSError, ValueError):
            if (self._folder / BEST).exists():
                kept = msgspec.convert(read_document(self._folder / SCORE), Best)
        if results.resume(kept, run.best) and (best := results.best) is not None:
            self._say(f"the best version so far, {best.version:,} ({best.metric} "
                      f"{best.value:.4g}), is in the folder of the server before; a better one "
                      "will be kept here")
        if run.above is not None:
            self._above = VersionsAbove(run.above, run.engine, self._folder, self.versions,
                                        self._answer_worker, self._info.run, self._clock.now,
                                        self._tell)

    def epoch_is_trained(self) -> None:
        """Note that the newest version, or the next, holds a whole epoch."""
        if self._run is not None:
            self._run.epochs.trained()

    def worker_found(self, epoch: int, values: Mapping[str, float]) -> None:
        """Note a worker's results of an epoch's version."""
        for one in (theirs.one for theirs in self._validates.values()):
            if one.epoch == epoch and self._run is not None:
                self._found(self._run, one.t, one.version, plain(values), one)
                break
        self._validates = {worker: theirs for worker, theirs in self._validates.items()
                           if theirs.one.epoch != epoch}
        self._tidy()

    def joined(self, worker: int) -> None:
        """Forget what this worker's process before asked, and validates: that one has ended."""
        self._questions.pop(worker, None)
        if self._validates.pop(worker, None) is not None:
            self._tidy()
        if self._above is not None:
            self._above.joined(worker)

    @property
    def some(self) -> bool:
        """True if a process evaluates versions."""
        return bool(self._readers or self._key or (self._run and self._run.epochs.wanted))

    @property
    def number(self) -> int:
        """Number of readers, without the server's own."""
        return sum(not reader.own for reader in self._readers.values())

    @property
    def ready(self) -> bool:
        """False while the server's own evaluator has not come yet."""
        return self._own or not self._key

    @property
    def own_work(self) -> str | None:
        """What the server's own evaluator works at; None: it waits for a version."""
        # its newest connection: the server may not know yet that an earlier one has broken
        reader = next((one for one in reversed(self._readers.values()) if one.own), None)
        if reader is None:  # its connection may have ended, where it hangs
            return "reading versions" if self._own else "the network and the test set"
        if reader.version not in (m.NONE, reader.reported):
            return f"the evaluation of version {reader.version}"
        return "the file model.keras" if reader.last and not reader.told else None

    @property
    def own_has_all(self) -> bool:
        """True if the server's own evaluator has reported on the final version, and saved it."""
        return any(reader.own and reader.told for reader in self._readers.values())

    def handlers(self) -> Handlers:
        """Return the handlers for readers' messages."""
        return Handlers({m.NextVersion: self.next, m.Evaluated: self.evaluated,
                         m.ReadVersion: self.versions.asked},
                        {m.AskVersion: self.asked, m.AskPast: self.asked_past})

    def asked(self, session: WorkerSession, ask: m.AskVersion) -> None:
        """Handle a worker's request, or announced request, for an epoch's version."""
        if not session.joined or session.plane is None:
            return
        if self._above is not None:
            self._above.asked(session.worker, ask)
            return
        if self._run is not None:
            self._run.epochs.want()
        open_ = self._questions.get(session.worker)
        if open_ is None or open_.ask != ask:
            self._questions[session.worker] = _Question(ask, self._clock.now())
        self._answer_workers()

    def next(self, peer: Peer, question: m.NextVersion) -> None:
        """Handle a reader's request for a version.

        The reader is challenged until it has proven that it knows the token or, without a token,
        that it belongs to the server's user.
        """
        if reason := other_protocol("the process that reads versions", question.protocol):
            self._answer(peer, m.Refused(reason))
            return
        if not self._proven(peer, question):
            return
        reader = self._readers.get(peer.identity)
        if reader is None:
            if len(self._readers) >= _MOST:
                self._forget_lost()
            if len(self._readers) >= _MOST:
                self._answer(peer, m.Refused(f"{_MOST} processes read this run's versions, which "
                                             "is the limit"))
                return
            own = bool(self._key) and hmac.compare_digest(question.key, self._key)
            reader = self._readers[peer.identity] = _Reader(peer.host, own=own)
            self._own = self._own or own
            if not own:
                self._log.tell(_CAUSE, f"a process at {reader.host} evaluates versions")
        reader.asks(question.epochs)
        if question.epochs and self._run is not None:
            self._run.epochs.want()
        after = question.after if question.run == self._info.run else m.NONE
        self._answer(peer, self._at(reader, after))

    def evaluated(self, peer: Peer, found: m.Evaluated) -> None:
        """Handle a reader's results for the version that it reads; `next` describes its proof."""
        if not self._proven(peer, found):
            return
        reader = self._readers.get(peer.identity)
        version, run = found.version, self._run
        problem = ""
        if found.run != self._info.run:
            problem = "it is of another run"
        elif run is not None and run.results.has(version):
            problem = f"version {version} was evaluated before"
        elif run is None or reader is None or reader.version != version:
            problem = f"version {version} was not given to this process, or is no longer kept"
        else:
            metrics = plain(found.metrics)
            self._found(run, reader.t, version, metrics, reader.of_epoch, reader.own)
            if reader.of_epoch is not None:
                run.tell(m.Measured(reader.of_epoch.epoch, {
                    name[:64]: value for name, value in validation(metrics).items()}))
        if reader is not None:
            reader.reports(version)
        self._answer(peer, m.Noted(problem))

    def asked_past(self, session: WorkerSession, ask: m.AskPast) -> None:
        """Handle a worker that requests the final version of an ended run, its fit's.

        Raises:
            WireError: its fit's run has not ended.
        """
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
        if problem:
            self._answer_worker(session.worker, m.Refused(
                f"worker {session.worker} begins with fit {session.passes}, which has ended, but "
                f"its final version is not available: {problem}"))
        else:
            self._answer_worker(session.worker, m.VersionAt(
                self._info.run, name=self.versions.word_for(name), last=True,
                fit=session.passes))

    def poll(self) -> None:
        """Forget lost readers, and answer workers."""
        now = self._clock.now()
        self._answer_workers()
        if self._above is not None:
            self._above.poll()
        if self._keeping and self._keeping[0].done() and (problem := self._keeping.pop(0).result()):
            self._say(problem)
        if now >= self._look_at:
            self._look_at = now + _LOOK
            self._forget_lost()
            self._replace_hanging()
        self._tell_of_results(now)

    def _forget_lost(self) -> None:
        """Forget readers whose connection has ended."""
        alive = m.encode(m.Alive())
        for identity, reader in list(self._readers.items()):
            if not self._socket.reaches(identity, alive):
                del self._readers[identity]
                self._tidy()
                if not (reader.told or reader.own):
                    self._log.tell(_CAUSE, f"lost the evaluator at {reader.host}")

    def _tell_of_results(self, now: float) -> None:
        """Print whom workers wait for that wait for an epoch's results."""
        work = self._work
        asked = [one for one in self._questions.values() if one.ask.validates]
        if work is None or work.data.validate != "wait" or not asked:
            return
        epoch, since = max(one.ask.epoch for one in asked), min(one.at for one in asked)
        hosts = {reader.host for reader in self._readers.values() if reader.epochs}
        validate = [worker for worker, theirs in self._validates.items()
                    if theirs.one.epoch == epoch]
        if hosts:
            self._awaited.wait(f"the evaluator at {' and '.join(sorted(hosts))}",
                               f"to evaluate epoch {epoch + 1}",
                               since + timeouts.EVALUATOR_HANGS - now,
                               "the workers continue without its results", now)
        elif validate and not work.ledger.over:  # else `Run` names it
            self._awaited.wait(validate, f"to validate epoch {epoch + 1}", None,
                               "the other workers continue", now)

    def _replace_hanging(self) -> None:
        """Let others validate what a worker that does not work was given, while it may train on."""
        if self._work is None or self._work.ledger.over:
            return  # the server gives such a worker up: see `Dispatcher.lose_hanging`
        for worker, theirs in list(self._validates.items()):
            if self._idle(worker, theirs.at) > timeouts.VALIDATOR_HANGS:
                del self._validates[worker]
                self._tidy()
                self._say(f"worker {worker}: no sign of work for {timeouts.VALIDATOR_HANGS:g} s in "
                          f"its validation of epoch {theirs.one.epoch + 1}; another worker may "
                          "validate that")

    def awaited(self, final: int) -> bool:
        """Return whether to wait for a reader after the run's end.

        The server waits while a reader evaluates the final version, or does not know yet that it
        was the last; not much longer than an evaluation may take. It waits a moment for readers of
        the run before that have not connected.
        """
        now = self._clock.now()
        if self._over_since is None:
            self._over_since = now
        self.poll()
        if (self.number < self._info.series.readers
                and now - self._over_since < timeouts.OTHERS_BACK):
            return True
        waiting = [reader.host for reader in self._readers.values()
                   if not (reader.told or reader.own)]
        left = self._over_since + timeouts.EVALUATOR_HANGS - now
        if waiting and left <= 0:
            self._say(f"version {final} was not evaluated within {timeouts.EVALUATOR_HANGS:g} s of "
                      "the run's end; ending without it")
        whom = f"the evaluator at {' and '.join(sorted(set(waiting)))}" if waiting else ""
        return self._awaited.wait(whom, f"to evaluate the final version, {final:,}", left,
                                  "this run ends without that", now)

    def dismiss(self) -> None:
        """Send the readers the answer that the server ends, and no other run follows."""
        for identity in self._readers:
            self._socket.reaches(identity, m.encode(
                m.VersionAt(self._info.run, last=True, ends=True)))

    def close(self) -> None:
        """Release all versions."""
        self.versions.close()
        if self._pool is not None:
            self._pool.shutdown()
        if self._run is not None:
            self._run.epochs.close()
        self._readers.clear()
        self._validates.clear()
        self._validated = None
        self._tidy()
        for path in list(self._folder.glob(PAST.format("*"))):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _proven(self, peer: Peer, request: Request) -> bool:
        """Return whether the peer has proven itself; otherwise challenge it."""
        return self._socket.challenges.admit(
            lambda _, challenge: self._answer(peer, challenge), peer.identity, request,
            self._socket.contact) is not None

    def _at(self, reader: _Reader, after: int) -> m.VersionAt:
        """Pin the newest version for this reader if it is newer than `after`; return it."""
        nothing = m.VersionAt(self._info.run, fit=self._info.series.fit)
        run = self._run
        if run is None or (saved := run.checkpoints.saved) is None:
            return nothing
        version, made, newest = saved.version, run.checkpoints.made, run.epochs.newest
        final = saved.last and saved == run.engine.newest
        if reader.epochs and not final:
            if newest is None or newest.version == after or not self._there(run, newest):
                return nothing
            version, made = newest.version, newest.t
        # the server's own saves what it has read before, too
        if version == after and not (final and reader.own and not reader.last):
            reader.has_newest(final)
            return structs.replace(nothing, last=final)
        name = NAME.format(version)
        try:
            if not (self._folder / name).exists():
                (self._folder / name).hardlink_to(self._folder / CHECKPOINT)
        except OSError as error:
            self._tell(f"its file cannot be linked ({error.strerror})")
            return nothing
        if reader.version != version:
            reader.is_given(version, self._clock.run() if made is None else made,
                            newest if newest and newest.version == version else None)
            self._tidy()
        self._tell("")
        reader.reads(last=final)
        return structs.replace(nothing, version=version, name=self.versions.word_for(name),
                               last=final,
                               epoch=reader.of_epoch.epoch if reader.of_epoch else m.NONE)

    def _there(self, run: OfRun, one: EpochVersion) -> bool:
        """Return whether this version's file is written; see `EpochVersions`."""
        there = run.epochs.there(one)
        self._tell(one.problem)
        return there

    # Workers that validate versions, or save validated ones.

    @property
    def _work(self) -> SharedWork | None:
        """The run's shared data, if it has begun and has some."""
        return None if self._run is None else self._run.engine.work

    def _answer_workers(self) -> None:
        for worker, question in list(self._questions.items()):
            answer = self._for_worker(worker, question)
            if answer is not None:
                del self._questions[worker]
                self._answer_worker(worker, answer)

    def closing(self, worker: int) -> Closing | None:
        """Return what a worker still does about an ended run's last epoch; None: nothing."""
        if self._above is not None:
            return self._above.closing(worker)
        work = self._work
        if work is None or not work.ledger.over:
            return None
        last, question = work.data.epochs - 1, self._questions.get(worker)
        validates = self._validates.get(worker)
        if validates is not None and validates.one.epoch == last:
            return "validates"
        return "waits" if question is not None and question.ask.epoch == last else None

    def _for_worker(self, worker: int, question: _Question) -> m.VersionAt | None:
        """Return the answer to a worker; None: it is not known yet."""
        ask, now = question.ask, self._clock.now()
        nothing = m.VersionAt(self._info.run, fit=self._info.series.fit)
        run = self._run
        if run is None or ask.epoch == m.NONE:
            return nothing
        one, work = run.epochs.newest, run.engine.work
        if ask.validates and work is not None and work.data.validate == "wait":
            if one is None or not self._comes(run.engine, one, question):
                return nothing
            if self._is_validated(run.engine, one, worker) or any(
                    reader.epochs for reader in self._readers.values()):
                return None
            if not (self._may_validate(run.engine, worker)
                    or question.lasts(timeouts.EPOCH_WHOLE, now)):
                return None
        elif ask.validates:
            epoch = self._clock.run() / (ask.epoch + 1)  # seconds, in the mean
            waits = ((one is None or one.epoch < ask.epoch) and run.engine.stop_reason is None
                     and not question.lasts(min(timeouts.EPOCH_WHOLE, _WAITED * epoch), now))
            if not self._may_validate(run.engine, worker):
                return nothing
            if waits:
                return None
            if one is None or self._is_validated(run.engine, one, worker):
                return nothing
        else:
            one = self._validated or one
        if one is None or one.problem:
            return nothing
        if not self._there(run, one):
            return nothing if one.problem else None
        if ask.validates:
            known = self._validates.get(worker)
            if known is None or known.one is not one:
                self._validates[worker] = _Validation(one, self._clock.now())
            self._tidy()
        return structs.replace(nothing, version=one.version, epoch=one.epoch,
                               name=self.versions.word_for(one.name))

    def _comes(self, engine: Engine, one: EpochVersion, question: _Question) -> bool:
        """Return whether a worker that waits for an epoch's results will still receive them.

        Args:
            one: the newest version of an epoch; a server that continues a run has none.
        """
        epoch = question.ask.epoch
        assert engine.work is not None
        measured = -1 if engine.measured is None else engine.measured.epoch
        ends = engine.stop_reason is not None and not engine.work.ledger.over
        hangs = (any(reader.epochs for reader in self._readers.values())
                 and question.lasts(timeouts.EVALUATOR_HANGS, self._clock.now()))
        return measured < epoch <= one.epoch and not (one.problem or ends or hangs)

    def _may_validate(self, engine: Engine, worker: int) -> bool:
        """Return whether this worker is one of the fastest, and no reader evaluates epochs."""
        return is_fast(engine, worker) and not any(
            reader.epochs for reader in self._readers.values())

    def _is_validated(self, engine: Engine, one: EpochVersion, worker: int) -> bool:
        """Return whether this version or a later one was validated, or another worker does it."""
        measured = engine.measured
        return (measured is not None and measured.epoch >= one.epoch) or any(
            other != worker and other in engine.active and theirs.one.epoch >= one.epoch
            for other, theirs in self._validates.items())

    # Results.

    def _found(self, run: OfRun, t: float, version: int, metrics: dict[str, float],
               of_epoch: EpochVersion | None, own: bool = False) -> None:
        """Handle the results of a version with a file; `of_epoch`: it is an epoch's."""
        self._validated = of_epoch or self._validated
        best = run.results.take(t, version, metrics)
        if best and run.results.best is not None:
            self._keep(run.results.best, metrics)
        run.take(t, version, metrics, best, own)

    def _keep(self, best: Best, metrics: dict[str, float]) -> None:
        beside = self._folder / f".{best.version}-{BEST}"
        with contextlib.suppress(OSError):  # reported when it cannot be kept
            beside.hardlink_to(self._folder / NAME.format(best.version))
        self._pool = self._pool or self._socket.on.scheduler.pool("wbsp-best")
        self._keeping.append(self._pool.submit(_keep, beside, {
            "version": best.version, "metric": best.metric, "value": best.value,
            "metrics": metrics}))

    def _tidy(self) -> None:
        """Remove files that are no longer read."""
        needed = {reader.version for reader in self._readers.values()}
        newest = None if self._run is None else self._run.epochs.newest
        validated = [theirs.one for theirs in self._validates.values()]
        needed.update(one.version for one in (newest, self._validated, *validated)
                      if one is not None)
        names = {NAME.format(version) for version in needed}
        names.update([] if self._above is None else self._above.kept)
        for path in [one for kind in (NAME, ABOVE) for one in self._folder.glob(kind.format("*"))]:
            if path.name not in names:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _tell(self, problem: str) -> None:
        """Print why no version can be read, once."""
        if problem and problem != self._problem:
            self._say(f"no version can be read: {problem}")
        self._problem = problem

    def _answer(self, peer: Peer, message: m.Message) -> None:
        self._socket.reaches(peer.identity, m.encode(message))


def _keep(beside: pathlib.Path, score: dict[str, Any]) -> str | None:
    """Rename a version's link to the best version of its folder.

    Runs in a thread, because the disk may be slow.

    Returns:
        The reason of a failure, in one line, or None.
    """
    try:
        beside.replace(beside.with_name(BEST))
        write_document(beside.with_name(SCORE), score)
    except OSError as error:
        return (f"version {score['version']} is the best so far, but cannot be kept as {BEST}: "
                f"{error.strerror}")
    return None
