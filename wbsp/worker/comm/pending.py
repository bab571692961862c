"""A worker's request until it is answered: what answers it, how to repeat it, its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wbsp.sync.base import Push
from wbsp.wire.messages import codec as m


@dataclass
class PendingRequest:
    """The one request of a worker that the server has not answered yet.

    Times are seconds of the monotonic clock.

    answer: type of the message that answers the request
    number: of the push, fetch or query, which the answer names; None: the answer names none
    send:   queues the request, for the first time and again
    counts: of messages and chunks that went out or came in; a change is progress
    """

    answer: type[m.Message]
    number: int | None
    send: Callable[[], None]
    counts: tuple[int, ...]
    requested_at: float
    sent_at: float  # for the last time
    progress_at: float  # when a part of the request or of its answer last went through
    cut: tuple[Push, np.ndarray] | None = None  # that a push hands over

    def is_answered_by(self, message: m.Message) -> bool:
        """True if the message is the answer to this request, and not to an earlier one."""
        return type(message) is self.answer and _number(message) == self.number

    def observe(self, counts: tuple[int, ...], now: float) -> None:
        """Note progress if a count has changed."""
        if counts != self.counts:
            self.counts, self.progress_at = counts, now

    def send_again(self, now: float) -> None:
        self.sent_at = now
        if self.cut is not None:  # it may be on its way yet when the first sending is answered
            self.cut[1].flags.writeable = False
        self.send()

    def idle(self, now: float) -> float:
        """Seconds since the request was sent, or since the last progress."""
        return now - max(self.sent_at, self.progress_at)


def _number(message: m.Message) -> int | None:
    """Number of the request that a message answers; None if the message names none."""
    match message:
        case m.Ack():
            return message.seq
        case m.Model():
            return message.request
        case m.CutDecision():
            return message.number
    return None
