"""The work of a site as a worker of the server above, between two of its own versions.

A worker's compute thread trains, waits and adopts; a site does this work in the events of its own
server, without waiting. No sockets, threads or clocks: a real site and one in virtual time both are
a `SiteWorker`, and differ in how a message travels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from wbsp.core.agent import Adopt, Agent, Command, Cut, Leave
from wbsp.core.engine import Engine
from wbsp.core.messages import Ack, Message, Reattached, Stop, Withdrawn, WorkPlace
from wbsp.core.messages import Work as Given
from wbsp.core.participant import Participant
from wbsp.core.site.work import SiteWork
from wbsp.core.work.sequence import AGAIN
from wbsp.sync.base import WorkerRule
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


class SiteWorker:
    """A site's steps, and the commands of its participant in their order.

    A subclass executes the commands. It calls `_made` for each version of the site, `_carry_out`
    after each message from above, and `_finish_if_due` after both.

    Attributes:
        settled: this site has the last version of the run above, or has left that run.
    """

    _again = AGAIN  # seconds after which an unanswered request for work is repeated

    def __init__(self) -> None:
        self.settled = False
        self._engine: Engine | None = None  # None: the site has not begun
        self._due: deque[Command] = deque()
        self._uncut = Work()  # in no cut
        self._untold = Work()  # the part of it that the agent does not know
        self._samples = self._pushes = 0  # the engine's `trained` and `accepted` of those counted
        self._version = 0  # the newest counted version
        self._since: float | None = None  # time at which the newest version was made
        self._fresh = True  # this process has adopted no version from above
        self._finishing = self._told_finish = False

    # A real site and one in virtual time differ in these.

    @property
    def _member(self) -> Participant | None:
        """The site's life there, once the server above has admitted it."""
        raise NotImplementedError

    def _act(self, event: Callable[[Participant], list[Command]]) -> None:
        """Give the participant an event, and queue its commands."""
        assert self._member is not None, "it was admitted"
        self._due += event(self._member)

    def _request(self, command: Command) -> None:
        """Send a command that concerns only the network."""
        raise NotImplementedError

    def _adopt(self, version: int, now: float) -> None:
        """Adopt the fetched version of the server above."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Leave the server above."""
        raise NotImplementedError

    def _lacks(self, work: Work) -> None:
        """Handle the end of a run above that has ended without this work."""

    @property
    def _agent(self) -> Agent | None:
        return None if self._member is None else self._member.agent

    @property
    def _progress(self) -> SiteProgress | None:
        """What this site's versions have added; None: without tensors."""
        return None if self._engine is None else self._engine.store.progress

    @property
    def _work(self) -> SiteWork | None:
        """This site's part of the data that all workers of the run share, if they do."""
        work = None if self._engine is None else self._engine.work
        return work if isinstance(work, SiteWork) else None

    # The site's life.

    @property
    def waits(self) -> bool:
        """True while the site waits for the server above, as a worker's compute thread does."""
        agent, engine = self._agent, self._engine
        return (agent is not None and engine is not None and not self.settled
                and agent.version is not None and agent.waiting is not None and not self._fresh
                and engine.stop_reason is None and not self._finishing)

    @property
    def stopped(self) -> str | None:
        """Why the run above ends; None: it does not."""
        return None if self._agent is None else self._agent.stopped

    def _finish(self, now: float) -> None:
        """Note the end of the site's own run, after which it makes no step."""
        engine = self._engine
        assert engine is not None, "a run has begun"
        if engine.store.latest.version > self._version:
            self._made(now)  # what was pending at the end
        self._finishing = True

    def _finish_if_due(self, now: float) -> None:
        """Finish the agent if it waits for no version."""
        agent = self._agent
        if agent is None or not self._finishing or self._told_finish or self._due:
            return
        if agent.waiting is not None:
            return
        if self._fresh and self._untold.steps:  # it was stopped before it began
            self._lacks(self._untold)
        elif self._untold.steps:
            self._tell_step(now)
            if self._due or agent.waiting is not None:
                return
        self._told_finish = True
        self._act(Participant.finish)
        self._carry_out(now)

    # The data that all workers of the run share.

    def _begin_work(self, engine: Engine, place: WorkPlace, wanted: int | None) -> None:
        """Begin with these data; `wanted`: as in `SiteWork.begin`."""
        work = SiteWork(place.data, engine.model.rule, lambda: self.waits)
        work.begin(place, False, wanted)
        engine.share_data(work)

    def _heard(self, message: Message, now: float) -> None:
        """Handle what the server above says about these data."""
        if (work := self._work) is None:
            return
        if isinstance(message, Ack):
            work.ledger.answered(message.accepted)
        elif isinstance(message, Given | Withdrawn | Reattached | Stop):
            work.heard(message, now)

    def _ask_for_work(self, now: float) -> None:
        """Request more of them, if that is due."""
        work, agent, engine = self._work, self._agent, self._engine
        if (work is None or agent is None or engine is None or engine.stop_reason is not None
                or engine.done or self._finishing or self.settled):
            return
        question = work.question(agent.rule, self.waits, engine.present, agent.seq, now,
                                 self._again)
        if question is not None:
            self._request(question)

    # Between two versions.

    def _made(self, now: float) -> None:
        """Count a version that this site made, and follow the rule of the server above."""
        engine, agent = self._engine, self._agent
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
                and not self._told_finish and not self._fresh):
            self._tell_step(now)

    def _count(self, work: Work) -> None:
        for known in (self._uncut, self._untold):
            known.add(work)

    def _starve_if_dry(self, now: float) -> None:
        """Push what this site has trained if the server above has no more examples for it now.

        Others may wait for that; and no push of a worker follows that makes a version.
        """
        engine, agent, work = self._engine, self._agent, self._work
        if engine is None or agent is None or work is None or self.settled or self._finishing:
            return
        if work.dry and self._due and engine.store.accepted:
            engine.complete(now)  # what is due waits for a version, and no push makes it
            self._carry_out(now)
        if self._fresh:
            return
        if not work.dry:
            if agent.starving:
                self._act(_feed)
            return
        if self.waits or self._due:
            return
        engine.complete(now)
        if agent.waiting is not None or self._due:
            return
        if work.ledger.uncut.spans and agent.handed_over and not self._untold.steps:
            self._count(Work(1, 0, _LEAST))  # all of it was given up, and the push says so
        if self._untold.steps:
            self._tell_step(now)
        if not (agent.starving or self._due) and agent.waiting is None:
            self._act(Participant.hand_over)
            self._carry_out(now)

    def _tell_step(self, now: float) -> None:
        untold, self._untold = self._untold, Work()

        def step(one: Participant) -> list[Command]:
            one.step_begins()
            return one.step_done(untold.samples, untold.seconds, untold.steps)

        self._act(step)
        self._carry_out(now)

    def _carry_out(self, now: float) -> None:
        """Execute the commands; cut and adopt only while no update is pending."""
        engine = self._engine
        while self._due:
            command = self._due[0]
            if isinstance(command, Cut | Adopt) and engine is not None and engine.store.accepted:
                return
            self._due.popleft()
            match command:
                case Cut():
                    self._take(self._with_spans(command, now), now)
                case Adopt():
                    self._adopt(command.version, now)
                case Leave():
                    self._leave()
                case _:
                    self._request(command)

    def _with_spans(self, cut: Cut, now: float) -> Cut:
        """Return the cut, which names its positions in the data that all workers share, if any.

        The site has counted the examples of pushes that it has rejected, too; the cut has none.
        """
        work = self._work
        if work is None:
            return cut
        spans = work.cut()
        return cut._replace(push=cut.push._replace(
            spans=spans, samples=min(cut.push.samples, work.ledger.sent.count)))

    def _take(self, cut: Cut, now: float) -> None:
        """Cut what the versions have added since the last cut, into `_progress.cut`."""
        engine, progress = self._engine, self._progress
        assert engine is not None
        if progress is not None and (newest := engine.store.latest.vector) is not None:
            progress.take(newest)
        self._uncut = replace(self._untold)
        engine.log(now, "cut", seq=cut.push.seq, version=engine.store.latest.version,
                   steps=cut.push.steps, samples=cut.push.samples)

    def _become(self, vector: np.ndarray | None, version: int, now: float, drop: bool) -> None:
        """Make a version of `version` from above, float32 [size], with the uncut progress on top.

        Args:
            vector: that version; None: without tensors.
            version: its number above.
            now: seconds.
            drop: as in `SiteProgress.adopt`. The run's last version replaces what this site has.
        """
        engine, progress, agent = self._engine, self._progress, self._agent
        assert engine is not None and agent is not None
        dropped = drop = drop or agent.finished
        newest = engine.store.latest.vector
        if vector is not None and progress is not None and newest is not None:
            vector = progress.adopt(vector, newest, drop)
            dropped = progress.dropped
        if dropped and self._work is not None:
            self._work.ledger.dropped()
        engine.adopt(vector, version, now)
        self._version = engine.store.latest.version


def _feed(one: Participant) -> list[Command]:
    one.agent.fed()
    return []
