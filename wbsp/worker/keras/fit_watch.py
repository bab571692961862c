"""End of a call of `fit` that was interrupted or failed, which Keras does not report to callbacks.

In a process that goes on, such as a notebook's, the worker would go on to send heartbeats, and the
other workers would wait for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

PERIOD = 1.0  # seconds between two looks


class Fit:
    """The innermost call of a function `fit` in which this object is made.

    The call is over when its frame has left its thread's stack. The frame may exist for longer: a
    notebook, for example, keeps an exception, and with it the traceback.

    on_over: called with this object, in a thread of its own, if the call is over before `forget`
    """

    failure = "its fit was interrupted or failed"

    def __init__(self, on_over: Callable[[Fit], None]):
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != "fit":
            frame = frame.f_back
        self._frame = frame  # None: a loop of the user's own, not `fit`, calls the callback
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
        """Stop watching, and release the frame, which holds the data that `fit` was given."""
        self._frame = None
        self._forgotten.set()

    def _watch(self, on_over: Callable[[Fit], None]) -> None:
        """Body of the watching thread."""
        while not self._forgotten.wait(PERIOD):
            if self.over:
                on_over(self)
                return

    def _on_stack(self, wanted: FrameType) -> bool:
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame is not wanted:
            frame = frame.f_back
        return frame is wanted
