"""W_0 on its way from a worker, where the server has no model of its own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from wbsp.layout import total_size
from wbsp.ps.worker_session import WorkerSession
from wbsp.wire import messages as m
from wbsp.wire.chunks import Reassembler
from wbsp.wire.memory import BufferPool

INITIAL_PATIENCE = 60.0  # seconds without a chunk after which another worker is asked


class InitialModel:
    """Asks one worker at a time for W_0, the first that has built its model."""

    def __init__(self, spare: BufferPool):
        self._spare = spare
        self._initializer: WorkerSession | None = None
        self._assembly: Reassembler | None = None
        self._progress_at = 0.0

    def choose(self, peers: Iterable[WorkerSession], now: float) -> WorkerSession | None:
        """The worker that is to be asked now; None if one was, or there is none yet."""
        if self._initializer is not None:
            return None
        self._initializer = next((peer for peer in peers if peer.joined), None)
        if self._initializer is not None:
            self._assembly = Reassembler(total_size(self._initializer.layout), self._spare)
            self._progress_at = now
        return self._initializer

    def is_from(self, peer: WorkerSession) -> bool:
        """True if `peer` is the worker that was asked."""
        return peer is self._initializer

    def add(self, initial: m.Initial, body: memoryview, now: float) -> np.ndarray | None:
        """Take a chunk; return W_0 (float32 [size]) when it was the last. Raises WireError."""
        vector = self._assembly.add(initial.offset, initial.size, body)
        self._progress_at = now
        return vector

    def give_up(self) -> None:
        """That worker will not bring it."""
        self._initializer = self._assembly = None

    def overdue(self, now: float) -> WorkerSession | None:
        """The worker that was asked and sends nothing, if so."""
        return self._initializer if now - self._progress_at > INITIAL_PATIENCE else None
