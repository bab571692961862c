"""Calls from the compute thread into the communication thread."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from wbsp.process.host import HOST, Host


class CallQueue:
    """Calls that the compute thread hands over and the communication thread makes, in order.

    Both threads need Python's one interpreter lock. So the compute thread appends while it is busy,
    which costs it little, and wakes the communication thread when it is about to leave Python for
    long. The wake-up is a byte between two sockets, so that the communication thread can wait for
    it and for the server at once; those of the system take half as long as ZeroMQ's.

    wakes: a file descriptor, readable after a `wake`
    """

    def __init__(self, on: Host = HOST):
        self._calls: deque[Callable[[], None]] = deque()
        self._waker, self._woken = on.network.pair()
        for end in (self._waker, self._woken):
            end.setblocking(False)
        self.wakes = self._woken.fileno()

    def __len__(self) -> int:
        """Number of calls that have not been made."""
        return len(self._calls)

    # Used by the compute thread.

    def append(self, call: Callable[[], None]) -> None:
        """Have the communication thread make this call, at the next `wake` or earlier."""
        self._calls.append(call)

    def wake(self) -> None:
        """Wake the communication thread, if there are calls for it."""
        if self._calls:
            with contextlib.suppress(OSError):  # the thread has ended, or has many to read
                self._waker.send(b"\0")

    def close(self) -> None:
        """The thread has ended."""
        self._waker.close()
        self._woken.close()

    # Used by the communication thread.

    def take_wake(self) -> None:
        """Read what `wake` has sent."""
        self._woken.recv(1024)

    def make(self) -> None:
        """Make all calls."""
        while self._calls:
            self._calls.popleft()()
