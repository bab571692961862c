"""A worker's share of the run's shared data: ranges from the server, taken in batches and trained.

The input pipeline takes the batches, perhaps in its own thread and some batches ahead; a step
trains the oldest one that is not trained. No Keras, no model, no sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, Protocol

from wbsp import given
from wbsp.core.messages import (
    EPOCHS,
    EXAMPLES,
    AskWork,
    LearningRate,
    Measured,
    Range,
    SharedData,
    Work,
    WorkHeld,
    WorkPlace,
)
from wbsp.core.stats import Phase
from wbsp.core.work.sequence import Requests, WorkSequence, mean_of
from wbsp.process.host import HOST, Host

LOOK = Range(0, 0, 0)  # in place of a batch: shows the form of examples, and is not counted
NOTHING = Range(0, -1, -1)  # no batch yet
_GRAIN = 1.0  # seconds of waiting until a NOTHING


class Claims(Protocol):
    """What a connection must know of a share: of `Share`, or of a site's.

    Attributes:
        data: as in `Share`.
        first_epoch: as in `Share`.
    """

    data: SharedData
    first_epoch: int

    @property
    def claim(self) -> WorkHeld | None:
        """What this process takes over from the one before it; None: nothing."""

    def held(self) -> WorkHeld:
        """Return the state for a server that this worker attaches to."""


class Share:
    """The share of one worker, during a run from `begin` to `end`; any thread may call.

    Attributes:
        data: as this worker requests it, and from `begin` on the run's.
        first_epoch: epochs that its loop has completed.
        measured: the newest known result of a validation by any worker, or None.
        rate: the newest learning rate from the server, or None.
        batch: examples of a step; the server may change it.
        early: the run has ended before all was trained.
        epoch: of the newest trained example; before that, the run's.
        changed: the lock of all of this; notified when a batch is ready, or `take` waits in vain.
        sequence: this worker's ranges; guarded by `changed`.
    """

    def __init__(self, n: int, batch_size: int, seed: int = 0, on: Host = HOST,
                 validate: Literal["newest", "wait"] = "newest"):
        """Set up the data.

        Args:
            n: number of examples.
            batch_size: examples of a batch.
            seed: of the order.
            validate: as in `SharedData`.

        Raises:
            ValueError: a number is out of range.
        """
        n = given.whole("n", n, 1, EXAMPLES)
        batch_size = given.whole("batch_size", batch_size, 1, EXAMPLES)
        seed = given.whole("seed", seed)
        if not isinstance(validate, str) or validate not in ("newest", "wait"):
            raise ValueError(f"validate={given.shown(validate)}: it must be 'newest', by which no "
                             "worker waits for the results of an epoch, or 'wait', by which all do")
        self.data = SharedData(n, batch_size, 1, seed, validate=validate)
        self.first_epoch = 0
        self.batch = batch_size
        self.epoch = 0
        self.early = False
        self.measured: Measured | None = None
        self.rate: LearningRate | None = None
        self._clock = on.clock
        self.changed = on.scheduler.condition()
        self.sequence = WorkSequence()
        self._handed: deque[Range] = deque()  # taken, and not trained
        self._made = 0  # batches that were, of these
        self._awaits: Callable[[], object] | None = None  # told when the next one is made
        self._run: object | None = None  # between `begin` and `end`, another at each
        self._iterated = False
        self._stopped = True
        self._ahead = False
        self._requests = Requests()
        self._step = 0.0  # seconds of a step

    @property
    def claim(self) -> WorkHeld | None:
        return None

    def wants(self, epochs: int, first_epoch: int = 0) -> None:
        """Set the passes over the data, of which the loop has completed `first_epoch`.

        Raises:
            ValueError: a number is out of range.
        """
        self.data = self.data._replace(epochs=given.whole("epochs", epochs, 1, EPOCHS))
        self.first_epoch = given.whole("initial_epoch", first_epoch, 0, EPOCHS)

    def begin(self, place: WorkPlace, ahead: bool) -> None:
        """Begin a run as its member.

        Args:
            place: start in the run's data.
            ahead: request more before all given examples are trained.
        """
        with self.changed:
            self.data = place.data
            self.batch = place.data.batch
            self.epoch = place.epoch
            self.measured = self.rate = None
            self.sequence = WorkSequence(place.at)
            self._handed.clear()
            self._made, self._awaits = 0, None
            self._run = object()
            self._iterated = self._stopped = self.early = False
            self._requests.forget()
            self._ahead = ahead

    def stop(self, early: bool = False) -> None:
        """Stop waiting for batches, because the run ends. `early`: as in `messages.Stop`."""
        with self.changed:
            self._stopped, self.early = True, self.early or early
            self.changed.notify_all()

    def end(self) -> None:
        """End the readers; no step follows."""
        with self.changed:
            self._run = None
            self._stopped = True
            self.changed.notify_all()

    @property
    def total(self) -> int:
        """Number of examples of all epochs."""
        return self.data.epochs * self.data.n

    @property
    def waits(self) -> bool:
        """True if workers wait for the results of each epoch before they begin the next one."""
        return self.data.validate == "wait"

    # The input pipeline.

    @property
    def running(self) -> bool:
        """True from `begin` to `end`."""
        return self._run is not None

    @property
    def untaken(self) -> bool:
        """True if `take` would return a batch at once."""
        with self.changed:
            return bool(self.sequence.untaken)

    @property
    def untaken_epoch(self) -> int:
        """Epoch of the batch that `take` would return, if it is ready: see `_epoch_at`."""
        with self.changed:
            return self._epoch_at(self.sequence.taken)

    def take(self) -> Range:
        """Take the next batch: positions of one epoch, at most `batch`; wait a moment for it.

        Returns:
            The batch; NOTHING: it has not arrived; LOOK: no run, or its end.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.sequence.untaken or self._stopped, _GRAIN)
            if self._run is not None and (batch := self.sequence.take(self.batch)):
                self._handed.append(batch)
                return batch
            return LOOK if self._stopped else NOTHING

    def made(self) -> None:
        """Note that a thread of the pipeline has made the oldest taken batch."""
        with self.changed:
            self._made += 1
            awaits, self._awaits = self._awaits, None
            if awaits is not None:
                awaits()

    def __iter__(self) -> Iterator[Range]:
        """Yield the results of `take` until the run's `end`; outside of a run, one LOOK.

        Raises:
            RuntimeError: a second reader in a run, because the first may have read ahead.
        """
        if (run := self._run) is None:
            yield LOOK
            return
        if self._iterated:
            raise RuntimeError("a run's examples are read once: give fit "
                               "steps_per_epoch=hook.UNTIL_TOLD, and the data as they are")
        self._iterated = True
        while self._run is run:
            yield self.take()

    # The compute thread.

    @property
    def ready(self) -> bool:
        """True if the next step's batch is ready."""
        with self.changed:
            return bool(self._handed or self.sequence.untaken)

    def fetch(self, enter: Callable[[Phase], object]) -> None:
        """Enter phase `data` until the step's batch is made, then `compute`.

        For a pipeline that reports each batch that it has made.
        """
        with self.changed:
            self._awaits = None if self._made else partial(enter, "compute")
            enter("compute" if self._made else "data")

    @property
    def handed_out(self) -> bool:
        """True if a taken batch is not trained yet; a step that ends now has trained it."""
        with self.changed:
            return bool(self._handed)

    @property
    def oldest(self) -> int:
        """Number of examples in the oldest batch that is taken and not trained."""
        with self.changed:
            return self._handed[0].stop - self._handed[0].start

    @property
    def next_epoch(self) -> int:
        """Epoch of the next step's batch, `epoch` if that is not ready: see `_epoch_at`."""
        with self.changed:
            return self._epoch_at(self.sequence.trained)

    def _epoch_at(self, at: int) -> int:
        """Return the epoch in which this worker trains position `at` of its sequence.

        It never falls along the sequence: examples of an earlier epoch that were another worker's,
        and returned, are trained in the epoch that this worker has reached.
        """
        return max([self.epoch, *(r.start // self.data.n for r in self.sequence.held
                                  if r.at <= at)])

    @property
    def dry(self) -> bool:
        """True if all given examples are trained, and no work is free now."""
        with self.changed:
            return self._requests.none and self.sequence.trained == self.sequence.end

    def step_done(self, seconds: float) -> int:
        """Note a step on the oldest taken batch; return its number of examples.

        `seconds`: of compute.
        """
        with self.changed:
            batch = self._handed.popleft()
            self._made = max(0, self._made - 1)
            samples = batch.stop - batch.start
            self.sequence.train(samples)
            self.epoch = max(self.epoch, batch.start // self.data.n)
            self._step = mean_of(self._step, seconds)
            return samples

    def question(self, pushes: int) -> AskWork | None:
        """Return the request for more work that is due now, new or repeated, or None.

        `pushes`: as in `AskWork`.
        """
        with self.changed:
            if self._stopped:
                return None
            end = self.sequence.end
            ahead = self._requests.of_worker(end - self.sequence.trained, self.batch, self._step,
                                             self._ahead, self._clock.monotonic())
            return None if ahead is None else AskWork(end, pushes, ahead=ahead)

    # The communication thread.

    def received(self, work: Work) -> None:
        """Handle a range from the server, or its answer that no work is free now."""
        with self.changed:
            if work.at != self.sequence.end:
                return  # received before
            self._requests.answered(work.start == work.stop, self._clock.monotonic())
            self.sequence.give(Range(work.at, work.start, work.stop))
            self.changed.notify_all()

    def validated(self, result: Measured) -> None:
        """Note a worker's validation of an epoch."""
        with self.changed:
            if self.measured is None or result.epoch > self.measured.epoch:
                self.measured = result

    def held(self) -> WorkHeld:
        """Return the state for a server that this worker attaches to."""
        with self.changed:
            sequence = self.sequence
            end = sequence.end if self._run is not None else sequence.trained
            return WorkHeld(self.data, sequence.answered, [
                Range(r.at, r.start, min(r.stop, r.start + end - r.at))
                for r in sequence.held if r.at < end])

    def reattached(self) -> None:
        """Repeat an open request over a new connection, perhaps to another server."""
        with self.changed:
            self._requests.forget()
