"""W_0 on its way from a worker, where the server has no model of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from wbsp.ps.sessions.session import WorkerSession
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.layout import total_size
from wbsp.wire.assembly import Reassembler
from wbsp.wire.messages import codec as m

INITIAL_PATIENCE = 60.0  # seconds without a chunk after which another worker is asked


class _Asked(NamedTuple):
    session: WorkerSession
    reassembler: Reassembler


class InitialModel:
    """Asks one worker at a time for W_0, the first that has built its model."""

    def __init__(self, pool: BufferPool):
        self._pool = pool
        self._asked: _Asked | None = None
        self._progress_at = 0.0

    def choose(self, sessions: Iterable[WorkerSession], now: float) -> WorkerSession | None:
        """The worker that is to be asked now; None if one was, or there is none yet."""
        if self._asked is not None:
            return None
        for session in sessions:
            if session.joined and session.layout is not None:
                size = total_size(session.layout)
                self._asked = _Asked(session, Reassembler(size, self._pool))
                self._progress_at = now
                return session
        return None

    def is_from(self, session: WorkerSession) -> bool:
        """True if `session` is that of the worker that was asked."""
        return self._asked is not None and session is self._asked.session

    def add(self, initial: m.Initial, body: memoryview, now: float) -> np.ndarray | None:
        """Take a chunk; return W_0 (float32 [size]) when it was the last. Raises WireError."""
        if self._asked is None:
            raise m.WireError("an initial model that was not requested")
        vector = self._asked.reassembler.add(initial.offset, initial.size, body)
        self._progress_at = now
        return vector

    def give_up(self) -> None:
        """The worker that was asked will not bring W_0."""
        self._asked = None

    def overdue(self, now: float) -> WorkerSession | None:
        """The worker that was asked and sends nothing, if so."""
        if self._asked is None or now - self._progress_at <= INITIAL_PATIENCE:
            return None
        return self._asked.session
