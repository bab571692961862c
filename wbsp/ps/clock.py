"""The server's two clocks: its own, and the run's, which continues from one server to the next."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Both clocks, in seconds.

    Timeouts use this process's own time. Models, logs and workers use the run's, which may be set
    forward.
    """

    def __init__(self, source: Callable[[], float]):
        self._source = source
        self._zero = source()

    def now(self) -> float:
        """Return this process's own time, which is monotonic and has no fixed origin."""
        return self._source()

    def run(self) -> float:
        """Return the seconds since the run's time zero."""
        return self._source() - self._zero

    def go_on(self, elapsed: float) -> None:
        """Set the run's time to at least `elapsed`, which another process has measured."""
        self._zero = min(self._zero, self._source() - elapsed)
