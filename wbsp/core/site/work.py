"""A site's part of the run's shared data: given by the server above, and passed on to its workers.

    free above -> free here -> held by a worker -> uncut -> sent -> done above
                      ^______________|

A position is *uncut* when it is in an accepted push of a worker, and so in a version of the site,
but in no cut; it is *sent* when it is in the newest cut, until that is answered. A cut carries all
uncut positions, and none is taken while the one before is unanswered, or `RuleBroken` is raised. So
what the server above accepts is done there, and what it rejects is free there.

No sockets, threads or clocks: a real site and one in virtual time both keep these objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from wbsp.core.messages import (
    AskWork,
    Measured,
    Outgoing,
    Reattached,
    SharedData,
    Span,
    Spans,
    Stop,
    Withdrawn,
    Work,
    WorkHeld,
    WorkPlace,
)
from wbsp.core.rules import RuleBroken
from wbsp.core.shared_work import SharedWork
from wbsp.core.work.positions import Positions
from wbsp.core.work.sequence import Requests
from wbsp.core.work_ledger import NOWHERE, WorkLedger, WorkState
from wbsp.limits import Count, Offset, Position
from wbsp.sync.base import WorkerRule


@dataclass
class SiteWorkState:
    """The part of a site's state of work that is not in its ledger's `WorkState`.

    Attributes:
        epochs: complete ones of the run.
        uncut, sent: positions; the head of this file defines both words.
    """

    epochs: Count = 0
    uncut: Spans = field(default_factory=list)
    sent: Spans = field(default_factory=list)


class SiteLedger(WorkLedger):
    """The ledger of a site: it holds the positions that the server above has given to the site.

    Attributes:
        epochs: number of the run's complete epochs, as the server above has reported it.
        finished: all work of the run is done.
        above: positions of the run that were done when the newest cut was answered.
        uncut, sent: positions; the head of this file defines both words. A position is in at most
            one of `undone`, `uncut` and `sent`.
    """

    def __init__(self, data: SharedData, state: WorkState | None, beside: SiteWorkState):
        """Start with nothing given, or resume.

        Raises:
            ValueError: the state is invalid.
        """
        super().__init__(data, state or WorkState(data, [], {}))
        self.epochs, self.finished, self.above = beside.epochs, False, 0
        self.uncut, self.sent = Positions(beside.uncut), Positions(beside.sent)
        self._again: list[Span] = []  # parts of `sent` that were given again before the answer

    @property
    def epoch(self) -> int:
        return self.epochs

    @property
    def over(self) -> bool:
        return self.finished

    @property
    def done(self) -> int:
        return max(self.above, self.epochs * self.data.n) + self.uncut.count + self.sent.count

    @property
    def gives(self) -> bool:
        return bool(self.free.spans)

    def settle(self, worker: int, to: Offset, accepted: bool, finite: bool | None = None
               ) -> list[Span]:
        """Settle a worker's push; positions that are given up count as done, and join the cut."""
        pushed = self.pushed(worker, to) if accepted else []
        lost = super().settle(worker, to, accepted, finite)
        for span in [*pushed, *lost]:
            self.uncut.add(*span)
        return lost

    def resent(self, accepted: Iterable[Sequence[int]]) -> bool:
        spans = [(Position(start), Position(stop)) for start, stop in accepted]
        valid = super().resent(spans)
        for span in spans if valid else ():
            self.uncut.add(*span)
        return valid

    def begin(self, place: WorkPlace, resumed: bool) -> None:
        """Begin as a member of the server above; arguments as for `SiteWork.begin`."""
        self.data, self.epochs = place.data, place.epoch
        if resumed:
            self.keep(place.own)

    def hears(self, epochs: int) -> None:
        """Note how many epochs of the run are complete, at least."""
        self.epochs = max(self.epochs, epochs)

    def stop(self, early: bool) -> None:
        """Note that the run ends, with all its work done unless that is `early`."""
        self.finished = not early
        if self.finished:
            self.epochs = self.data.epochs

    def grant(self, start: Position, stop: Position) -> None:
        """Handle a range from the server above.

        The site may have a part of it: the server gave it to others meanwhile, and now again to
        this site. Or the server has rejected the newest cut, and its answer is later than this.
        """
        epochs = -(-stop // self.data.n)
        if epochs > self.data.epochs:  # of a resumed run
            self.data = self.data._replace(epochs=epochs)
        self._again += self.sent.within(start, stop)
        for span in self._news([(start, stop)]).spans:
            self.undone.add(*span)
            self.free.add(*span)

    def keep(self, own: Sequence[Span]) -> None:
        """Hold exactly these positions of the server above; the rest belongs to others."""
        for positions in (self.undone, self.free):
            for span in positions.without(own).spans:
                positions.remove(*span)
        self._own_undone()
        for span in own:
            self.grant(*span)

    def claimed(self, sent: bool) -> tuple[list[Span], list[Span]]:
        """Return the positions that the site claims from the server above, in two lists.

        The second list holds the positions of the newest cut, if it was `sent`; positions of a cut
        that has not left are in the first list.
        """
        own, cut = self.undone.with_all(self.uncut.spans), list(self.sent.spans)
        return ([*own.spans], cut) if sent else ([*own.with_all(cut).spans], [])

    def cut(self) -> tuple[Span, ...]:
        """Return the positions in the cut that is taken now.

        Raises:
            RuleBroken: the cut before is not answered.
        """
        if self.sent.count:
            raise RuleBroken(f"a site cuts while {self.sent.count} positions of its cut before are "
                             "not answered")
        self.sent, self.uncut, self._again = self.uncut, Positions(), []
        return tuple(self.sent.spans)

    def answered(self, accepted: bool, done: int = 0) -> None:
        """Take the answer to the newest cut; `done`: positions of the run that were done."""
        self.above = max(self.above, done)
        self.sent, again, self._again = Positions(), self._again, []
        for span in again if not accepted else ():
            self.grant(*span)

    def take_back_cut(self) -> None:
        """Note that the newest cut is progress again, because the server above lacks it."""
        self.uncut, self.sent = self.uncut.with_all(self.sent.spans), Positions()

    def dropped(self) -> None:
        """Free the uncut positions, because the site has dropped its progress."""
        spans, self.uncut = self.uncut.spans, Positions()
        for span in spans:
            self.undone.add(*span)
            self.free.add(*span)

    def _news(self, spans: Sequence[Span]) -> Positions:
        """Return the positions that this site does not have."""
        news = Positions().with_all(spans)
        for known in (self.undone, self.uncut, self.sent):
            news = news.without(known.common(spans))
        return news


class SiteWork(SharedWork):
    """The work of a site, for its engine in place of `SharedWork`.

    Args:
        paused: returns whether to give no work now, because the site waits.

    Attributes:
        requests: of this site, for work from the server above.
    """

    ledger: SiteLedger

    def __init__(self, data: SharedData, rule: WorkerRule, paused: Callable[[], bool],
                 state: WorkState | None = None, beside: SiteWorkState | None = None):
        """Start, or resume from a `state`.

        Raises:
            ValueError: the state is invalid.
        """
        ledger = SiteLedger(data, state, beside or SiteWorkState())
        super().__init__(data, rule, ledger=ledger)
        self._paused = paused
        self.requests = Requests()
        self._set: int | None = None  # epochs of the run, if workers' loops may have others
        self._fixed = True
        self._end = Offset(0)  # of this site's sequence above
        self._withdrawn = NOWHERE  # end of the part of the sequence that was withdrawn last
        self._worth = 0  # examples in the newest cut

    @property
    def ended(self) -> str | None:
        return None  # the end comes from above

    @property
    def dry(self) -> bool:
        """True if all given work is in versions, and the server above has none now."""
        return self.requests.none and not self.ledger.undone.spans

    def beside(self) -> SiteWorkState:
        """Return the part of the state that is not in the ledger's."""
        ledger = self.ledger
        return SiteWorkState(ledger.epochs, list(ledger.uncut.spans), list(ledger.sent.spans))

    def held(self, pushes: int, sent: bool) -> WorkHeld:
        """Return what this site claims from a server that it attaches to.

        Args:
            pushes: number of its next push.
            sent: the newest cut has left, if there is one.
        """
        own, cut = self.ledger.claimed(sent)
        return WorkHeld(self.ledger.data, self._end, [], True, own, cut, pushes)

    # The server above.

    def begin(self, place: WorkPlace, resumed: bool, wanted: int | None) -> None:
        """Begin as a member of the server above.

        Args:
            place: of this site.
            resumed: `place.own` is what this site still holds.
            wanted: epochs of the first worker's loop; None: not known.
        """
        self._set = None if wanted == place.data.epochs else place.data.epochs
        self._end, self._withdrawn = place.at, NOWHERE
        self.ledger.begin(place, resumed)

    def heard(self, message: Work | Withdrawn | Measured | Reattached | Stop, now: float) -> None:
        """Handle a message of the server above."""
        ledger = self.ledger
        match message:
            case Work(at, start, stop, epoch) if at == self._end:
                self.requests.answered(start == stop, now)
                self._end = Offset(self._end + stop - start)
                if start < stop and at >= self._withdrawn:
                    ledger.grant(start, stop)
                ledger.hears(epoch)
            case Measured(epoch):  # its epoch is complete; perhaps no work has said so yet
                ledger.hears(epoch + 1)
            case Withdrawn(at) if at > self._withdrawn:
                self._withdrawn = at
                ledger.keep([])
            case Reattached():
                self.requests.forget()
                if message.joined:
                    self._withdrawn = NOWHERE
                    ledger.keep(message.own)
                    ledger.hears(message.epochs)
            case Stop():
                ledger.stop(message.early)

    def question(self, above: WorkerRule, waits: bool, workers: int, pushes: int, now: float,
                 again: float = math.inf) -> AskWork | None:
        """Return the request for more work that is due now, new or repeated, or None.

        Where the server above lets no worker wait, this site asks ahead, so that its workers do not
        stand for a round trip. Elsewhere it holds about the work of one push: more may be what
        another site needs, for whose push this one waits.

        Args:
            above: rule of the server above.
            waits: this site waits for that server.
            workers: number of the site's active workers.
            pushes: number of the site's next push.
            now: seconds.
            again: seconds after which an unanswered request is repeated.
        """
        requests, free, ahead = self.requests, self.ledger.free.count, 0
        least = self.data.batch * workers
        if above.wait == "never":
            left, speed = free - least, self._sizes.total
            low = left <= 0 or requests.low(left, speed)
            ahead = requests.ahead(left, speed)
        else:
            least = max(least, self._worth)
            low = (bool(self._due) and not free) or (waits and free < least)
        if not requests.due(bool(workers) and low, now, again):
            return None
        return AskWork(self._end, pushes, least, ahead)

    def cut(self) -> tuple[Span, ...]:
        """Return the positions in the cut that is taken now."""
        spans = self.ledger.cut()
        examples = self.ledger.sent.count
        self._worth = -(-examples // self.data.batch) * self.data.batch
        return spans

    # The site's workers.

    def open(self, worker: int, data: SharedData, first_epoch: int, epochs: int | None
             ) -> WorkPlace:
        return super().open(worker, data, first_epoch, self._set if epochs is None else epochs)

    def feed(self, now: float) -> list[Outgoing]:
        return [] if self._paused() else super().feed(now)

    @property
    def _nothing(self) -> bool:
        return self.requests.none and super()._nothing
