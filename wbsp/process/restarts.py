"""How often a process that dies is started again, and after which pause."""

from __future__ import annotations

from wbsp import timeouts


class Restarts:
    """The deaths of one process in a row, each after a short life.

    Attributes:
        most: restarts in a row until the process is given up.
        made: restarts so far.
    """

    def __init__(self, most: int):
        self.most = most
        self.made = 0
        self._failures = 0

    def after(self, lived: float) -> float | None:
        """Return the seconds to wait before a restart; None: the process is given up.

        Args:
            lived: seconds from the process's start to its death.
        """
        self._failures = 1 if lived > timeouts.PROCESS_SHORT else self._failures + 1
        if self._failures > self.most:
            return None
        self.made += 1
        return 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 2),
                                                   timeouts.PROCESS_PAUSE)
