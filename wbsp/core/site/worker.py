"""The work of a site as a worker of the server above, between two of its own versions.

A worker's compute thread trains, waits and adopts; a site does this work in the events of its own
server, without waiting. No sockets, threads or clocks: a real site and one in virtual time both
drive a `SiteWorker`, and differ in how a message travels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from wbsp.core.agent import Adopt, Agent, Command, Cut
from wbsp.core.engine import Engine
from wbsp.core.messages import Ack, Measured, Message, Reattached, Stop, Withdrawn, WorkPlace
from wbsp.core.messages import Work as Given
from wbsp.core.participant import Participant
from wbsp.core.site.work import SiteWork, SiteWorkState
from wbsp.core.work.sequence import AGAIN
from wbsp.core.work_ledger import WorkState
from wbsp.sync.base import UNFIT, WorkerRule
from wbsp.tensors.site_progress import SiteProgress

_LEAST = 1e-6  # seconds of a step: models divide by them


def objection(rule: WorkerRule, sync: str) -> str | None:
    """Return why no site can follow this rule of the server above, or None."""
    if rule.loses_steps:
        return (f"the server above runs {sync} with adopt=replace, which loses steps, and a site "
                "keeps all: choose adopt=rebase there")
    if rule.shared or rule.batch is not None or rule.micro_batches != 1:
        return (f"the server above runs {sync}, which assigns the examples of each step, and a "
                "site's step is a version: choose another synchronization model there")
    return None


@dataclass
class Work:
    """Work of a site's versions, each of which is a step; samples are those of its workers."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0

    def add(self, work: Work) -> None:
        self.steps += work.steps
        self.samples += work.samples
        self.seconds += work.seconds


class Lacks(NamedTuple):
    """The run above has ended without the site's last examples, `samples` in number."""

    samples: int


class SiteWorker:
    """A site's life in the run above: events in, commands out.

    After each event the driver carries out `commands`, in their order. Progress is cut, and a
    version adopted, here: the store is at hand, and changes between two versions of the site.

    events                        what the driver saw
    begin(engine, ...)            the site's own run begins, or is resumed
    admit(participant, ...)       the server above has admitted the site
    made(now)                     the site's run has a new version
    received(message, now)        a message of the server above, except a Model
    fetched(version, vector, now) the requested version is complete
    finish(now)                   the site's own run has ended
    go_on(now)                    time has passed, or another event was handled

    commands                      what the driver does
    Work                          counts a step of the site
    Cut                           pushes `progress.cut`, with this push
    Leave                         leaves the server above
    Lacks                         reports what the run above has ended without
    all others                    sends them

    Attributes:
        settled: this site has the last version of the run above, or has left that run.
        final: this site has the last version.
        commands: not carried out yet.
        participant: the site as a member of the run above; None: it is not admitted.
        first: W_0 from above, float32 [size]; None: it has not come, or the run had begun.
        fresh: no version from above is adopted.
        finishing: the site's own run has ended.
        left: no push follows.
        uncut: work that is in no cut yet.
    """

    def __init__(self, again: float = AGAIN, holds: int | None = None):
        """Start.

        Args:
            again: seconds after which an unanswered request for work is repeated.
            holds: version from above with which the site's run begins; None: it begins with the
                first that comes.
        """
        self.settled = self.final = self.finishing = self.left = False
        self.commands: deque[Command | Work | Lacks] = deque()
        self.participant: Participant | None = None
        self.first: np.ndarray | None = None
        self.fresh = True
        self.uncut = Work()
        self._again, self._holds = again, holds
        self._engine: Engine | None = None  # None: the site has not begun
        self._place: WorkPlace | None = None
        self._wanted: int | None = None
        self._early: list[tuple[Message, float]] = []  # received before the site has begun
        self._versions: dict[int, np.ndarray | None] = {}  # fetched
        self._unfit = False  # a cut since the last version was rejected because of its values
        self._due: deque[Command] = deque()
        self._untold = Work()  # the part of `uncut` that the agent does not know
        self._samples = self._pushes = 0  # the engine's `trained` and `accepted` of those counted
        self._version = 0  # the newest counted version
        self._since: float | None = None  # time at which the newest version was made

    @property
    def agent(self) -> Agent | None:
        return None if self.participant is None else self.participant.agent

    @property
    def progress(self) -> SiteProgress | None:
        """What this site's versions have added; None: without tensors."""
        return None if self._engine is None else self._engine.store.progress

    @property
    def work(self) -> SiteWork | None:
        """This site's part of the data that all workers of the run share, if they do."""
        work = None if self._engine is None else self._engine.work
        return work if isinstance(work, SiteWork) else None

    @property
    def waits(self) -> bool:
        """True while the site waits for the server above, as a worker's compute thread does."""
        agent, engine = self.agent, self._engine
        return (agent is not None and engine is not None and not self.settled
                and agent.version is not None and agent.waiting is not None and not self.fresh
                and engine.stop_reason is None and not self.finishing)

    @property
    def stopped(self) -> str | None:
        """Why the run above ends; None: it does not."""
        return None if self.agent is None else self.agent.stopped

    @property
    def idle(self) -> bool:
        """True if nothing waits for a version of the site."""
        return not self._due

    # The site's life.

    def begin(self, engine: Engine, uncut: Work | None = None, state: WorkState | None = None,
              beside: SiteWorkState | None = None) -> None:
        """Begin with the run of this engine, or resume it.

        Args:
            engine: of the site.
            uncut: of the process before.
            state, beside: of that process's shared data, if the data are shared.
        """
        self._engine = engine
        self._samples, self._pushes = engine.trained, engine.accepted
        self._version = engine.store.latest.version
        if uncut is not None:
            self._count(uncut)
        if state is not None:
            work = SiteWork(state.data, engine.model.rule, self._pauses, state, beside)
            engine.share_data(work)
            if self.progress is not None and self.progress.cut is None:  # its answer is known
                work.ledger.answered(True)
        self._share_data()
        early, self._early = self._early, []
        for message, now in early:
            self._hear(message, now)

    def admit(self, participant: Participant, place: WorkPlace | None, wanted: int | None) -> None:
        """Take part in the run above.

        Args:
            participant: of the site.
            place: in the data that all workers share, if they do.
            wanted: as in `SiteWork.begin`.
        """
        self.participant, self._place, self._wanted = participant, place, wanted
        self._share_data()

    def settle(self, final: bool = False) -> None:
        """Continue without the server above; `final`: with the last version of its run."""
        self.settled, self.final = True, self.final or final

    def rested(self, now: float) -> None:
        """Count the seconds of the next step from now on, because the site has waited."""
        self._since = now

    def take_back(self, kept: Work) -> None:
        """Turn the newest cut, which had this work, into progress: the server above lacks it."""
        if self.progress is not None:
            self.progress.take_back()
        if self.work is not None:
            self.work.ledger.take_back_cut()
        self._count(kept)

    def received(self, message: Message, now: float) -> None:
        self._hear(message, now)
        self._act(lambda one: one.received(message, now), now)

    def fetched(self, version: int, vector: np.ndarray | None, now: float) -> None:
        self._versions[version] = vector
        self._act(lambda one: one.fetched(version), now)

    def finish(self, now: float) -> None:
        """Note the end of the site's own run, after which it makes no step; repeatable."""
        engine = self._engine
        assert engine is not None, "a run has begun"
        if engine.store.latest.version > self._version:
            self.made(now)  # what was pending at the end
        self.finishing = True

    def go_on(self, now: float) -> None:
        self._carry_out(now)
        self._starve_if_dry(now)
        self._finish_if_due(now)
        self._ask_for_work(now)

    def _act(self, event: Callable[[Participant], list[Command]], now: float) -> None:
        """Give the participant an event, and carry out its commands."""
        assert self.participant is not None, "it was admitted"
        self._due += event(self.participant)
        self._carry_out(now)

    def _finish_if_due(self, now: float) -> None:
        """Finish the agent if it waits for no version."""
        agent = self.agent
        if agent is None or not self.finishing or self.left or self._due:
            return
        if agent.waiting is not None:
            return
        if self.fresh and self._untold.steps:  # it was stopped before it began
            self.commands.append(Lacks(self._untold.samples))
        elif self._untold.steps:
            self._tell_step(now)
            if self._due or agent.waiting is not None:
                return
        self.left = True
        self._act(Participant.finish, now)

    # The data that all workers of the run share.

    def _pauses(self) -> bool:
        """Return whether to give no work: before it is admitted, what it held may be others'."""
        return self.waits or self.participant is None

    def _share_data(self) -> None:
        engine, place = self._engine, self._place
        if engine is None or place is None:
            return
        if self.work is not None:  # resumed
            self.work.begin(place, True, None)
            return
        work = SiteWork(place.data, engine.model.rule, self._pauses)
        work.begin(place, False, self._wanted)
        engine.share_data(work)

    def _hear(self, message: Message, now: float) -> None:
        """Handle a message of the server above about these data."""
        if self._engine is None:
            self._early.append((message, now))
            return
        work = self.work
        if isinstance(message, Ack):
            self._unfit = self._unfit or message.reason in UNFIT
            if work is not None:
                work.ledger.answered(message.accepted, message.examples)
        elif work is not None and isinstance(
                message, Given | Withdrawn | Measured | Reattached | Stop):
            work.heard(message, now)

    def _ask_for_work(self, now: float) -> None:
        """Request more of them, if that is due."""
        work, agent, engine = self.work, self.agent, self._engine
        if (work is None or agent is None or engine is None or engine.stop_reason is not None
                or engine.done or self.finishing or self.settled):
            return
        question = work.question(agent.rule, self.waits, engine.present, agent.seq, now,
                                 self._again)
        if question is not None:
            self.commands.append(question)

    # Between two versions.

    def made(self, now: float) -> None:
        """Count a version that this site made, and follow the rule of the server above."""
        engine, agent = self._engine, self.agent
        assert engine is not None
        samples, self._samples = engine.trained - self._samples, engine.trained
        self._version = engine.store.latest.version
        seconds = _LEAST if self._since is None else max(now - self._since, _LEAST)
        self._since = now
        pushes, self._pushes = engine.accepted - self._pushes, engine.accepted
        if pushes:  # else only its number is new
            self._count(Work(1, samples, seconds))
        if agent is None or self.settled:
            return
        self._carry_out(now)
        if (self._untold.steps and agent.waiting is None and not self._due
                and not self.left and not self.fresh):
            self._tell_step(now)

    def _count(self, work: Work) -> None:
        for known in (self.uncut, self._untold):
            known.add(work)

    def _starve_if_dry(self, now: float) -> None:
        """Push this site's progress if the server above has no more examples for it now.

        Other sites may wait for this push, and no push of a worker follows that makes a version.
        """
        engine, agent, work = self._engine, self.agent, self.work
        if engine is None or agent is None or work is None or self.settled or self.finishing:
            return
        if work.dry and self._due and engine.store.accepted:
            engine.complete(now)  # the due request waits for a version, and no push makes one
            self._carry_out(now)
        if self.fresh:
            return
        if not work.dry:
            if agent.starving:
                agent.fed()
            return
        if self.waits or self._due:
            return
        engine.complete(now)
        if agent.waiting is not None or self._due:
            return
        if work.ledger.uncut.spans and agent.handed_over and not self._untold.steps:
            self._count(Work(1, 0, _LEAST))  # all of it was given up, and the push reports that
        if self._untold.steps:
            self._tell_step(now)
        if not (agent.starving or self._due) and agent.waiting is None:
            self._act(Participant.hand_over, now)

    def _tell_step(self, now: float) -> None:
        untold, self._untold = self._untold, Work()
        self.commands.append(untold)

        def step(one: Participant) -> list[Command]:
            one.step_begins()
            return one.step_done(untold.samples, untold.seconds, untold.steps)

        self._act(step, now)

    def _carry_out(self, now: float) -> None:
        """Execute the participant's commands; cut and adopt only while no update is pending."""
        engine = self._engine
        while self._due:
            command = self._due[0]
            if isinstance(command, Cut | Adopt) and engine is not None and engine.store.accepted:
                return
            self._due.popleft()
            match command:
                case Cut():
                    self.commands.append(self._take(command, now))
                case Adopt():
                    self._adopt(command.version, now)
                case _:
                    self.commands.append(command)

    def _take(self, cut: Cut, now: float) -> Cut:
        """Cut what the versions have added since the last cut, into `progress.cut`.

        Returns:
            The cut, which names its positions in the data that all workers share, if any. The site
            has counted the examples of pushes that it has rejected, too; the cut has none.
        """
        engine, progress, work = self._engine, self.progress, self.work
        assert engine is not None
        if work is not None:
            spans = work.cut()
            cut = cut._replace(push=cut.push._replace(
                spans=spans, samples=min(cut.push.samples, work.ledger.sent.count)))
        if progress is not None and (newest := engine.store.latest.vector) is not None:
            progress.take(newest)
        self.uncut = replace(self._untold)
        engine.log(now, "cut", seq=cut.push.seq, version=engine.store.latest.version,
                   steps=cut.push.steps, samples=cut.push.samples)
        return cut

    def _adopt(self, version: int, now: float) -> None:
        """Adopt the fetched version of the server above, with the uncut progress on top.

        The run's last version replaces what this site has.
        """
        engine, agent = self._engine, self.agent
        assert agent is not None, "it was admitted"
        vector = self._versions[version]
        again = agent.rule.push == "on_adopt" or agent.rule.adopt == "return"
        self._versions = {other: kept for other, kept in self._versions.items()
                          if other > version or (other == version and again)}
        begun_with, self._holds = self._holds, None
        if engine is None:
            self.first = vector
        elif begun_with != version:
            self._become(engine, vector, version, now, agent.finished)
        self.fresh = False
        if engine is not None and agent.finished:
            self.settle(final=True)

    def _become(self, engine: Engine, vector: np.ndarray | None, version: int, now: float,
                last: bool) -> None:
        progress, newest = self.progress, engine.store.latest.vector
        dropped = drop = self._unfit or last
        self._unfit = False
        if vector is not None and progress is not None and newest is not None:
            vector = progress.adopt(vector, newest, drop)
            dropped = progress.dropped
        if dropped and self.work is not None:
            self.work.ledger.dropped()
        engine.adopt(vector, version, now)
        self._version = engine.store.latest.version
