"""Waits of one process for others: whom it waits for, how long yet, and what follows.

A wait that lasts gets a line every 15 s, and an end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from wbsp.process.throttle import Throttle

_FIRST, _NOTICE = 5.0, 15.0  # seconds of a wait until the first line, and between two
_NAMED = 5  # workers in one line, at most


class Awaited:
    """The lines of a process, or a part of it, that waits for one event at a time."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._notice = Throttle(_NOTICE)
        self._what: str | None = None

    def wait(self, whom: Collection[int] | str, what: str, left: float | None, then: str,
             now: float) -> bool:
        """Print a line on a wait at a limited rate; call this as long as the wait lasts.

        Args:
            whom: the workers that are waited for, or others, as text; empty: the wait is over.
            what: the awaited event, such as "to join".
            left: seconds until the end of the wait; None: not known.
            then: what happens then.
            now: seconds, of one clock in all calls.

        Returns:
            Whether the wait continues: a process is awaited, and time is left.
        """
        goes_on = bool(whom) and (left is None or left > 0)
        if what != self._what or not whom:
            self._what = what
            self._notice.rest(now, _FIRST)
        elif goes_on and self._notice.due(now):
            while_ = "" if left is None else f", for {left:.0f} s more"
            self._say(f"waiting for {named(whom)} {what}{while_}; then {then}")
        return goes_on


def named(workers: Collection[int] | str) -> str:
    """Return the workers as text, the first few by their indices."""
    if isinstance(workers, str):
        return workers
    first = ", ".join(map(str, sorted(workers)[:_NAMED]))
    more = len(workers) - _NAMED
    return f"worker {first}" + (f" and {more} more" if more > 0 else "")
