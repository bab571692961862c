"""Calls from the compute thread into the communication thread."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

import zmq


class CallQueue:
    """Calls that the compute thread hands over and the communication thread makes, in order.

    Both threads need Python's one interpreter lock. So the compute thread appends while it is busy,
    which costs it little, and wakes the communication thread when it is about to leave Python for
    long. The wake-up is a message between two sockets, so that the communication thread can wait
    for it and for the server at once.
    """

    def __init__(self, context: zmq.Context):
        """`context`: whoever destroys it closes both sockets."""
        address = f"inproc://wake-{id(self)}"
        self._calls: deque[Callable[[], None]] = deque()
        self.wakes = context.socket(zmq.PAIR)  # readable after a `wake`
        self.wakes.bind(address)
        self._waker = context.socket(zmq.PAIR)
        self._waker.connect(address)

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
            with contextlib.suppress(zmq.ZMQError):  # the thread has ended
                self._waker.send(b"", zmq.NOBLOCK)

    # Used by the communication thread.

    def take_wake(self) -> None:
        """Read the message of one `wake`, which has come."""
        self.wakes.recv()

    def make(self) -> None:
        """Make all calls."""
        while self._calls:
            self._calls.popleft()()
