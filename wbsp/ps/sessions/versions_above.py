"""Versions of epochs at a site: the server above decides which worker of the run validates one.

A worker of a site asks its site, as below any server, and the site asks the server above, of which
it is one worker. So at most one of the site's workers validates an epoch's version, or none, if one
of another site does. The site reads the version's file from the server above, and sends it to
the worker.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, NamedTuple

from msgspec import structs

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.ps.config import Above
from wbsp.ps.sessions.versions import Versions
from wbsp.wire.messages import codec as m

# Of a worker, at the end of a run: it validates the last epoch, or waits for the results.
Closing = Literal["validates", "waits"]
# Of a file with a version of the server above, whose numbers are not this site's.
ABOVE = "above-{}.safetensors"
_FAST = 0.8  # a worker with this part of the most trained examples may validate


def is_fast(engine: Engine, worker: int) -> bool:
    """Return whether this worker is one of the fastest, so that it may validate."""
    members = engine.members
    most = max((members[other].samples for other in engine.active), default=0)
    return worker in members and members[worker].samples >= _FAST * most


class _Question(NamedTuple):
    """A worker's question, received `at` that time (the server's own)."""

    worker: int
    ask: m.AskVersion
    at: float


class VersionsAbove:
    """The versions of epochs that the workers of a site ask for; used by the event loop.

    Attributes:
        kept: names of the files in the run's folder that are needed.
    """

    def __init__(self, above: Above, engine: Engine, folder: pathlib.Path,
                 versions: Versions, answer: Callable[[int, m.Message], None],
                 run: str, now: Callable[[], float], tell: Callable[[str], None]):
        """Set up; the arguments are as in `Readers`. `tell`: prints why no version can be read."""
        self._tell = tell
        self._above, self._engine, self._folder = above, engine, folder
        self._versions, self._answer, self._run, self._now = versions, answer, run, now
        self._questions: dict[int, _Question] = {}  # worker -> its newest, not answered
        self._open: _Question | None = None  # the one that the server above has not answered
        self._found: tuple[_Question, m.VersionAt, Future[str | None] | None] | None = None
        self._validates: dict[int, int] = {}  # worker -> epoch of the version that it validates
        self._given: int | None = None  # epoch of the version that this site is to validate
        self._announced = False
        self.kept: list[str] = []

    def asked(self, worker: int, ask: m.AskVersion) -> None:
        """Handle a worker's request, or announced request, for an epoch's version."""
        if ask.epoch == m.NONE:
            if not self._announced and self._open is None:  # its answer is no other question's
                self._announced = True
                self._open = _Question(worker, ask, self._now())
                self._above.ask_version(ask)
            self._nothing(worker)
            return
        known = self._questions.get(worker)
        if known is None or known.ask != ask:
            self._questions[worker] = _Question(worker, ask, self._now())
        self.poll()

    def joined(self, worker: int) -> None:
        """As `Readers.joined`."""
        self._questions.pop(worker, None)
        self._validates.pop(worker, None)

    def poll(self) -> None:
        """Answer what can be answered."""
        measured = self._engine.measured
        newest = -1 if measured is None else measured.epoch
        self._validates = {worker: epoch for worker, epoch in self._validates.items()
                           if epoch > newest and worker in self._engine.active}
        at = self._above.version_at()
        if at is not None and self._open is not None:
            question, self._open = self._open, None
            if question.ask.validates and at.name:
                self._given = at.epoch
            if self._questions.get(question.worker) == question:
                self._take(question, at)
        if self._found is not None:
            self._give(*self._found)
        for question in list(self._questions.values()):
            self._look_at(question, newest)
        self._tell_of_none(newest)

    def _tell_of_none(self, newest: int) -> None:
        """Tell the server above that no worker of this site has results of the version that it was
        given, once none validates that, or asks for another one: they have left, or died, or its
        file cannot be read here. `newest`: epoch with results."""
        if self._given is None or (self._given > newest and (
                self._validates or self._found is not None
                or any(one.ask.validates for one in self._questions.values()))):
            return
        if self._given > newest:
            self._above.tell(m.Measured(self._given, {}))
        self._given = None

    def closing(self, worker: int) -> Closing | None:
        """Return what a worker still does about an ended run's last epoch; None: nothing."""
        work, question = self._engine.work, self._questions.get(worker)
        if work is None or not work.ledger.over:
            return None
        last = work.data.epochs - 1
        if self._validates.get(worker) == last:
            return "validates"
        return "waits" if question is not None and question.ask.epoch == last else None

    def _look_at(self, question: _Question, newest: int) -> None:
        """Ask the server above, or answer, if it is time; `newest`: epoch with results."""
        worker, ask, at = question
        if question == self._open or (self._found is not None and question == self._found[0]):
            return
        engine = self._engine
        work = engine.work
        if worker not in engine.active or work is None:
            del self._questions[worker]
            return
        if ask.validates:
            busy = any(epoch >= ask.epoch for other, epoch in self._validates.items()
                       if other != worker) or any(
                one is not None and one.ask.validates and one.ask.epoch >= ask.epoch
                for one in (self._open, None if self._found is None else self._found[0]))
            if work.data.validate == "wait":
                ends = engine.stop_reason is not None and not work.ledger.over
                if newest >= ask.epoch or ends:
                    self._nothing(worker)
                    return
                if busy or not (is_fast(self._engine, worker)
                                or self._now() - at >= timeouts.EPOCH_WHOLE):
                    return
            elif busy or not is_fast(self._engine, worker):
                self._nothing(worker)
                return
        if self._open is None and self._found is None:
            self._open = question
            self._above.ask_version(ask)

    def _take(self, question: _Question, at: m.VersionAt) -> None:
        """Handle the answer of the server above."""
        if not at.name:
            self._nothing(question.worker)
            return
        name, reading = ABOVE.format(at.version), None
        if name not in self.kept:
            self.kept = [*self.kept[-1:], name]  # one is validated, and one may be saved
            reading = self._above.read_version(at, self._folder / f".{name}")
        self._found = question, at, reading

    def _give(self, question: _Question, at: m.VersionAt,
              reading: Future[str | None] | None) -> None:
        """Give a worker the version that was found for it, once it can be read here."""
        name = ABOVE.format(at.version)
        if reading is not None:
            if not reading.done():
                return
            try:
                problem = reading.result()
                if problem is None:
                    (self._folder / f".{name}").replace(self._folder / name)
            except Exception as error:  # of the own disk, too
                problem = str(error) or repr(error)
            self._tell(problem or "")
            if problem is not None:
                self.kept.remove(name)
                self._found = None
                self._nothing(question.worker)
                return
            self._found = question, at, None
        self._found = None
        if self._questions.get(question.worker) != question:
            return  # the worker has left, or has asked another one since
        del self._questions[question.worker]
        if question.ask.validates:
            self._validates[question.worker] = at.epoch
        self._answer(question.worker, structs.replace(at, run=self._run,
                                                      name=self._versions.word_for(name)))

    def _nothing(self, worker: int) -> None:
        self._questions.pop(worker, None)
        self._answer(worker, m.VersionAt(self._run))
