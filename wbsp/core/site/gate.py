"""What a site's server keeps while the site waits for the server above.

The site waits at the end of its step, which is a version, as a worker's compute thread does. Its
own workers wait with it: their pushes are not decided on, and they get no answers, until it goes
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from wbsp.core.messages import Final, Outgoing, Reattached

Kept = TypeVar("Kept")  # a complete push, as its world has it


class Gate(Generic[Kept]):
    """Pushes to a server, and its answers, in transit; the gate is open unless the site waits.

    Every server withholds Finals until `release`: a worker receives the last version only when it
    is safe.

    Args:
        waits: returns whether the site waits now; None: this server is no site's, and never waits.
    """

    def __init__(self, waits: Callable[[], bool] | None = None):
        self._waits = waits
        self._pushes: dict[int, Kept] = {}  # worker -> its newest
        self._answers: list[Outgoing] = []
        self._finals: list[Outgoing] | None = []  # None: no longer withheld

    @property
    def shut(self) -> bool:
        return self._waits is not None and self._waits()

    def keeps(self, worker: int, push: Kept) -> bool:
        """Keep a worker's push if the site waits; return whether it does."""
        if not self.shut:
            return False
        self._pushes.pop(worker, None)  # it repeats it over a new connection
        self._pushes[worker] = push
        return True

    def pushes(self) -> Iterator[Kept]:
        """Yield the kept pushes in the order in which they came, until the site waits again."""
        while self._pushes and not self.shut:
            yield self._pushes.pop(next(iter(self._pushes)))

    def through(self, answer: Iterable[Outgoing]) -> list[Outgoing]:
        """Return which of these answers, and of those kept before them, may be sent now, in order.

        A worker that has reconnected receives that answer even while the site waits, because it may
        have to vote before the site can continue.
        """
        answers, self._answers = [*self._answers, *answer], []
        if self.shut:
            self._answers = [one for one in answers if not isinstance(one.message, Reattached)]
            answers = [one for one in answers if isinstance(one.message, Reattached)]
        elif self._finals is not None and (
                finals := [one for one in answers if isinstance(one.message, Final)]):
            self._finals += finals
            answers = [one for one in answers if not isinstance(one.message, Final)]
        return answers

    def release(self) -> None:
        """Withhold Finals no longer: the last version is safe."""
        finals, self._finals = self._finals, None
        self._answers += finals or ()

    def forget(self, worker: int) -> None:
        """Drop the answers that are kept for a worker that was lost."""
        self._answers = [one for one in self._answers if one.worker != worker]
