"""A worker's share of the run's shared data, for its input pipeline: batches, taken and trained.

The pipeline takes the batches, perhaps in its own thread and some batches ahead; a step trains the
oldest one that is not trained. The participant requests and receives the server's work. No Keras,
no model, no sockets.
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
    LearningRate,
    Measured,
    Range,
    SharedData,
    WorkHeld,
    WorkPlace,
)
from wbsp.core.participant import Participant
from wbsp.core.stats import Phase
from wbsp.core.work.sequence import BEGIN, WorkSequence
from wbsp.limits import Position
from wbsp.process.host import HOST, Host

_FIRST, _NONE = Position(0), Position(-1)
LOOK = Range(BEGIN, _FIRST, _FIRST)  # shows the form of examples, and is not counted
NOTHING = Range(BEGIN, _NONE, _NONE)  # no batch yet
_GRAIN = 1.0  # seconds of waiting until a NOTHING


class Claims(Protocol):
    """What a connection needs of a share, which is a `Share` or a site's.

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
        early: the run has ended before all was trained.
        epoch: of the newest trained example; before that, the run's.
        changed: the lock of all of this, and of the ranges of the participant; notified when a
            batch is ready, or `take` waits in vain.
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
        self.epoch = 0
        self.early = False
        self.measured: Measured | None = None
        self.rate: LearningRate | None = None
        self._clock = on.clock
        self.changed = on.scheduler.condition()
        self._participant: Participant | None = None  # of the newest run
        self._work = WorkSequence()  # its own
        self._handed: deque[Range] = deque()  # taken, and not trained
        self._made = 0  # batches that were, of these
        self._awaits: Callable[[], object] | None = None  # notified when the next one is made
        self._run: object | None = None  # between `begin` and `end`, another at each
        self._iterated = False
        self._stopped = True

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

    def begin(self, place: WorkPlace, participant: Participant) -> None:
        """Begin a run as its member, which begins at `place` in the run's data."""
        assert participant.work is not None, "its data are shared"
        with self.changed:
            self.data, self.epoch = place.data, place.epoch
            self._participant, self._work = participant, participant.work
            self.measured = self.rate = None
            self._handed.clear()
            self._made, self._awaits = 0, None
            self._run = object()
            self._iterated = self._stopped = self.early = False

    def told_rate(self, rate: LearningRate) -> None:
        """Note the newest learning rate from the server."""
        self.rate = rate

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
            return bool(self._work.untaken)

    @property
    def untaken_epoch(self) -> int:
        """Epoch of the batch that `take` would return, if it is ready: see `_epoch_at`."""
        with self.changed:
            return self._epoch_at(self._work.taken)

    def take(self) -> Range:
        """Take the next batch: positions of one epoch, at most `batch`; wait a moment for it.

        Returns:
            The batch; NOTHING: it has not arrived; LOOK: no run, or its end.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._work.untaken or self._stopped, _GRAIN)
            if self._run is not None and self._participant is not None and (
                    batch := self._participant.take_batch()):
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
            return bool(self._handed or self._work.untaken)

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
            return self._epoch_at(self._work.trained)

    def _epoch_at(self, at: int) -> int:
        """Return the epoch in which this worker trains position `at` of its sequence.

        It never falls along the sequence: examples of an earlier epoch that were another worker's,
        and returned, are trained in the epoch that this worker has reached.
        """
        return max([self.epoch, *(r.start // self.data.n for r in self._work.held
                                  if r.at <= at)])

    def step_done(self) -> int:
        """Note a step on the oldest taken batch; return its number of examples."""
        with self.changed:
            batch = self._handed.popleft()
            self._made = max(0, self._made - 1)
            self.epoch = max(self.epoch, batch.start // self.data.n)
            return batch.stop - batch.start

    # The communication thread.

    def validated(self, result: Measured) -> None:
        """Note a worker's validation of an epoch."""
        with self.changed:
            if self.measured is None or result.epoch > self.measured.epoch:
                self.measured = result

    def held(self) -> WorkHeld:
        """Return the state for a server that this worker attaches to."""
        with self.changed:
            held = None if self._participant is None else self._participant.held()
            return held or WorkHeld(self.data, BEGIN, [])
