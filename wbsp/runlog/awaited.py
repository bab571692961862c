"""Console lines about the workers that a server waits for, the rest of the wait, and its end."""

from __future__ import annotations

from collections.abc import Callable, Collection

from wbsp.process.throttle import Throttle

_FIRST, _NOTICE = 5.0, 15.0  # seconds of a wait until the first line, and between two
_NAMED = 5  # workers in one line, at most


class Awaited:
    """The lines of one server, which waits for one event at a time."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._notice = Throttle(_NOTICE)
        self._what: str | None = None

    def wait(self, workers: Collection[int], what: str, left: float | None, then: str, now: float
             ) -> None:
        """Print a line on a wait at a limited rate; call this as long as the wait lasts.

        Args:
            workers: that are waited for.
            what: the awaited event, such as "to join".
            left: seconds until the end of the wait; None: not known.
            then: what happens then.
            now: seconds, of one clock in all calls.
        """
        if what != self._what or not workers:
            self._what = what
            self._notice.next = now + min(_FIRST, self._notice.period)
        elif self._notice.due(now):
            while_ = "" if left is None else f", for {max(left, 0):.0f} s more"
            self._say(f"waiting for {named(workers)} {what}{while_}; then {then}")


def named(workers: Collection[int]) -> str:
    """Return the workers as text, the first few by their indices."""
    first = ", ".join(map(str, sorted(workers)[:_NAMED]))
    more = len(workers) - _NAMED
    return f"worker {first}" + (f" and {more} more" if more > 0 else "")
