"""Assignment of the run's shared data to workers. No I/O, clocks or tensors.

Under rules where workers never wait for each other, a worker requests work ahead, and is given a
part of the rest in proportion to its speed, or more where that would not last for a round trip.
Under all other rules a worker that waits for a version must not hold work that another worker, for
whose push it waits, could do. There a worker is given the work of one push when it is granted a
version; earlier requests are answered then. It may still hold more than its push has trained, for
example because batches were larger before the server was restarted. The rest is taken back once
another worker needs it. A model may set the number of examples in a batch, but not which examples.

A site is a worker here, which passes its work on to workers of its own. It reports how many
examples keep these busy, and a `Withdrawn` names what the server takes back. Its ranges may reach
into later epochs; the site's own ledger ends each of its workers' ranges at the end of an epoch.
"""

from __future__ import annotations

import math

from wbsp.core.messages import (
    Outgoing,
    Range,
    SharedData,
    Span,
    Withdrawn,
    Work,
    WorkHeld,
    WorkPlace,
    spans_of,
)
from wbsp.core.work.positions import Positions
from wbsp.core.work_ledger import WorkLedger, WorkState
from wbsp.limits import Offset, Position
from wbsp.sync.base import UNFIT, Push, WorkerRule
from wbsp.sync.meter import averaged

_AGREED = "n", "batch", "seed", "order", "validate"
_MOST = 5.0  # seconds


class GuidedSizes:
    """Sizes of the workers' parts, by their speeds in examples a second of wall time.

    C. Polychronopoulos and D. Kuck, "Guided Self-Scheduling", IEEE Trans. Computers 36(12), 1987:
    each is given a part of the rest, so that all end together without knowing each other's times.
    Here a worker's part is half its share of the total speed, in whole batches, and at most some
    seconds of work, so that little is repeated when a worker is lost.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # worker -> time at which it began its present work
        self._speed: dict[int, float] = {}
        self._all = 0.0  # sum of `_speed`, kept because adding up would cost O(N)

    def begins(self, worker: int, now: float) -> None:
        """Note that an idle worker has work from now on."""
        self._since[worker] = now

    def trained(self, worker: int, samples: int, now: float) -> None:
        """Note that a worker has pushed `samples` examples."""
        seconds = now - self._since.get(worker, now)
        self._since[worker] = now
        if seconds > 0 and samples:
            speed = self._speed.get(worker)
            mean = averaged(speed, samples / seconds)
            self._all += mean - (speed or 0.0)
            self._speed[worker] = mean

    def left(self, worker: int) -> None:
        """Note that a worker has stopped training."""
        self._since.pop(worker, None)
        self._all -= self._speed.pop(worker, 0.0)
        if not self._speed:
            self._all = 0.0

    @property
    def total(self) -> float:
        """The sum of all speeds."""
        return self._all

    def share(self, worker: int, workers: int) -> float:
        """Return a worker's part of the total speed; an equal one of `workers` if not known."""
        speed = self._speed.get(worker)
        return 1 / max(1, workers) if speed is None else speed / self._all

    def size(self, worker: int, left: int, batch: int) -> int:
        """Return the number of examples for this worker, of `left` in the epoch."""
        speed = self._speed.get(worker)
        if speed is None:
            return batch  # its speed is not known
        share = speed / self._all
        return max(1, int(min(left * share / 2, speed * _MOST) / batch)) * batch


def is_finite(push: Push, accepted: bool, reason: str | None) -> bool | None:
    """Return whether an answered push shows that its worker is sound; None: it shows nothing.

    A worker that has dropped all that it had trained, because its model was not finite, pushes 0.
    """
    if reason in UNFIT:
        return False
    return True if push.norm2 or (accepted and push.norm2 is None) else None


class SharedWork:
    """A work ledger, and the workers that request work from it.

    Attributes:
        ledger: the positions that are free, held and done.
        of_sites: this server knows of a site that takes part, or did.
    """

    def __init__(self, data: SharedData, rule: WorkerRule, state: WorkState | None = None,
                 ledger: WorkLedger | None = None):
        """Start, or resume from `state`; `ledger`: of a site.

        Raises:
            ValueError: the state is invalid.
        """
        self.ledger = WorkLedger(data, state) if ledger is None else ledger
        self.of_sites = False
        self._rule = rule
        self._sizes = GuidedSizes()
        self._able: set[int] = set()  # granted a version, and no push since for which it waits
        self._asked: dict[int, Offset] = {}  # worker that requests work -> end of its sequence
        # Subsets of `_asked` in the order of requests, so that an event does not cost O(N).
        self._due: dict[int, None] = {}  # workers in `_able`
        self._untold: dict[int, None] = {}  # workers without an answer that no work is free
        self._hoards: dict[int, None] = {}  # workers that wait for a version, and hold work
        self._silent: set[int] = set()  # not heard of for a while
        self._batches: dict[int, int] = {}  # worker -> examples of a step, if the model sets them
        self._least: dict[int, int] = {}  # site -> examples that keep its workers busy
        self._ahead: dict[int, int] = {}  # worker that requests work -> as in `AskWork`
        self._fixed = False  # this server knows the number of epochs from a worker

    @property
    def data(self) -> SharedData:
        return self.ledger.data

    @property
    def ended(self) -> str | None:
        """Why no work will follow, in one line; None: more will."""
        if not self.ledger.over:
            return None
        epochs = self.data.epochs
        given_up = self.ledger.given_up
        return ("the epoch is trained" if epochs == 1 else f"all {epochs} epochs are trained") + (
            f", but for {given_up:,} examples that were given up" if given_up else "")

    def disagrees(self, data: SharedData) -> str | None:
        """Return how a worker's data differ from the run's, apart from epochs; None: they do not.
        """
        for name in _AGREED:
            there, here = getattr(data, name), getattr(self.data, name)
            if there != here:
                return f"its {name} is {there}, and the run's {here}"
        return None

    def open(self, worker: int, data: SharedData, first_epoch: int, epochs: int | None
             ) -> WorkPlace:
        """Admit a process as `worker`.

        Args:
            worker: index of the worker.
            data: its data.
            first_epoch: epochs that its loop has completed.
            epochs: as the server sets them, or None.

        Raises:
            ValueError: the data do not fit the run; one line.
        """
        ledger, me = self.ledger, f"worker {worker}"
        if reason := self.disagrees(data):
            raise ValueError(f"{me} has other data than the run: {reason}; give all the same")
        if epochs is None and data.epochs != self.data.epochs:
            if self._fixed or data.epochs < self.data.epochs:
                raise ValueError(f"{me} trains epochs={data.epochs}, and the run has "
                                 f"{self.data.epochs}: give each worker the same")
            ledger.extend(data.epochs)  # of a resumed run
        left = self.data.epochs - ledger.epoch
        if data.epochs - first_epoch < left:
            raise ValueError(f"{me} would end after {data.epochs - first_epoch} more epochs, and "
                             f"the run has {left} left of {self.data.epochs}: give it epochs="
                             f"{self.data.epochs}")
        self._fixed = True
        self.left(worker)
        return WorkPlace(self.data, ledger.open(worker), ledger.epoch)

    def claim(self, worker: int, held: WorkHeld, left: bool, waits: bool, due: int) -> list[Span]:
        """Readmit a worker that continues with the work that it holds.

        Args:
            worker: index of the worker.
            held: its work.
            left: it has finished.
            waits: it waits for a version.
            due: number of its next push, as this server knows it.

        Returns:
            The positions that a site still holds.

        Raises:
            ValueError: no worker can hold this work.
        """
        own: list[Span] = []
        if held.site:
            own = self.claim_all(worker, held, held.answered, due)
        else:
            self.ledger.claim(worker, held.answered, held.held)
        self._forget(worker)
        self._able.discard(worker)
        if left:
            self.ledger.lost(worker)
        elif waits:
            self._keeps(worker)
        else:
            self.granted(worker)
        return own

    def claim_all(self, worker: int, held: WorkHeld, end: Offset, due: int) -> list[Span]:
        """Give a site the free positions of its work; return them.

        Args:
            worker: index of the site.
            held: its work.
            end: of its sequence.
            due: as in `claim`.

        Raises:
            ValueError: no site can hold this work.
        """
        spans = Positions(held.own)
        if due < held.pushes:  # its newest push is not decided
            spans = spans.with_all(held.sent)
        self.of_sites = True
        self._least.setdefault(worker, self.data.batch)
        return self.ledger.claim_all(worker, end, spans.spans)

    def left(self, worker: int) -> None:
        """Handle a worker that has left or was lost."""
        self.ledger.lost(worker)
        self._able.discard(worker)
        self._sizes.left(worker)
        self._least.pop(worker, None)
        self._forget(worker)

    def directed(self, worker: int, batch: int) -> None:
        """Set the examples of the steps that a worker begins from now on."""
        self._batches[worker] = batch

    def granted(self, worker: int) -> None:
        """Note that a worker may fetch a version, and train."""
        self._able.add(worker)
        self._hoards.pop(worker, None)
        if worker in self._asked:
            self._due[worker] = None

    def _waits(self, worker: int) -> None:
        """Note that a worker may not train before it is granted a version."""
        self._able.discard(worker)
        self._due.pop(worker, None)

    def _keeps(self, worker: int) -> None:
        """Note that a worker waits for a version, with what it still holds."""
        if self.ledger.held(worker):
            self._hoards[worker] = None

    def _sends(self, worker: int) -> None:
        """Note that a push of this worker is in flight or will be.

        It is given no work before that arrives, because it may then wait for a version.
        """
        if self._rule.wait != "never":
            self._waits(worker)

    def owns(self, push: Push) -> bool:
        """Return whether its worker owned all examples of this push.

        Raises:
            ValueError: no worker can have made the push.
        """
        if push.spans is not None:
            return self.ledger.owns_all(push.worker, spans_of(push))
        if push.to is None:
            raise ValueError(f"worker {push.worker} pushed with other data than the run's")
        if push.dropped is not None and push.dropped > push.to:
            raise ValueError(f"worker {push.worker} came to {push.to} in its work, and dropped all "
                             f"up to {push.dropped}")
        places = push.to if push.dropped is None else push.dropped, push.to
        return all(self.ledger.owns(push.worker, Offset(place)) for place in places)

    def examples(self, push: Push) -> int:
        """Return the number of examples in a push that `owns` was asked about."""
        if push.spans is not None:
            return sum(stop - start for start, stop in push.spans)
        return self.ledger.examples(push.worker, None if push.dropped is None else Offset(
            push.dropped), Offset(push.to or 0))

    def pushed(self, push: Push, accepted: bool, finite: bool | None, waits: bool, now: float
               ) -> tuple[list[Span], bool]:
        """Settle an answered push.

        Args:
            push: its metadata.
            accepted: the decision.
            finite: whether it shows that its examples are sound (True), or that they or its worker
                are not (False); None: it shows nothing.
            waits: its worker may not train before it is granted a version.
            now: seconds.

        Returns:
            The examples that are given up now, and whether the push had examples, none of which
            were in another push of its worker since that has pushed something finite.
        """
        worker = push.worker
        (self._waits if waits else self.granted)(worker)
        self._sizes.trained(worker, push.samples, now)
        if push.spans is not None:
            spans = spans_of(push)
            new = bool(spans) and not self.ledger.doubts(worker, spans)
            lost = self.ledger.settle_all(worker, spans, accepted, finite)
        else:
            assert push.to is not None, "it says how far it has come: `owns`"
            to = Offset(push.to)
            before: list[Span] = []
            if push.dropped is not None:
                before = self.ledger.settle(worker, Offset(push.dropped), accepted=False)
            spans = self.ledger.pushed(worker, to)
            new = bool(spans) and not self.ledger.doubts(worker, spans)
            lost = before + self.ledger.settle(worker, to, accepted, finite)
        if waits:
            self._keeps(worker)
        return lost, new

    def ask(self, worker: int, have: Offset, sends: bool, now: float, least: int = 0,
            ahead: int = 0) -> list[Outgoing]:
        """Handle a worker's request for work behind offset `have` of its sequence.

        Args:
            worker: index of the worker.
            have: end of its sequence, as it knows it.
            sends: a push of the worker has not arrived yet.
            now: seconds.
            least, ahead: as in `AskWork`.

        Raises:
            ValueError: no worker can be at `have`.
        """
        if (known := self.ledger.known(worker, have)) is not None:
            return [self._work(worker, known)]
        if not self.ledger.gives_from(worker, have):
            return []  # asked long ago, and answered
        self._asked[worker], self._ahead[worker] = have, ahead
        if least:
            self.of_sites = True
            self._least[worker] = least
        self._untold[worker] = None
        if worker in self._able:
            self._due[worker] = None
        if sends:
            self._sends(worker)
        return self.feed(now)

    def feed(self, now: float) -> list[Outgoing]:
        """Give free work to the workers that have requested it and are able to train."""
        told: list[Outgoing] = []
        others: dict[int, None] = {}  # other workers try these: they were not finite on them
        while self._due:
            worker = next(iter(self._due))
            idle = not self.ledger.held(worker)
            given = self.ledger.give(worker, self._size(worker), across=worker in self._least,
                                     others=self._able)
            if given is None:
                if self.ledger.gives:
                    others[worker] = self._due.pop(worker)
                    continue
                if self._hoards:
                    holder, _ = self._hoards.popitem()
                elif owners := self._owners() - {worker}:
                    holder = max(owners)
                else:
                    break
                told += self._take_back(holder)
                continue
            if idle:
                self._sizes.begins(worker, now)
            self._forget(worker)
            told.append(self._work(worker, given))
        if others:
            self._due = others | self._due
        if self._nothing:
            for worker in self._untold:
                if self.ledger.held(worker):  # the others may wait for the work that it holds
                    self._sends(worker)
                told.append(Outgoing(worker, Work(
                    self._asked[worker], Position(0), Position(0), self.ledger.epoch)))
            self._untold.clear()
        return told

    def silent(self, workers: set[int], now: float) -> tuple[list[int], list[Outgoing]]:
        """Note which workers have not been heard of for a while.

        Others that have nothing else to train are given what these hold.

        Returns:
            The workers from which work was taken, and the messages.
        """
        self._silent = workers
        before = self._owners()
        told = self.feed(now) if before else []
        return sorted(before - self._owners()) if told else [], told

    def _owners(self) -> set[int]:
        """Return the silent workers whose work others can be given."""
        return {worker for worker in self._silent if self.ledger.owns_some(worker)}

    @property
    def _nothing(self) -> bool:
        """True if no work is free now; workers that request work receive that answer."""
        return not self.ledger.gives

    def _take_back(self, worker: int) -> list[Outgoing]:
        if worker not in self._least:
            self.ledger.take_back(worker)
            return []
        self.ledger.withdraw(worker)
        return [Outgoing(worker, Withdrawn(self.ledger.end(worker)))]

    def _forget(self, worker: int) -> None:
        """Remove a worker's request, and its entry among workers that hold work and wait."""
        for listed in (self._asked, self._ahead, self._due, self._untold, self._hoards):
            listed.pop(worker, None)

    def _size(self, worker: int) -> int:
        batch, rule = self._batches.get(worker, self.data.batch), self._rule
        least = self._least.get(worker, 0)
        if rule.wait == "never":
            return max(self._sizes.size(worker, self.ledger.left(), batch),
                       self._lasting(worker, batch))
        if least:
            return least
        if rule.push == "every_step":
            return batch * max(1, rule.every - self.ledger.steps(worker, batch))
        return batch  # the rest of the push is not known

    def _lasting(self, worker: int, batch: int) -> int:
        """Return how many examples the worker needs until an answer to its next request arrives.

        They and what it holds are at most its share of the rest, so that all end together.
        """
        wanted = max(self._least.get(worker, 0), self._ahead.get(worker, 0))
        if not wanted:
            return 0
        share = self._sizes.share(worker, len(self._able))
        fair = share * self.ledger.rest() - self.ledger.held(worker)
        return math.ceil(min(wanted, fair) / batch) * batch

    def _work(self, worker: int, given: Range) -> Outgoing:
        return Outgoing(worker, Work(*given, self.ledger.epoch))
