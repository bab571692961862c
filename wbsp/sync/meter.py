"""Measurements on which models base decisions."""

from heapq import heapify, heappop, heappush

_NEWEST = 0.3  # weight of the newest measurement in an average


def averaged(old: float | None, new: float) -> float:
    """Return the moving average `old`, updated by one measurement; `old` is None before the first.
    """
    return new if old is None else old + _NEWEST * (new - old)


class SlowestMeter:
    """The slowest worker, by an exponential moving average of the seconds a step takes.

    A worker without a measurement counts as the slowest, so that a model decides nothing before
    every worker has one. Every call costs O(log n) amortized over the updates.
    """

    def __init__(self, smoothing: float = 0.3):
        self._smoothing = smoothing
        self._seconds: dict[int, float] = {}  # worker -> average seconds a step
        self._heap: list[tuple[float, int]] = []  # (-seconds, worker); outdated ones are skipped

    def join(self, worker: int) -> None:
        self._set(worker, float("inf"))

    def leave(self, worker: int) -> None:
        self._seconds.pop(worker, None)

    def update(self, worker: int, seconds: float) -> None:
        old = self._seconds[worker]
        first = old == float("inf")
        self._set(worker, seconds if first else old + self._smoothing * (seconds - old))

    def _set(self, worker: int, seconds: float) -> None:
        self._seconds[worker] = seconds
        heappush(self._heap, (-seconds, worker))
        if len(self._heap) > 4 * len(self._seconds) + 16:
            self._heap = [(-s, w) for w, s in self._seconds.items()]
            heapify(self._heap)

    @property
    def slowest(self) -> int | None:
        """The slowest worker (ties: the lowest index); None without workers."""
        heap = self._heap
        while heap and self._seconds.get(heap[0][1]) != -heap[0][0]:
            heappop(heap)
        return heap[0][1] if heap else None
