"""The world outside a process, as servers, shards and workers use it.

Each component is handed the `Host` that its process runs on. The tests' simulation hands over
another one, and so runs whole trainings in one thread, in virtual time.
"""

from __future__ import annotations

import functools
import os
import queue as _queue
import select
import signal as _signal
import socket as _socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TextIO

import zmq
import zmq.utils.monitor
from zmq.auth.thread import ThreadAuthenticator

from wbsp.process.disk import DISK, Disk
from wbsp.process.memory import Memory
from wbsp.process.user_key import user_key

Thread = threading.Thread


def _monotonic() -> Callable[[], float]:
    """Seconds that no one sets, and that count while the machine sleeps, where it can tell.

    `time.monotonic` stops with the machine: a process that was suspended for an hour would take
    what it heard before for fresh. Linux has CLOCK_BOOTTIME for that; on macOS CLOCK_MONOTONIC
    counts on, which Python's `time.monotonic` is not there.
    """
    counts = getattr(time, "CLOCK_BOOTTIME", None)
    if counts is None and sys.platform == "darwin":
        counts = time.CLOCK_MONOTONIC
    return time.monotonic if counts is None else functools.partial(time.clock_gettime, counts)


@dataclass(frozen=True)
class Clock:
    """monotonic: seconds since a moment in the past; the differences alone mean something
    sleep:     wait for so many seconds
    """

    monotonic: Callable[[], float] = field(default_factory=_monotonic)
    sleep: Callable[[float], None] = time.sleep


class Scheduler:
    """Threads, what they wait for, and what else makes one run unlike another."""

    condition = staticmethod(threading.Condition)
    lock = staticmethod(threading.Lock)
    queue: Callable[[], _queue.SimpleQueue[Any]] = staticmethod(_queue.SimpleQueue)
    future: Callable[[], Future] = staticmethod(Future)
    random = staticmethod(os.urandom)  # so many bytes
    exit = staticmethod(os._exit)  # at once, with a code
    signal = staticmethod(_signal.signal)  # takes a signal from here on

    def thread(self, target: Callable[[], object], name: str) -> threading.Thread:
        """A thread that is not started, and does not keep the process from ending."""
        return threading.Thread(target=target, name=name, daemon=True)

    def pool(self, name: str) -> ThreadPoolExecutor:
        """One thread that makes one call after another."""
        return ThreadPoolExecutor(1, thread_name_prefix=name)

    def done(self, future: Future, seconds: float) -> bool:
        """Whether `future` is done within so many seconds."""
        return bool(wait([future], seconds).done)

    def number(self) -> int:
        """A random whole number of 63 bits."""
        return int.from_bytes(self.random(8), "little") >> 1


class Network:
    """ZeroMQ, and what is used of the system's sockets beside it."""

    context: Callable[[], zmq.Context] = staticmethod(zmq.Context)
    poller: Callable[[], zmq.Poller] = staticmethod(zmq.Poller)
    socket = staticmethod(_socket.socket)
    pair = staticmethod(_socket.socketpair)
    # None: this system has none
    epoll: Callable[[], Any] | None = staticmethod(select.epoll) if hasattr(
        select, "epoll") else None

    def authenticator(self, context: zmq.Context) -> ThreadAuthenticator:
        """What checks the keys of peers."""
        return ThreadAuthenticator(context)

    def event(self, monitor: zmq.Socket) -> dict[str, Any]:
        """The next event of a socket's monitor, which has one."""
        return dict(zmq.utils.monitor.recv_monitor_message(monitor))

    def resolve(self, host: str, port: int) -> list[tuple[int, int, Any]]:
        """Family, kind and address of all that a host's name stands for. Raises OSError."""
        return [(family, kind, where) for family, kind, _, _, where in _socket.getaddrinfo(
            host.strip("[]"), port, type=_socket.SOCK_STREAM)]


@dataclass(frozen=True)
class Host:
    """What a process uses of the machine that it runs on.

    stderr: where its lines for a person go; None: to standard error
    user_key: a secret that all processes of this user have, and no others
    """

    clock: Clock = field(default_factory=Clock)
    scheduler: Scheduler = field(default_factory=Scheduler)
    network: Network = field(default_factory=Network)
    disk: Disk = DISK
    memory: Memory = field(default_factory=Memory)
    stderr: TextIO | None = None
    user_key: Callable[[], bytes] = user_key


HOST = Host()  # the real one
