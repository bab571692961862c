"""W_0 on its way from a worker, where the server has no model of its own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from wbsp.layout import total_size
from wbsp.ps.peer import Peer
from wbsp.wire import messages as m
from wbsp.wire.chunks import Assembly
from wbsp.wire.memory import Spare

INITIAL_PATIENCE = 60.0  # seconds without a chunk after which another worker is asked


class InitialModel:
    """Asks one worker at a time for W_0, the first that has built its model."""

    def __init__(self, spare: Spare):
        self._spare = spare
        self._bringer: Peer | None = None
        self._assembly: Assembly | None = None
        self._progress_at = 0.0

    def choose(self, peers: Iterable[Peer], now: float) -> Peer | None:
        """The worker that is to be asked now; None if one was, or there is none yet."""
        if self._bringer is not None:
            return None
        self._bringer = next((peer for peer in peers if peer.joined), None)
        if self._bringer is not None:
            self._assembly = Assembly(total_size(self._bringer.layout), self._spare)
            self._progress_at = now
        return self._bringer

    def is_from(self, peer: Peer) -> bool:
        """True if `peer` is the worker that was asked."""
        return peer is self._bringer

    def add(self, initial: m.Initial, body: memoryview, now: float) -> np.ndarray | None:
        """Take a chunk; return W_0 (float32 [size]) when it was the last. Raises WireError."""
        vector = self._assembly.add(initial.offset, initial.size, body)
        self._progress_at = now
        return vector

    def give_up(self) -> None:
        """That worker will not bring it."""
        self._bringer = self._assembly = None

    def overdue(self, now: float) -> Peer | None:
        """The worker that was asked and sends nothing, if so."""
        return self._bringer if now - self._progress_at > INITIAL_PATIENCE else None
