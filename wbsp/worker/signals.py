"""Ctrl-C and SIGTERM in a process without its own handlers for them.

The first signal makes the worker leave in good order, and then has its usual effect; a second one
has its usual effect at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any] | signal.Handlers

_USUAL: dict[signal.Signals, _Handler] = {
    signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Signals:
    """Handlers that delay the signals from `hold` to `release`.

    A signal is delayed only if its handler is Python's default.

    Attributes:
        interrupt: called with the reason, in the main thread, between any two instructions.
        look: called after that, with the frame that was interrupted.
        caught: number of a delayed signal, for `raise_again`.
    """

    def __init__(self, interrupt: Callable[[str], None],
                 look: Callable[[FrameType | None], None] = lambda frame: None):
        self._interrupt = interrupt
        self._look = look
        self._needed: Callable[[], bool] | None = None  # None: released
        self._process = 0
        self.caught: int | None = None

    def hold(self, needed: Callable[[], bool]) -> None:
        """Begin, if this is the main thread.

        `needed`: called at a signal; False: the signal has its usual effect.
        """
        self.caught = None
        if threading.current_thread() is not threading.main_thread():
            return
        self._needed = needed
        self._process = os.getpid()
        for signum, usual in _USUAL.items():
            owner = getattr(signal.getsignal(signum), "__self__", None)
            if isinstance(owner, Signals) and owner is not self and not owner._holds:
                owner._restore()  # it was released in another thread, which cannot set handlers
            if signal.getsignal(signum) == usual:
                signal.signal(signum, self._handle)

    def release(self) -> None:
        """End; in a thread other than the main one, the handlers stay until the next signal."""
        self._needed = None
        if threading.current_thread() is threading.main_thread():
            self._restore()

    def forked(self) -> None:
        """Restore the handlers in a process that was forked from this one."""
        self._needed = self.caught = None
        self._restore()

    def raise_again(self) -> None:
        """Raise a delayed signal with its usual effect; call this after `release`."""
        signum = self.caught
        self.caught = None
        if signum is not None:
            signal.raise_signal(signum)

    @property
    def _holds(self) -> bool:
        """Return whether to delay a signal; never in a process forked from this one."""
        return self._needed is not None and self._process == os.getpid() and self._needed()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.caught is None and self._holds:
            self.caught = signum
            self._interrupt(f"interrupted by {signal.Signals(signum).name}")
            self._look(frame)
        else:
            self.caught = None
            self._restore()
            signal.raise_signal(signum)

    def _restore(self) -> None:
        for signum, usual in _USUAL.items():
            if signal.getsignal(signum) == self._handle:  # else: the user has set another since
                signal.signal(signum, usual)
