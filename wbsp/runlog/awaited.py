"""Lines that name the workers a server waits for, and say for how long yet, and what then."""

from __future__ import annotations

from collections.abc import Callable, Collection

from wbsp.process.throttle import Throttle

_NOTICE = 15.0  # seconds of a wait until the first line, and between two
_NAMED = 5  # workers in one line, at most


class Awaited:
    """Those of one server; it waits for one thing at a time."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._notice = Throttle(_NOTICE)
        self._what: str | None = None

    def wait(self, workers: Collection[int], what: str, left: float, then: str, now: float
             ) -> None:
        """These are waited for. Call it as long as that is so: now and then there is a line.

        what: they are to do; then: what happens where they have not in `left` seconds; now: in the
        same time as ever
        """
        if what != self._what or not workers:
            self._what = what
            self._notice.rest(now)
        elif self._notice.due(now):
            self._say(f"waiting for {named(workers)} {what}, for {max(left, 0):.0f} s more; then "
                      f"{then}")


def named(workers: Collection[int]) -> str:
    """The workers in words, the first few of them by their indices."""
    first = ", ".join(map(str, sorted(workers)[:_NAMED]))
    more = len(workers) - _NAMED
    return f"worker {first}" + (f" and {more} more" if more > 0 else "")
