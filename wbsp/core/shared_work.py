"""The run's shared data at work: who is given what of it, and when. No I/O, clocks or tensors.

Under a rule by which workers never wait for each other, a worker asks ahead, and is given a part of
what is left by its speed. Under all others who waits for a version must not hold work that another
one, for whose push it waits, could do: so a worker is given the work of one push, and not before it
is granted a version. What it asks for meanwhile is answered then. A model may say how many examples
a batch has; which they are it does not.
"""

from __future__ import annotations

from wbsp.core.messages import Outgoing, Range, SharedData, Span, Work, WorkHeld, WorkPlace
from wbsp.core.work_ledger import WorkLedger, WorkState
from wbsp.sync.base import NOT_FINITE, TOO_LARGE, Push, WorkerRule

_AGREED = "n", "batch", "seed", "order", "validate"
_MOST = 5.0  # seconds
_NEWEST = 0.3  # weight of the newest speed


class GuidedSizes:
    """Speeds of the workers, in examples a second of wall time, and how much each is given by them.

    C. Polychronopoulos and D. Kuck, "Guided Self-Scheduling", IEEE Trans. Computers 36(12), 1987:
    each gets a part of what is left, so that all end together though none knows how long another
    takes. Here a worker's part is its share of the speed of all, halved; in whole batches, and at
    most some seconds' worth, so that little is done again where one is lost.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # worker -> time from which on it trains what is next
        self._speed: dict[int, float] = {}
        self._all = 0.0  # their sum: adding up must not cost O(N)

    def begins(self, worker: int, now: float) -> None:
        """A worker had nothing to train, and has now."""
        self._since[worker] = now

    def trained(self, worker: int, samples: int, now: float) -> None:
        """A worker has handed over so many examples."""
        seconds = now - self._since.get(worker, now)
        self._since[worker] = now
        if seconds > 0 and samples:
            newest, speed = samples / seconds, self._speed.get(worker)
            mean = newest if speed is None else speed + _NEWEST * (newest - speed)
            self._all += mean - (speed or 0.0)
            self._speed[worker] = mean

    def left(self, worker: int) -> None:
        """A worker trains no more."""
        self._since.pop(worker, None)
        self._all -= self._speed.pop(worker, 0.0)
        if not self._speed:
            self._all = 0.0

    def size(self, worker: int, left: int, batch: int) -> int:
        """Examples for this worker, of `left` in the epoch."""
        speed = self._speed.get(worker)
        if speed is None:
            return batch  # its speed is not known
        share = speed / self._all
        return max(1, int(min(left * share / 2, speed * _MOST) / batch)) * batch


class SharedWork:
    """A work ledger, and the workers that ask it for work.

    ledger: which positions are free, held and done
    """

    def __init__(self, data: SharedData, rule: WorkerRule, state: WorkState | None = None):
        """`state`: to go on from. Raises ValueError for one that cannot be."""
        self.ledger = WorkLedger(data, state)
        self._rule = rule
        self._sizes = GuidedSizes()
        self._able: set[int] = set()  # granted a version, and no push since for which it waits
        self._asked: dict[int, int] = {}  # worker -> where its sequence ends, and it wants more
        # Of these, in the order of their asking: an event must not cost O(N).
        self._due: dict[int, None] = {}  # who is able
        self._untold: dict[int, None] = {}  # who has not been told that there is none now
        self._batches: dict[int, int] = {}  # worker -> examples of a step, where the model says it
        self._fixed = False  # a worker has said how many epochs there are, to this server

    @property
    def data(self) -> SharedData:
        return self.ledger.data

    @property
    def ended(self) -> str | None:
        """Why no work will follow, in one line; None: some will."""
        if not self.ledger.over:
            return None
        epochs = self.data.epochs
        given_up = self.ledger.given_up
        return ("the epoch is trained" if epochs == 1 else f"all {epochs} epochs are trained") + (
            f", but for {given_up:,} examples that were given up" if given_up else "")

    def disagrees(self, data: SharedData) -> str | None:
        """In what a worker's data are not the run's, in words; None: in nothing but epochs."""
        for name in _AGREED:
            there, here = getattr(data, name), getattr(self.data, name)
            if there != here:
                return f"its {name} is {there}, and the run's {here}"
        return None

    def open(self, worker: int, data: SharedData, first_epoch: int, epochs: int | None
             ) -> WorkPlace:
        """A process begins as `worker`. Raises ValueError, in one line, where it cannot.

        first_epoch: epochs that its loop has behind it; epochs: as the server says; None: it does
        not
        """
        ledger, me = self.ledger, f"worker {worker}"
        if reason := self.disagrees(data):
            raise ValueError(f"{me} has other data than the run: {reason}; give all the same")
        if epochs is None and data.epochs != self.data.epochs:
            if self._fixed or data.epochs < self.data.epochs:
                raise ValueError(f"{me} trains epochs={data.epochs}, and the run has "
                                 f"{self.data.epochs}: give each worker the same")
            ledger.extend(data.epochs)  # of a run that is gone on with
        left = self.data.epochs - ledger.epoch
        if data.epochs - first_epoch < left:
            raise ValueError(f"{me} would end after {data.epochs - first_epoch} more epochs, and "
                             f"the run has {left} left of {self.data.epochs}: give it epochs="
                             f"{self.data.epochs}")
        self._fixed = True
        self.left(worker)
        return WorkPlace(self.data, ledger.open(worker), ledger.epoch)

    def claim(self, worker: int, held: WorkHeld, left: bool, waits: bool) -> None:
        """A worker goes on where it is. Raises ValueError for what no worker can hold.

        left: it has finished; waits: for a version
        """
        self.ledger.claim(worker, held.answered, held.held)
        self._forget(worker)
        self._able.discard(worker)
        if left:
            self.ledger.lost(worker)
        elif not waits:
            self.granted(worker)

    def left(self, worker: int) -> None:
        """A worker has left, or was lost."""
        self.ledger.lost(worker)
        self._able.discard(worker)
        self._sizes.left(worker)
        self._forget(worker)

    def directed(self, worker: int, batch: int) -> None:
        """The steps that a worker begins from now on have so many examples."""
        self._batches[worker] = batch

    def granted(self, worker: int) -> None:
        """A worker may fetch a version, and train."""
        self._able.add(worker)
        if worker in self._asked:
            self._due[worker] = None

    def _waits(self, worker: int) -> None:
        """A worker may not train before it is granted a version."""
        self._able.discard(worker)
        self._due.pop(worker, None)

    def _sends(self, worker: int) -> None:
        """A push of this worker is on its way, or will be: it is given nothing before, since it may
        wait for a version then."""
        if self._rule.wait != "never":
            self._waits(worker)

    def owns(self, push: Push) -> bool:
        """Whether all that is in this push was its worker's to do. Raises ValueError where no
        worker can have made it."""
        assert push.to is not None, "pushes of shared data say how far they have come"
        if push.dropped is not None and push.dropped > push.to:
            raise ValueError(f"worker {push.worker} came to {push.to} in its work, and dropped all "
                             f"up to {push.dropped}")
        places = push.to if push.dropped is None else push.dropped, push.to
        return all(self.ledger.owns(push.worker, place) for place in places)

    def pushed(self, push: Push, accepted: bool, reason: str | None, waits: bool, now: float
               ) -> list[Span]:
        """A push is answered; the examples that are given up now. waits: its worker may not train
        before it is granted a version."""
        assert push.to is not None, "pushes of shared data say how far they have come"
        worker = push.worker
        (self._waits if waits else self.granted)(worker)
        self._sizes.trained(worker, push.samples, now)
        if push.dropped is not None:
            self.ledger.settle(worker, push.dropped, accepted=False)
        return self.ledger.settle(worker, push.to, accepted, reason not in (NOT_FINITE, TOO_LARGE))

    def ask(self, worker: int, have: int, sends: bool, now: float) -> list[Outgoing]:
        """A worker wants more, behind the place `have`. Raises ValueError for one where it cannot
        be.

        sends: it has pushed something that is not here yet
        """
        if (known := self.ledger.known(worker, have)) is not None:
            return [self._work(worker, known)]
        if not self.ledger.gives_from(worker, have):
            return []  # asked long ago, and answered
        self._asked[worker] = have
        self._untold[worker] = None
        if worker in self._able:
            self._due[worker] = None
        if sends:
            self._sends(worker)
        return self.feed(now)

    def feed(self, now: float) -> list[Outgoing]:
        """Give what is free to those who have asked, and are able to train."""
        told: list[Outgoing] = []
        while self._due:
            worker = next(iter(self._due))
            idle = not self.ledger.held(worker)
            given = self.ledger.give(worker, self._size(worker))
            if given is None:
                break
            if idle:
                self._sizes.begins(worker, now)
            self._forget(worker)
            told.append(self._work(worker, given))
        if not self.ledger.gives:
            for worker in self._untold:
                if self.ledger.held(worker):  # it may hold back what the others wait for
                    self._sends(worker)
                told.append(Outgoing(worker, Work(self._asked[worker], 0, 0, self.ledger.epoch)))
            self._untold.clear()
        return told

    def _forget(self, worker: int) -> None:
        """A worker wants nothing more, or has been given it."""
        for asking in (self._asked, self._due, self._untold):
            asking.pop(worker, None)

    def _size(self, worker: int) -> int:
        batch, rule = self._batches.get(worker, self.data.batch), self._rule
        if rule.wait == "never":
            return self._sizes.size(worker, self.ledger.left(), batch)
        if rule.push == "every_step":
            return batch * max(1, rule.every - self.ledger.steps(worker, batch))
        return batch  # what else the push will hold is not known

    def _work(self, worker: int, given: Range) -> Outgoing:
        return Outgoing(worker, Work(*given, self.ledger.epoch))
