"""Make processes forked from a worker ordinary processes.

Such a process has the default signal handlers, holds none of the worker's connections open, and is
part of no run.

Python loses a signal that arrives before it has set up a child. With a handler that delays signals,
a child that is terminated at once would therefore survive. So signals are blocked from before the
fork until the child has its own handlers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable

_HELD = (signal.SIGINT, signal.SIGTERM)
_acts: list[Callable[[], None]] = []
_saved = threading.local()  # mask: of the forking thread's signals


def in_child(act: Callable[[], None]) -> None:
    """Call `act` first in each process that is forked from this one."""
    _acts.append(act)


def forget(act: Callable[[], None]) -> None:
    """Undo `in_child`."""
    if act in _acts:
        _acts.remove(act)


def close_connections(peers: Iterable[tuple[str, str]]) -> None:
    """Close this process's copies of all connections to these addresses and ports.

    That includes connections of other libraries, because libzmq does not list its own.
    """
    wanted = set(peers)
    default = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)  # else opening a socket would change it, also in the parent
    names = os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")
    for fd in map(int, names):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=fd)
            try:
                peer = found.getpeername()
                host, number = peer[:2] if isinstance(peer, tuple) else ("", 0)
                if (host.removeprefix("::ffff:"), str(number)) in wanted:
                    found.close()
            finally:
                found.detach()
    socket.setdefaulttimeout(default)


def _before() -> None:
    _saved.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD) if _acts else None


def _after() -> None:
    if (mask := getattr(_saved, "mask", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    acts = _acts[:]
    _acts.clear()
    for act in acts:
        with contextlib.suppress(Exception):  # the user's child process continues
            act()
    _after()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
