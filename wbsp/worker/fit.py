"""Which call of `fit` is this, and is it over?

Keras tells callbacks that `fit` has ended, but not that it was interrupted or failed. In a process
that lives on, a notebook say, its worker would go on to beat, and the others would wait for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

PERIOD = 1.0  # seconds between two looks


class Fit:
    """The innermost call of a function `fit` under which this object is made.

    It is over when its frame is on its thread's stack no more. The frame may well exist then:
    whoever keeps the exception, as a notebook does, keeps its traceback.

    on_over: called with this object if that happens before `forget`, in a thread of its own
    """

    def __init__(self, on_over: Callable[[Fit], None]):
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_name != "fit":
            frame = frame.f_back
        self._frame = frame  # None: called by a loop of the user's own, of which nothing is known
        self._thread = threading.get_ident()
        self._forgotten = threading.Event()
        if frame is not None:
            threading.Thread(target=self._watch, args=(on_over,), name="wbsp-fit",
                             daemon=True).start()

    @property
    def running(self) -> bool:
        """True if the call is known and has not returned or raised."""
        return (frame := self._frame) is not None and self._on_stack(frame)

    @property
    def over(self) -> bool:
        """True if the call is known and has returned or raised."""
        return (frame := self._frame) is not None and not self._on_stack(frame)

    def forget(self) -> None:
        """Watch no more, and let go of the frame, which holds the data that `fit` was given."""
        self._frame = None
        self._forgotten.set()

    def _watch(self, on_over: Callable[[Fit], None]) -> None:
        while not self._forgotten.wait(PERIOD):
            if self.over:
                on_over(self)
                return

    def _on_stack(self, wanted: FrameType) -> bool:
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame is not wanted:
            frame = frame.f_back
        return frame is wanted
