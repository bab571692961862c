"""A worker's way into a run that has welcomed it: one request after the other, without a socket.

It joins with its model. A server without a version requests W_0, and what is frozen. If the run's
frozen values are others, the member requests these, part by part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wbsp.tensors.layout import check_layout, total_size
from wbsp.wire.client import Request, SendInitial
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m


class Joining:
    """The steps of one worker, each at the answer to the one before.

    Attributes:
        request: the first one.
        joined: the answer by which the worker is a member; None: it is none yet.
        frozen: the run's frozen values, float32 [size], as far as they have come; None: they are
            the worker's own.
    """

    def __init__(self, join: m.Join, initial: Callable[[], tuple[np.ndarray, np.ndarray]]):
        """Start.

        Args:
            join: the request.
            initial: returns W_0 and what is frozen, float32 [size].

        Raises:
            TransportError: no server accepts the layout.
        """
        try:
            check_layout(join.layout, join.frozen)
        except ValueError as error:
            raise TransportError(str(error)) from None
        self.request, self._initial = join, initial
        self.joined: m.Joined | None = None
        self.frozen: np.ndarray | None = None

    def answered(self, message: m.Message) -> Request | None:
        """Return the next request; None: the worker is a member and has all values.

        Raises:
            TransportError: the server is of another release, or its answer is damaged.
        """
        match message:
            case m.Joined() if message.send_initial:  # again, if it was restarted meanwhile
                return SendInitial(*self._initial())
            case m.Joined():
                if message.work is None and self.request.data is not None:
                    raise TransportError("the server assigns no examples: it is of another release "
                                         "of wbsp; install the same on both")
                self.joined = message
                if message.frozen and self.request.frozen:
                    self.frozen = np.empty(total_size(self.request.frozen), np.float32)
                    return m.AskFrozen(0)
            case m.FrozenPart() if self.frozen is not None:
                return self._take(message, self.frozen)
        return None

    def _take(self, message: m.FrozenPart, values: np.ndarray) -> m.AskFrozen | None:
        try:
            part = np.frombuffer(message.values, "<f4")
            values[message.offset:message.offset + part.size] = part
        except ValueError as error:
            raise TransportError(str(error)) from None
        end = message.offset + part.size
        return m.AskFrozen(end) if end < values.size else None
