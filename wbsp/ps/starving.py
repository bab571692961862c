"""Detection of workers that a synchronization model starves: it rejects all their pushes."""

from __future__ import annotations

from wbsp.core.decisions import FAILED
from wbsp.core.work_ledger import NOT_OWN
from wbsp.sync.base import UNFIT

PUSHES = 20  # in a row, at least
SECONDS = 60.0  # from the first of these to the last, at least
_NOT_THE_MODELS = UNFIT | {FAILED, NOT_OWN}


class Starving:
    """Detector that reports each starving worker once. Times in seconds."""

    def __init__(self) -> None:
        self._rejected: dict[int, tuple[int, float]] = {}  # worker -> pushes in a row; since when
        self._found: set[int] = set()

    def accepted(self, worker: int) -> None:
        """Note an accepted push of this worker."""
        self._rejected.pop(worker, None)

    def rejected(self, worker: int, reason: str, now: float) -> tuple[int, float] | None:
        """Note a rejected push.

        Returns:
            If the worker starves and was not reported yet: its rejected pushes in a row, and their
            seconds; else None.
        """
        if reason in _NOT_THE_MODELS:
            return None
        pushes, since = self._rejected.get(worker, (0, now))
        self._rejected[worker] = pushes + 1, since
        if worker in self._found or pushes + 1 < PUSHES or now - since < SECONDS:
            return None
        self._found.add(worker)
        return pushes + 1, now - since
