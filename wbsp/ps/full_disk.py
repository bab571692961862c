"""The wait for a full disk: what cannot be written is tried again, because space may be made.

It is the same one for a run's first and last version, its model, the note that it has ended, and
the files of the next run: an attempt each second, a line now and then, and an end after a minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from wbsp import timeouts
from wbsp.process.host import Clock
from wbsp.process.throttle import Throttle

T = TypeVar("T")

_AGAIN, _NOTICE = 1.0, 15.0  # seconds between two attempts, and two lines
_GRAIN = 0.05  # seconds between two checks whether to continue


class FullDisk:
    """Attempts to write one thing. The caller passes the time, in seconds of one clock."""

    def __init__(self, say: Callable[[str], None], place: str | Path, endless: bool = False):
        """Prepare.

        Args:
            say: prints a line.
            place: a folder of that disk.
            endless: attempts never end, because the server can continue without this file.
        """
        self._say, self._place = say, place
        self._next = -math.inf  # attempt
        self._notice = Throttle(_NOTICE)
        self._until = math.inf if endless else None  # since the first failure

    def goes_on(self, now: float) -> bool:
        """Return whether time is left; the first call begins the wait."""
        if self._until is None:
            self._until = now + timeouts.LAST_SAVE
        return now < self._until

    def due(self, now: float) -> bool:
        """Return whether to try now."""
        return now >= self._next

    def failed(self, what: str, now: float) -> bool:
        """Note an attempt that has failed; return whether time is left.

        Args:
            what: the failure, in words.
            now: the time.
        """
        self._next = now + _AGAIN
        goes_on = self.goes_on(now)
        if goes_on and self._notice.due(now) and self._until is not None:
            lasts = "" if self._until == math.inf else f" for {self._until - now:.0f} s more"
            self._say(f"{what}; trying again{lasts}: free some space on the disk of {self._place}")
        return goes_on

    def woke(self, seconds: float) -> None:
        """Extend the wait by the seconds of a suspension."""
        if self._until is not None:
            self._until += seconds

    def persist(self, act: Callable[[], T], what: str, clock: Clock,
                wanted: Callable[[], bool]) -> T:
        """Return `act()`; while that fails with an OSError, call it again.

        Args:
            act: writes.
            what: the failure, in words; its reason follows.
            clock: of this process.
            wanted: called repeatedly between two attempts; False ends the wait.

        Raises:
            OSError: of the last attempt.
        """
        while True:
            try:
                return act()
            except OSError as error:
                why = f"{what}: {error.strerror or error}"
                if not (wanted() and self.failed(why, clock.monotonic())):
                    raise
                while not self.due(clock.monotonic()):
                    if not wanted():
                        raise
                    clock.sleep(_GRAIN)
