"""Ctrl-C and SIGTERM in a process that has not said what they shall do.

The first is heard as a wish to leave in good order, and does what it always does once that is done;
the second does it at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Signals:
    """Holds the signals back from `hold` to `release`, where their handlers are Python's own.

    interrupt: called with the reason, in the main thread, between any two of its instructions
    """

    def __init__(self, interrupt: Callable[[str], None]):
        self._interrupt = interrupt
        self._needed: Callable[[], bool] | None = None  # None: released
        self._process = 0
        self.caught: int | None = None  # to be raised again

    def hold(self, needed: Callable[[], bool]) -> None:
        """Begin, if this is the main thread; a signal that comes when not `needed` is passed on."""
        self.caught = None
        if threading.current_thread() is not threading.main_thread():
            return
        self._needed, self._process = needed, os.getpid()
        for signum, usual in _USUAL.items():
            owner = getattr(signal.getsignal(signum), "__self__", None)
            if isinstance(owner, Signals) and owner is not self and not owner._holds:
                owner._restore()  # it could not: another thread released it
            if signal.getsignal(signum) == usual:
                signal.signal(signum, self._heard)

    def release(self) -> None:
        """Give the signals back; called in another thread, when the next one comes."""
        self._needed = None
        if threading.current_thread() is threading.main_thread():
            self._restore()

    def raise_again(self) -> None:
        """After `release`: what the caught signal does usually, if there is one."""
        signum, self.caught = self.caught, None
        if signum is not None:
            signal.raise_signal(signum)

    @property
    def _holds(self) -> bool:
        """False, too, in a process that was forked from the one that holds them."""
        return self._needed is not None and self._process == os.getpid() and self._needed()

    def _heard(self, signum: int, frame: FrameType | None) -> None:
        if self.caught is None and self._holds:
            self.caught = signum
            self._interrupt(f"interrupted by {signal.Signals(signum).name}")
        else:
            self.caught = None
            self._restore()
            signal.raise_signal(signum)

    def _restore(self) -> None:
        for signum, usual in _USUAL.items():
            if signal.getsignal(signum) == self._heard:  # else: the user has said since
                signal.signal(signum, usual)
