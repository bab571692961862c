"""Examples of a worker's next steps, if the server chooses them or their number.

An example is identified by its position in an endless stream. If the stream is shared, the server
assigns pieces of it to the workers. If the stream is the worker's own, the server assigns at most
the number of examples in a step. The communication thread assigns; the input pipeline iterates in
its own thread, which must never wait forever. This module is independent of TensorFlow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from wbsp.process.host import HOST, Host

LOOK = 0, 64  # the piece outside training: divisible among the devices of a strategy
NOTHING = 0, 0  # the piece while none is assigned
_GRAIN = 1.0  # seconds of waiting until a NOTHING


class Assignments:
    """Pieces of a stream, one a step: (start, count) is positions start ... start + count - 1.

    shared stream:  the server assigns the pieces; their starts increase
    own stream:     each step's piece follows the one before; the server may assign its size

    A piece is yielded once, to the one iterator that was made after `begin`. Another `begin` may
    follow `end`, and starts again.

    Attributes:
        on_demand: a piece of the own stream is made when the iterator requests it, not when a step
            begins.
    """

    def __init__(self, on: Host = HOST):
        self.on_demand = False
        self._changed = on.scheduler.condition()
        self._pieces: deque[tuple[int, int]] = deque()  # not yielded yet
        self._newest = -1, 1
        self._own: int | None = None  # examples in a step of the own stream
        self._run: object | None = None  # between `begin` and `end`, another at each
        self._iterated = False

    def make_on_demand(self) -> None:
        """Make a piece of the own stream when the iterator requests it."""
        self.on_demand = True

    def begin(self, batch: int | None) -> None:
        """Begin training, on the own stream with `batch` examples a step, until `assign`."""
        with self._changed:
            self._run = object()
            self._iterated = False
            self._pieces.clear()
            self._newest = (-1, 1)
            self._own = batch

    def assign(self, batch: int, start: int | None) -> None:
        """Assign a piece, unless it was assigned before.

        Args:
            batch: examples of the piece.
            start: its first position; None: own stream, with `batch` examples a step from here on.
        """
        with self._changed:
            self._own = batch if start is None else None
            if start is not None and start > self._newest[0]:
                self._add(start, batch)

    def start_again(self) -> None:
        """Discard pieces that were not yielded; the server's starts begin again."""
        with self._changed:
            if self._own is None:
                self._pieces.clear()
                self._newest = -1, 1

    def step_begins(self) -> None:
        """Add the step's piece of the own stream, whose size may change until now."""
        with self._changed:
            if not self.on_demand:
                self._add_own()

    def end(self) -> None:
        """End the pieces; no step follows."""
        with self._changed:
            self._run = None
            self._changed.notify_all()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the pieces until `end`; while none is assigned, yield NOTHING at times.

        Outside training, yield one LOOK, which shows the form of examples and takes no piece.
        """
        if (run := self._run) is None:
            yield LOOK
            return
        if self._iterated:
            raise RuntimeError("a run's stream of examples is read once: give fit its "
                               "steps_per_epoch, and leave the dataset without an end")
        self._iterated = True
        while True:
            with self._changed:
                if self.on_demand and self._run is run:
                    self._add_own()
                self._changed.wait_for(lambda: self._pieces or self._run is not run, _GRAIN)
                if self._run is not run:
                    return
                piece = self._pieces.popleft() if self._pieces else NOTHING
            yield piece

    def _add_own(self) -> None:
        """Add the next piece of the own stream, if the stream is the worker's own."""
        if self._own is not None:
            self._add(sum(self._newest), self._own)

    def _add(self, start: int, count: int) -> None:
        self._newest = start, count
        self._pieces.append(self._newest)
        self._changed.notify_all()
