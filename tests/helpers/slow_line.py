"""`python slow_line.py FD NAME MBIT MS`: connect two tap devices by a cable with a rate and a
delay: that of the descriptor FD, and a new one called NAME in this process's network namespace.

It does what the kernel's netem does, which not every kernel has. Frames keep their order. A frame
that would wait longer than `QUEUE` seconds is dropped, as by a router.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import struct
import sys
import time

QUEUE = 0.2
_TUNSETIFF, _TAP, _NO_HEAD = 0x400454CA, 0x0002, 0x1000
_FRAME = 1 << 16  # bytes, at most
_BURST = 64  # frames that are read before others are written


def tap(name: str) -> int:
    """Return a descriptor of a new tap device in this process's network namespace."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_HEAD))
    return fd


class Way:
    """One direction of the cable."""

    def __init__(self, source: int, sink: int, rate: float, delay: float):
        """Set up a direction with `rate` in bytes/s and `delay` in seconds."""
        self.source, self._sink, self._rate, self._delay = source, sink, rate, delay
        self._queue: collections.deque[tuple[float, bytes]] = collections.deque()
        self._free = 0.0  # when the last frame has left

    @property
    def due(self) -> float | None:
        """Return when the next frame arrives, or None."""
        return self._queue[0][0] if self._queue else None

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_BURST):
                frame, now = os.read(self.source, _FRAME), time.monotonic()
                if self._free < now + QUEUE:
                    self._free = max(now, self._free) + len(frame) / self._rate
                    self._queue.append((self._free + self._delay, frame))

    def write(self) -> None:
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            with contextlib.suppress(OSError):  # its end is down, or full: the frame is lost
                os.write(self._sink, self._queue.popleft()[1])


def main(fd: int, name: str, mbit: float, ms: float) -> None:
    near = tap(name)
    ways = [Way(*ends, mbit * 1e6 / 8, ms / 1000) for ends in ((fd, near), (near, fd))]
    print("up", flush=True)
    while True:
        due = min((way.due for way in ways if way.due is not None), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        for source in select.select([fd, near], [], [], wait)[0]:
            next(way for way in ways if way.source == source).read()
        for way in ways:
            way.write()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
