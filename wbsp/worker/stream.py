"""Which examples a worker trains next, where that is not the worker's own business.

An example is named by its position in an endless stream: the shared one, of which the server gives
every worker pieces of its own, or one that is the worker's alone, of which the server says at most
how much is a step's. The communication thread assigns; the input pipeline iterates, in a thread of
its own, and must never be left waiting for good. TensorFlow is not known here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

LOOK = 0, 64  # as many as divide among the devices of a strategy
NOTHING = 0, 0
_GRAIN = 1.0  # seconds of waiting after which whoever iterates may give up


class Assignments:
    """Pieces of a stream, one a step: (start, count) is positions start ... start + count - 1.

    shared stream:  the server assigns the pieces; their starts increase
    own stream:     each step's piece follows the last one's; the server may assign its size

    A piece is given once, to the one who began to iterate after `begin`. After `end` there may be
    another beginning, which knows nothing of the last.
    """

    def __init__(self):
        self._news = threading.Condition()
        self._pieces: deque[tuple[int, int]] = deque()  # not given yet
        self._newest = -1, 1
        self._own: int | None = None  # examples a step of the own stream
        self._reading: object | None = None  # between `begin` and `end`, another at each
        self._given = False

    def begin(self, batch: int | None) -> None:
        """Training begins: on the own stream, `batch` examples a step, if nothing else is said."""
        with self._news:
            self._reading, self._given = object(), False
            self._pieces.clear()
            self._newest, self._own = (-1, 1), batch

    def assign(self, batch: int, start: int | None) -> None:
        """Train this piece (ignored if it was assigned before); without `start`: own stream."""
        with self._news:
            self._own = batch if start is None else None
            if start is not None and start > self._newest[0]:
                self._add(start, batch)

    def step_begins(self) -> None:
        """The own stream goes on: not earlier, since its size may change until now."""
        with self._news:
            if self._own is not None:
                self._add(sum(self._newest), self._own)

    def end(self) -> None:
        """No step will follow."""
        with self._news:
            self._reading = None
            self._news.notify_all()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The pieces as they come, until the end; while there is none, NOTHING now and then.

        Outside training it is one LOOK at what examples are like, and takes nothing of the stream.
        """
        if (reading := self._reading) is None:
            yield LOOK
            return
        if self._given:
            raise RuntimeError("a run's stream of examples is read once: give fit its "
                               "steps_per_epoch, and leave the dataset without an end")
        self._given = True
        while True:
            with self._news:
                self._news.wait_for(lambda: self._pieces or self._reading is not reading, _GRAIN)
                if self._reading is not reading:
                    return
                piece = self._pieces.popleft() if self._pieces else NOTHING
            yield piece

    def _add(self, start: int, count: int) -> None:
        self._newest = start, count
        self._pieces.append(self._newest)
        self._news.notify_all()
