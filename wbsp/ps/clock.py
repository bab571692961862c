"""The server's two times: its own, and the run's, which goes on from one server to the next."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """Both times in seconds.

    Whatever asks how long somebody is silent, or how long to wait, asks for this process's own
    time. Models, logs and workers are told the run's, which may be set forward.
    """

    def __init__(self, source: Callable[[], float]):
        self._source = source
        self._zero = source()

    def now(self) -> float:
        """This process's own time: never set, and comparable with nothing else."""
        return self._source()

    def run(self) -> float:
        """Seconds since the run's time zero."""
        return self._source() - self._zero

    def go_on(self, elapsed: float) -> None:
        """Let the run's time be at least `elapsed`, as another process has seen it."""
        self._zero = min(self._zero, self._source() - elapsed)
