"""A process that is forked from a worker's is an ordinary process: signals do to it what they do to
any other, it holds none of the worker's connections open, and it is in no run.

Python forgets a signal that comes before it has set a child up. With a handler that holds signals
back, a child that is ended at once would so live on; so they wait from before the fork until the
child has its own.
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
    """Call `act` in each process that is forked from this one, before anything else runs there."""
    _acts.append(act)


def forget(act: Callable[[], None]) -> None:
    """Do that no longer."""
    if act in _acts:
        _acts.remove(act)


def close_connections(peers: Iterable[tuple[str, str]]) -> None:
    """Close this process's copies of all connections to these addresses and ports, whoever made
    them: libzmq does not say which are its own."""
    wanted = set(peers)
    default = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)  # or a look at a socket would change it, in the parent as well
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
        with contextlib.suppress(Exception):  # the child is the user's, and goes on
            act()
    _after()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
