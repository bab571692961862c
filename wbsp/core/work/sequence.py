"""A worker's part of the run's shared data, in its order, and its requests for more: see
`wbsp.core.work_ledger`.

No threads, sockets or clocks.
"""

from __future__ import annotations

import math

from wbsp.core.messages import Range, Span
from wbsp.core.rules import RuleBroken
from wbsp.limits import Offset, Position

BEGIN = Offset(0)  # of a sequence
AGAIN = 5.0  # seconds after which an unanswered request for more work is repeated
_TRIPS = 2  # round trips that held examples must last; else more are requested
_NEWEST = 0.2  # weight of the newest duration in a mean


def mean_of(mean: float, newest: float) -> float:
    """Return the moving average of durations, in seconds; `mean` is 0 before the first."""
    return newest if not mean else mean + _NEWEST * (newest - mean)


class Requests:
    """A worker's or site's requests for work, of which one at a time is open.

    The examples that it holds when an answer arrives last for two round trips. So they last until
    the next answer even if this one was short.

    Attributes:
        none: the server has no free work now; more follows without a request.
        trip: seconds of a request and its answer, on average; 0: not known. The first one of a
            connection does not count: it is answered once all others have joined.
    """

    def __init__(self) -> None:
        self.forget()
        self.trip = 0.0

    def forget(self) -> None:
        """Begin with another server or connection."""
        self.none = self._open = self._begun = False
        self._since = self._newest = 0.0  # seconds: first and newest message of the open request

    def due(self, low: bool, now: float, again: float = AGAIN) -> bool:
        """Note and return whether a request is sent now.

        Args:
            low: more work is needed.
            now: seconds.
            again: seconds after which the open request is repeated.
        """
        if self._open:
            if now - self._newest < again:
                return False
        elif self.none or not low:
            return False
        else:
            self._open, self._since = True, now
        self._newest = now
        return True

    def answered(self, none: bool, now: float) -> None:
        """Note the answer to the open request: a range, or `none` if no work is free."""
        if self._open and self._begun and not self.none:
            self.trip = mean_of(self.trip, now - self._since)
        self._open, self._begun, self.none = False, True, none

    def low(self, left: float, speed: float) -> bool:
        """Return whether `left` examples, at `speed` per second, end before more arrive."""
        return left < speed * _TRIPS * self.trip

    def ahead(self, left: float, speed: float) -> int:
        """Return how many examples to request, so that they last long enough when they arrive."""
        return max(0, math.ceil(speed * (_TRIPS + 1) * self.trip - left))

    def of_worker(self, left: int, batch: int, step: float, early: bool, now: float,
                  again: float = AGAIN) -> int | None:
        """Note a worker's request, and return `AskWork.ahead` of it; None: it sends none now.

        Args:
            left: examples that it was given, and has not trained.
            batch: examples of its step.
            step: seconds of its step; 0: not known yet.
            early: request before all is trained.
            now, again: as for `due`.
        """
        behind = max(0, left - batch)  # at the next look, which is a step later
        speed = batch / step if early and step else 0.0
        low = not left or (early and (not behind or self.low(behind, speed)))
        return self.ahead(behind, speed) if self.due(low, now, again) else None


class WorkSequence:
    """A worker's ranges, one behind the other: given, taken, trained, and answered.

    answered <= trained <= taken <= end are offsets in the sequence.
    """

    def __init__(self, at: Offset = BEGIN):
        self.answered = self.trained = self.taken = self.end = at
        self.held: list[Range] = []  # not answered

    @property
    def untaken(self) -> int:
        """Examples that were given, but not taken yet."""
        return self.end - self.taken

    def give(self, given: Range) -> bool:
        """Append a range; return False if it is known, or does not follow the last one."""
        if given.at != self.end or given.start >= given.stop:
            return False
        self.held.append(given)
        self.end = given.end
        return True

    def take(self, most: int) -> Range | None:
        """Take the next positions for the input pipeline, up to `most` of one range, or None."""
        for r in self.held:
            if self.taken < r.end:
                start = r.position(self.taken)
                taken = Range(self.taken, start, min(r.stop, Position(start + most)))
                self.taken = taken.end
                return taken
        return None

    def train(self, samples: int) -> None:
        """Note that a step has trained `samples` of the taken examples, in their order.

        Raises:
            RuleBroken: fewer were taken.
        """
        if self.trained + samples > self.taken:
            raise RuleBroken(f"a step trained {samples} examples, and only "
                             f"{self.taken - self.trained} were taken")
        self.trained = Offset(self.trained + samples)

    def spans(self, at: Offset, to: Offset) -> tuple[Span, ...]:
        """Return the held positions of the run from `at` up to `to` in this sequence."""
        return tuple((max(r.start, r.position(at)), min(r.stop, r.position(to)))
                     for r in self.held if max(at, r.at) < min(to, r.end))

    def answer(self, to: Offset) -> None:
        """Note the answer to the push up to `to`.

        Raises:
            RuleBroken: `to` is beyond the trained part, or before the last answer.
        """
        if not self.answered <= to <= self.trained:
            raise RuleBroken(f"a push up to {to} is answered, and {self.answered} to "
                             f"{self.trained} was trained since the answer before")
        self.held = [Range(max(r.at, to), max(r.start, r.position(to)), r.stop)
                     for r in self.held if r.end > to]
        self.answered = to
