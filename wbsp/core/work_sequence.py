"""What a worker was given of the run's shared data, in its order: see `wbsp.core.work_ledger`.

No threads, sockets or clocks.
"""

from __future__ import annotations

from wbsp.core.messages import Range, Span


class WorkSequence:
    """A worker's ranges, one behind the other: it is given, takes and trains them, and is answered.

    answered <= trained <= taken <= end: places in its sequence
    """

    def __init__(self, at: int = 0):
        self.answered = self.trained = self.taken = self.end = at
        self.held: list[Range] = []  # not answered

    @property
    def untaken(self) -> int:
        """Examples that were given, and not taken."""
        return self.end - self.taken

    @property
    def next(self) -> int:
        """The next position to take, where one is here."""
        return next((r.start + max(0, self.taken - r.at) for r in self.held if self.taken < r.end),
                    0)

    def give(self, given: Range) -> bool:
        """A range has come; False: it is here already, or does not follow on what is."""
        if given.at != self.end or given.start >= given.stop:
            return False
        self.held.append(given)
        self.end = given.end
        return True

    def take(self, most: int) -> Range | None:
        """The next positions for the input pipeline, up to `most` of one range; None: none is here.
        """
        for r in self.held:
            if self.taken < r.end:
                start = r.start + self.taken - r.at
                taken = Range(self.taken, start, min(r.stop, start + most))
                self.taken = taken.end
                return taken
        return None

    def train(self, samples: int) -> None:
        """A step has trained so many of the examples that were taken, in their order. Raises
        ValueError for more than were."""
        if self.trained + samples > self.taken:
            raise ValueError(f"a step trained {samples} examples, and only "
                             f"{self.taken - self.trained} were taken")
        self.trained += samples

    def answer(self, to: int) -> list[Span]:
        """The push up to `to` was answered: the positions in it."""
        spans = [(r.start, min(r.stop, r.start + to - r.at)) for r in self.held if r.at < to]
        self.held = [Range(max(r.at, to), r.start + max(0, to - r.at), r.stop)
                     for r in self.held if r.end > to]
        self.answered = to
        return spans
