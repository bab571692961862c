"""The world outside a process, as servers, shards and workers use it: first of all, its clock.

Each component is handed the `Host` that its process runs on. The tests' simulation hands over
another one, and so runs whole trainings in one thread, in virtual time.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field


def _monotonic() -> Callable[[], float]:
    """Seconds that no one sets, and that count while the machine sleeps, where it can tell.

    Linux's `time.monotonic` stops with the machine: a process that was suspended for an hour would
    take what it heard before for fresh.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    return time.monotonic


@dataclass(frozen=True)
class Clock:
    """monotonic: seconds since a moment in the past; the differences alone mean something
    sleep:     wait for so many seconds
    """

    monotonic: Callable[[], float] = field(default_factory=_monotonic)
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Host:
    """What a process uses of the machine that it runs on."""

    clock: Clock = field(default_factory=Clock)


HOST = Host()  # the real one
