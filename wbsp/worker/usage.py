"""Load of a worker's machine, which load-balancing models need with every push."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from wbsp.process.host import HOST

PERIOD = 0.5  # seconds between two samples: processor time is counted in hundredths


class Usage:
    """Sampler of the machine's load.

    A call returns the shares (0..1) of processors and memory in use; the processors' share is an
    average since the sample before, at least `PERIOD` ago.
    """

    def __init__(self, clock: Callable[[], float] = HOST.clock.monotonic):
        self._clock = clock
        self._total, self._idle = _processor_seconds()
        self._shares = 0.0, 0.0
        self._due = clock()

    def __call__(self) -> tuple[float, float]:
        now = self._clock()
        if now >= self._due:
            self._due = now + PERIOD
            self._shares = self._processors(), psutil.virtual_memory().percent / 100
        return self._shares

    def _processors(self) -> float:
        total, idle = _processor_seconds()
        passed, idled = total - self._total, idle - self._idle
        if passed <= 0:  # the counters have not moved
            return self._shares[0]
        self._total, self._idle = total, idle
        return min(max(1 - idled / passed, 0.0), 1.0)  # the counters are not read at one moment


def _processor_seconds() -> tuple[float, float]:
    """(all, idle) seconds of all processors since the machine's start."""
    times = psutil.cpu_times()
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # part of user
    return sum(times) - guest, times.idle + getattr(times, "iowait", 0.0)
