"""The system interfaces of servers, shards and workers: clock, threads, network, disk, memory.

Each component receives the `Host` of its process. The tests' simulation passes another one, and so
runs whole trainings in one thread, in virtual time.
"""

from __future__ import annotations

import ctypes
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
from datetime import datetime
from typing import Any, TextIO

import zmq
import zmq.utils.monitor
from zmq.auth.thread import ThreadAuthenticator

from wbsp.process.disk import DISK, Disk
from wbsp.process.memory import Memory
from wbsp.process.user_key import user_key

Thread = threading.Thread


def _monotonic() -> Callable[[], float]:
    """Return a monotonic clock in seconds that also counts while the machine is suspended.

    `time.monotonic` stops then: a process that was suspended for an hour would take old messages
    for new ones. Linux has CLOCK_BOOTTIME for that. On macOS CLOCK_MONOTONIC continues, which
    Python's `time.monotonic` does not use there.
    """
    counts = getattr(time, "CLOCK_BOOTTIME", None)
    if counts is None and sys.platform == "darwin":
        counts = time.CLOCK_MONOTONIC
    return time.monotonic if counts is None else functools.partial(time.clock_gettime, counts)


def _processor() -> float:
    return time.process_time() - time.thread_time()


def _date() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True)
class Clock:
    """A clock.

    Attributes:
        monotonic: returns seconds since an arbitrary moment; only differences are meaningful.
        sleep: waits for some seconds.
        date: returns the time of day for a user, in the form of ISO 8601, with its zone.
        processor: returns the seconds of processor time of all other threads of this process.
    """

    monotonic: Callable[[], float] = field(default_factory=_monotonic)
    sleep: Callable[[float], None] = time.sleep
    date: Callable[[], str] = _date
    processor: Callable[[], float] = _processor


class Scheduler:
    """Threads, their synchronization, and the other sources of nondeterminism."""

    condition = staticmethod(threading.Condition)
    lock = staticmethod(threading.Lock)
    queue: Callable[[], _queue.SimpleQueue[Any]] = staticmethod(_queue.SimpleQueue)
    future: Callable[[], Future[Any]] = staticmethod(Future)
    random = staticmethod(os.urandom)  # so many bytes
    exit = staticmethod(os._exit)  # at once, with a code
    signal = staticmethod(_signal.signal)  # takes a signal from here on

    def thread(self, target: Callable[[], object], name: str) -> threading.Thread:
        """Return a daemon thread that is not started."""
        return threading.Thread(target=target, name=name, daemon=True)

    def pool(self, name: str) -> ThreadPoolExecutor:
        """Return an executor with one thread."""
        return ThreadPoolExecutor(1, thread_name_prefix=name)

    def done(self, future: Future[Any], seconds: float) -> bool:
        """Wait up to `seconds` for `future`; return whether it is done."""
        return bool(wait([future], seconds).done)

    def number(self) -> int:
        """Return a random integer of 63 bits."""
        return int.from_bytes(self.random(8), "little") >> 1


class Waker(_socket.socket):
    """A socket whose `send` wakes the thread at the other end, and does not wait for it.

    `socket.send` releases Python's lock (the GIL) during the system call. The woken thread takes
    the lock, and the sender resumes only after that thread blocks again, about half a millisecond
    later. A call through PyDLL keeps the lock.
    """

    _write = ctypes.PyDLL(None).write
    _write.argtypes, _write.restype = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t], (
        ctypes.c_ssize_t)

    def send(self, data: bytes) -> int:  # type: ignore[override]
        """Return the number of bytes sent; -1: none, as the socket is closed or full."""
        written: int = self._write(self.fileno(), data, len(data))
        return written


def _pair() -> tuple[Waker, _socket.socket]:
    """Return two connected sockets: one that wakes, and one to wait at."""
    wakes, woken = _socket.socketpair()
    return Waker(fileno=wakes.detach()), woken


_NOW, _NOW_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


class _Socket(zmq.Socket[bytes]):
    """A socket that takes and gives whole messages in half of pyzmq's time.

    Pyzmq makes an enumeration's member of each flag and option, for each frame.
    """

    def send_multipart(self, msg_parts: Any, flags: int = 0, copy: bool = True,
                       track: bool = False, **kwargs: Any) -> zmq.MessageTracker | None:
        if flags != _NOW or track or kwargs:
            return super().send_multipart(msg_parts, flags, copy, track, **kwargs)
        *first, last = msg_parts
        for frame in first:
            self.send(frame, _NOW_MORE, copy=copy)
        self.send(last, _NOW, copy=copy)
        return None

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if flags != _NOW or copy or track:
            return super().recv_multipart(flags, copy, track)
        frames = [self.recv(_NOW, copy=False)]
        while frames[-1].more:
            frames.append(self.recv(_NOW, copy=False))
        return frames


class _Context(zmq.Context[zmq.Socket[bytes]]):
    _socket_class = _Socket


class Network:
    """ZeroMQ, and the system's sockets."""

    context: Callable[[], zmq.Context[zmq.Socket[bytes]]] = staticmethod(_Context)
    poller: Callable[[], zmq.Poller] = staticmethod(zmq.Poller)
    socket = staticmethod(_socket.socket)
    pair = staticmethod(_pair)
    # None: this system has no epoll
    epoll: Callable[[], Any] | None = staticmethod(select.epoll) if hasattr(
        select, "epoll") else None

    def authenticator(self, context: zmq.Context[zmq.Socket[bytes]]) -> ThreadAuthenticator:
        """Return the thread that checks the keys of peers."""
        return ThreadAuthenticator(context)

    def event(self, monitor: zmq.Socket[bytes]) -> dict[str, Any]:
        """Return the next event of a socket's monitor, which must be ready."""
        return dict(zmq.utils.monitor.recv_monitor_message(monitor))

    def duplicate(self, fd: int) -> _socket.socket:
        """Return a duplicate of a socket, which stays valid when the other one is closed.

        Raises:
            OSError: it is closed already.
        """
        return _socket.socket(fileno=os.dup(fd))

    def resolve(self, host: str, port: int) -> list[tuple[int, int, Any]]:
        """Return family, kind and address of all addresses of a host's name.

        Raises:
            OSError: the name cannot be resolved.
        """
        return [(family, kind, where) for family, kind, _, _, where in _socket.getaddrinfo(
            host.strip("[]"), port, type=_socket.SOCK_STREAM)]


@dataclass(frozen=True)
class Host:
    """The system interfaces that a process uses.

    Attributes:
        stderr: stream of its console lines; None: standard error.
        user_key: returns a secret that only this user's processes have.
    """

    clock: Clock = field(default_factory=Clock)
    scheduler: Scheduler = field(default_factory=Scheduler)
    network: Network = field(default_factory=Network)
    disk: Disk = DISK
    memory: Memory = field(default_factory=Memory)
    stderr: TextIO | None = None
    user_key: Callable[[], bytes] = user_key


HOST = Host()  # the real one
